r"""3LC: three values, −M, 0 and M, five of them in a byte, and runs of zero bytes cut short.

.. math::  M = s \max_{i \in B} |a_i|, \qquad C(a)_i = M t_i, \qquad t_i = \mathrm{round}(a_i / M) \in \{-1, 0, 1\}

for blocks B of `block` elements. s = `sparsity`, in [1, 2): the larger, the more zeros. A half is rounded away from
zero. |a − C(a)| ≤ M/2 for every element, and no element's error exceeds its own magnitude. The largest one's is s − 1
of it: a contraction with delta = s(2 − s)/|B|. Runs with error feedback, and needs it: elements below M/2 wait.
Wire: 4 bytes of M for each block, then ⌈n/5⌉ bytes, 1.6 bits an element, as in `gradwire.kernels.trits`. With
`zero_runs`, 2 to 14 neighbouring bytes of five zeros each become one byte, see `gradwire.kernels.runs`: between
8/70 = 0.114 and 1.6 bits, and a length that depends on the data.

Departs from the paper in the unit of the scale: blocks, instead of a layer. With ``block=None`` layers with small
gradients hardly send anything, and delta is claimed as 0.

Lim, Andersen, Kaminsky, 3LC: Lightweight and Effective Traffic Compression for Distributed Machine Learning, MLSys
2019, arXiv:1802.07389, section 3.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from gradwire.codecs._parameters import checked
from gradwire.core.codec import Codec, Combine, Traits, register
from gradwire.core.exchange import Payload
from gradwire.core.random import Random
from gradwire.kernels import rows, runs
from gradwire.kernels.blockwise import abs_max
from gradwire.kernels.trits import pack, trit_bytes, unpack

LARGEST = torch.finfo(torch.float32).max


@register
@dataclass(frozen=True)
class ThreeLC(Codec):
    """Send −1, 0 or 1 for each element, five in a byte, and shorten runs of zeros.

    Args:
        sparsity: factor of the block's largest magnitude, in [1, 2). Larger gives more zeros.
        zero_runs: shorten runs of zero bytes; the size then depends on the data.
        block: elements that share a scale of 4 bytes; None takes one scale for all. 2048 adds 1 % to the bytes.

    Example:
        >>> gradwire.VirtualCluster(1, "threelc(sparsity=1)").reduce({"w": [torch.tensor([4.0, -3.0, 1.0])]})["w"]
        tensor([ 4., -4.,  0.])
    """

    name: ClassVar[str] = "threelc"
    family: ClassVar[str] = "hybrid"
    paper: ClassVar[str] = "Lim, Andersen, Kaminsky, 3LC, MLSys 2019, arXiv:1802.07389"
    plain_on_gpu: ClassVar[str] = "runs of zeros have no fixed size"
    variants: ClassVar[tuple[str, ...]] = (
        "threelc(sparsity=1, block=None)",
        "threelc(sparsity=1.9, zero_runs=False, block=7)",
    )
    sparsity: float = 1.75
    zero_runs: bool = True
    block: int | None = 2048

    def __post_init__(self) -> None:
        check = checked(self)
        wanted = "a factor of at least 1 and below 2"
        check.number("sparsity", self.sparsity, 1, 2, wanted)
        if self.sparsity == 2:
            check.fail("sparsity", wanted, self.sparsity)

    @property
    def traits(self) -> Traits:
        delta = 0.0 if self.block is None else self.sparsity * (2 - self.sparsity) / self.block
        return Traits(combine=Combine.GATHER, memory="error_feedback", delta=delta, fixed_size=not self.zero_runs)

    @property
    def alignment(self) -> int:
        return math.lcm(self.block or 1, 8)

    def encode(self, x: Tensor, rng: Random) -> Payload:
        block = self._block(x.shape[1])
        scales = (abs_max(x, block) * self.sparsity).clamp(max=LARGEST)
        large = (rows.blocks(x, block).abs() * 2 >= scales.unsqueeze(2)).flatten(1)[:, : x.shape[1]]
        trits = torch.where(large, x.sign(), 0.0)  # the scale carries the NaN
        packed = pack((trits + 1).to(torch.uint8))
        if not self.zero_runs:
            return Payload(rows.join(scales, packed))
        packed, lengths = runs.encode(packed)
        return Payload(rows.join(scales, packed), lengths + 4 * scales.shape[1])

    def decode(self, payload: Payload, numel: int, rng: Random) -> Tensor:
        block = self._block(numel)
        scales, start = rows.take(payload.data, 0, -(-numel // block), torch.float32)
        packed = payload.data[:, start:]
        if payload.lengths is not None:
            packed = runs.decode(packed, payload.lengths - start, trit_bytes(numel))
        trits = unpack(packed, numel).float().sub_(1)
        return (rows.blocks(trits, block) * scales.unsqueeze(2)).flatten(1)[:, :numel]

    def payload_bytes(self, numel: int) -> int:
        return 4 * -(-numel // self._block(numel)) + trit_bytes(numel) + (8 if self.zero_runs else 0)

    def _block(self, numel: int) -> int:
        return self.block or max(numel, 1)
