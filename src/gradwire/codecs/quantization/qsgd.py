r"""QSGD: stochastic rounding to `levels` steps of each block's norm.

With N the norm of the block and s = `levels`, coordinate i becomes

.. math::  Q(x_i) = \frac{N}{s}\,\mathrm{sgn}(x_i)\,\xi_i, \qquad
           \xi_i = \min\big(s,\ \lfloor y_i + u_i \rfloor\big), \quad y_i = s\,|x_i| / N,\ u_i \sim U[0,1)

E[Q(x)] = x; variance omega = min(B/(4s²), √B/s) for block length B and either norm: `norm="max"` takes the largest
magnitude (far smaller errors at few levels), `norm="l2"` the Euclidean norm of the paper. Rounding is independent
across workers, so errors average out. The minimum guards against y > s by rounding. Runs without memory; under error
feedback it is scaled by 1/(1+omega) where omega >= 1.
Wire: ceil(log2(2s+1)) bits a coordinate, packed, and 4 bytes for each block; no entropy coding.

Alistarh et al., QSGD, NeurIPS 2017, arXiv:1610.02132, section 3.1.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from gradwire.core.codec import Codec, Combine, Traits, register
from gradwire.core.exchange import Payload
from gradwire.core.random import Random
from gradwire.core.registry import Check
from gradwire.kernels import rows
from gradwire.kernels.bitpack import pack, packed_bytes, unpack
from gradwire.kernels.random import uniform


@register
@dataclass(frozen=True)
class QSGD(Codec):
    """Stochastic uniform levels."""

    name: ClassVar[str] = "qsgd"
    family: ClassVar[str] = "quantization"
    paper: ClassVar[str] = "Alistarh et al., QSGD, NeurIPS 2017, arXiv:1610.02132"
    variants: ClassVar[tuple[str, ...]] = (
        "qsgd(levels=1)",
        "qsgd(levels=3, block=64, norm='l2')",
        "qsgd(levels=127, block=2048)",
        "qsgd(levels=300, block=5, norm='l2')",
    )
    levels: int = 7
    block: int = 512
    norm: str = "max"

    def __post_init__(self) -> None:
        check = Check(self.name)
        check.integer("levels", self.levels, 1, 32767)
        check.integer("block", self.block, 1)
        check.one_of("norm", self.norm, ("max", "l2"))

    @property
    def traits(self) -> Traits:
        omega = min(self.block / (4 * self.levels**2), math.sqrt(self.block) / self.levels)
        return Traits(combine=Combine.GATHER, unbiased=True, omega=omega, stochastic=True)

    @property
    def alignment(self) -> int:
        return math.lcm(self.block, 8)

    @property
    def width(self) -> int:
        """Bits of one code."""
        return (2 * self.levels).bit_length()

    def encode(self, x: Tensor, rng: Random) -> Payload:
        blocks = rows.blocks(x, self.block)
        norms = self._norms(blocks)
        safe = torch.where(norms > 0, norms, 1.0).unsqueeze(2)
        y = (blocks.abs() / safe * self.levels).flatten(1)[:, : x.shape[1]]
        steps = (y + uniform(rng.private("round"), x.shape, x.device)).floor_().clamp_(max=self.levels)
        codes = (steps * x.sign() + self.levels).nan_to_num_(0)  # the norm carries the NaN
        return Payload(rows.join(norms, pack(codes.to(torch.int32), self.width)))

    def decode(self, payload: Payload, numel: int, rng: Random) -> Tensor:
        norms, start = rows.take(payload.data, 0, -(-numel // self.block), torch.float32)
        steps = unpack(payload.data[:, start:], self.width, numel).float().sub_(self.levels)
        return (rows.blocks(steps, self.block) * (norms / self.levels).unsqueeze(2)).flatten(1)[:, :numel]

    def payload_bytes(self, numel: int) -> int:
        return packed_bytes(numel, self.width) + 4 * -(-numel // self.block)

    def _norms(self, blocks: Tensor) -> Tensor:
        largest = blocks.abs().amax(2)
        if self.norm == "max":
            return largest
        safe = torch.where(largest > 0, largest, 1.0)
        return safe * (blocks / safe.unsqueeze(2)).square().sum(2).sqrt()  # squares of huge values would overflow
