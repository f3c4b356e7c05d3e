r"""QSGD: stochastic rounding to `levels` steps of each block's norm.

With N the norm of the block and s = `levels`, coordinate i becomes

.. math::  Q(x_i) = \frac{N}{s}\,\mathrm{sgn}(x_i)\,\xi_i, \qquad
           \xi_i = \min\big(s,\ \lfloor y_i + u_i \rfloor\big), \quad y_i = s\,|x_i| / N,\ u_i \sim U[0,1)

E[Q(x)] = x. `norm="max"` takes the largest magnitude (far smaller errors at few levels): for block length B the
variance is omega = (√(1 + (B−1)/s²) − 1)/2, attained (see `kernels.grid.bound`). `norm="l2"` takes the Euclidean norm
of the paper, with omega = min(B/(4s²), √B/s). Rounding is independent across workers, so errors average out. The
minimum guards against y > s by rounding. Runs without memory; under error feedback it is scaled by 1/(1+omega) where
omega >= 1.
Wire: ceil(log2(2s+1)) bits a coordinate, packed, and 4 bytes for each block; no entropy coding.

With `share_norm` the workers first agree on the largest norm of each block, and the codes then go through one
all-reduce of integers, which is exact: no payload is decoded by anybody but in the sum. The variance holds against
the worker with the largest norm. Wire: 4 bytes for each block, and 32-bit words of floor(32/w) codes each, with
w = ceil(log2(2ns+1)) bits for n workers.

Alistarh et al., QSGD, NeurIPS 2017, arXiv:1610.02132, section 3.1; shared norms: Xin et al., Global-QSGD, 2023,
arXiv:2305.18627.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from gradwire.codecs.quantization._grid import GridCodec
from gradwire.codecs.quantization._ranges import add_up, agree, values
from gradwire.core.codec import Combine, Context, Reduced, Traits, register
from gradwire.core.exchange import Payload
from gradwire.core.random import Random
from gradwire.core.registry import Check
from gradwire.kernels import blockwise, grid, rows
from gradwire.kernels.grid import Rule, bound, code_width


@register
@dataclass(frozen=True)
class QSGD(GridCodec):
    """Stochastic uniform levels."""

    name: ClassVar[str] = "qsgd"
    family: ClassVar[str] = "quantization"
    paper: ClassVar[str] = "Alistarh et al., QSGD, NeurIPS 2017, arXiv:1610.02132"
    variants: ClassVar[tuple[str, ...]] = (
        "qsgd(levels=1)",
        "qsgd(levels=3, block=64, norm='l2')",
        "qsgd(levels=127, block=2048)",
        "qsgd(levels=300, block=5, norm='l2')",
        "qsgd(levels=7, block=64, share_norm=True)",
    )
    levels: int = 7
    block: int = 512
    norm: str = "max"
    share_norm: bool = False

    def __post_init__(self) -> None:
        check = Check(self.name)
        check.integer("levels", self.levels, 1, 32767)
        check.integer("block", self.block, 1)
        check.one_of("norm", self.norm, ("max", "l2"))
        check.one_of("share_norm", self.share_norm, (False, True))

    @property
    def traits(self) -> Traits:
        omega = bound(self.rule(self.block))
        if self.norm == "l2":
            omega = min(self.block / (4 * self.levels**2), math.sqrt(self.block) / self.levels)
        combine = Combine.ROUNDS if self.share_norm else Combine.GATHER
        return Traits(
            combine=combine, propagates_nonfinite=True, unbiased=True, omega=omega, stochastic=True, ignores_shapes=True
        )

    @property
    def alignment(self) -> int:
        return math.lcm(self.block, 8)

    @property
    def width(self) -> int:
        """Bits of one code."""
        return code_width(self.levels, self.levels)

    def rule(self, numel: int) -> Rule:
        return Rule(self.block, self.levels, self.levels)

    @property
    def scales_by_rule(self) -> bool:
        return self.norm == "max"

    def encode(self, x: Tensor, rng: Random) -> Payload:
        if self.norm == "max":
            return super().encode(x, rng)
        norms = self._norms(x)
        return Payload(rows.join(norms, self._codes(x, norms, rng)))

    def reduce(self, x: Tensor, ctx: Context) -> Reduced:
        norms = yield from agree(self._norms(x))
        codes = self._codes(x, norms.expand(len(x), -1), ctx.rng)
        own = None
        if ctx.wants_own:
            own = grid.decode_by(codes, norms.expand(len(x), -1), self.rule(x.shape[1]), x.shape[1])
        total = yield from add_up(codes, self.levels, x.shape[1], ctx.workers)
        return values(total, norms / self.levels / ctx.workers, self.block), own

    def _norms(self, x: Tensor) -> Tensor:
        largest = grid.scale(x, self.rule(x.shape[1]))
        if self.norm == "max":
            return largest
        parts = (rows.blocks(x, self.block) / largest.unsqueeze(2)).flatten(1)  # squares of huge values would overflow
        return torch.maximum(largest, largest * blockwise.square_sum(parts, self.block).sqrt())

    def _codes(self, x: Tensor, norms: Tensor, rng: Random) -> Tensor:
        return grid.encode(x, self.levels / norms, self.block, self.levels, self.levels, self.noise(rng))
