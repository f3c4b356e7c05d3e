r"""LPC: stochastic rounding to a two's-complement grid of `bits` bits, clipped at a share of each block's maximum.

.. math::  Q(x_i) = \delta\, \mathrm{sr}\Big(\mathrm{clamp}\big(x_i/\delta,\ -2^{w-1},\ 2^{w-1}-1\big)\Big), \qquad
           \delta = \frac{\lambda \max_{j \in B} |x_j|}{2^{w-1}-1}

with w = `bits`, λ = `clip`, and sr rounding down or up at random so that E[sr(y)] = y. λ = 1 clips nothing: E[Q(x)] = x
with variance omega = (√(1 + (B−1)/s²) − 1)/2 for s = 2^(w−1) − 1, as QSGD with the max-norm. λ < 1 makes the grid
finer and clips the largest elements: E[Q(x)] = clamp(x, −2^(w−1)δ, λ max|x|), which is biased. Then
E‖Q(x) − x‖² ≤ ((1−λ)² + min(Bλ²/(4s²), √B λ/s)) ‖x‖², a contraction where the bracket stays below 1 and no claim
elsewhere. The grid has one more value below zero than above, so clipping treats the signs differently. Runs without
memory.
Wire: one float32 scale λ max|x| for each block of `block` elements, then `bits` bits an element.

The paper's algorithm feeds this quantiser with the differences of SVRG, which need a second gradient at a snapshot of
the model. That is the business of the training loop; this is the quantiser alone, for any gradient.

Yu, Wu, Huang, Exploring Fast and Communication-Efficient Algorithms in Large-Scale Distributed Networks, AISTATS 2019.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from gradwire.codecs.quantization._grid import GridCodec
from gradwire.core.codec import Combine, Traits, register
from gradwire.core.registry import Check
from gradwire.kernels.grid import Rule, bound


@register
@dataclass(frozen=True)
class LPC(GridCodec):
    """Clipped stochastic levels."""

    name: ClassVar[str] = "lpc"
    family: ClassVar[str] = "quantization"
    paper: ClassVar[str] = "Yu, Wu, Huang, LPC-SVRG, AISTATS 2019"
    variants: ClassVar[tuple[str, ...]] = (
        "lpc(bits=8, block=64)",
        "lpc(clip=0.95, block=64)",
        "lpc(bits=2, clip=0.9, block=2048)",
        "lpc(bits=3, block=7)",
    )
    bits: int = 4
    clip: float = 1.0
    block: int = 512

    def __post_init__(self) -> None:
        check = Check(self.name)
        check.integer("bits", self.bits, 2, 16)
        check.number("clip", self.clip, 2.0**-20, 1, "the share of the largest magnitude to clip at, in (0, 1]")
        check.integer("block", self.block, 1)

    @property
    def traits(self) -> Traits:
        spacing = self.clip / self._high
        variance = min(self.block * spacing**2 / 4, math.sqrt(self.block) * spacing)
        if self.clip == 1:
            return Traits(
                combine=Combine.GATHER,
                propagates_nonfinite=True,
                unbiased=True,
                omega=bound(self.rule(self.block)),
                stochastic=True,
                odd=False,
            )
        left = (1 - self.clip) ** 2 + variance
        return Traits(
            combine=Combine.GATHER,
            propagates_nonfinite=True,
            delta=1 - left if left < 1 else None,
            stochastic=True,
            odd=False,
        )

    @property
    def alignment(self) -> int:
        return math.lcm(self.block, 8)

    @property
    def _high(self) -> int:
        """The grid reaches from −(high + 1) to high."""
        return (1 << (self.bits - 1)) - 1

    def rule(self, numel: int) -> Rule:
        return Rule(self.block, self._high + 1, self._high, clip=self.clip)
