r"""LPC: stochastic rounding to a two's-complement grid of `bits` bits, clipped at a share of each block's maximum.

.. math::  Q(x_i) = \delta\, \mathrm{sr}\Big(\mathrm{clamp}\big(x_i/\delta,\ -2^{w-1},\ 2^{w-1}-1\big)\Big), \qquad
           \delta = \frac{\lambda \max_{j \in B} |x_j|}{2^{w-1}-1}

with w = `bits`, λ = `clip`, and sr rounding down or up at random so that E[sr(y)] = y. λ = 1 clips nothing: E[Q(x)] = x
with variance omega = (√(1 + (B−1)/s²) − 1)/2 for s = 2^(w−1) − 1, as QSGD with the max-norm. λ < 1 makes the grid
finer and clips the largest elements, which is biased. Then E‖Q(x) − x‖² ≤ ((1−λ)² + min(Bλ²/(4s²), √B λ/s)) ‖x‖², a
contraction where the bracket stays below 1, and nothing is claimed elsewhere. The grid has one more value below zero
than above, so clipping treats the signs differently.
Wire: one float32 scale λ max|x| for each block of `block` elements, then `bits` bits an element.

This is the quantiser alone. The paper feeds it with the differences of SVRG, which are the training loop's business.

Yu, Wu, Huang, Exploring Fast and Communication-Efficient Algorithms in Large-Scale Distributed Networks, AISTATS 2019.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import ClassVar

from gradwire.codecs._parameters import checked
from gradwire.codecs.quantization._grid import ROUNDED, GridCodec
from gradwire.core.codec import Traits, register
from gradwire.kernels.grid import Rule, bound


@register
@dataclass(frozen=True)
class LPC(GridCodec):
    """Round each element at random to an integer of a few bits, and clip the largest ones.

    Args:
        bits: of each code, 2 to 16. 4 is an eighth of float32.
        clip: where to clip, as a share of the block's largest magnitude, in (0, 1]. 1 clips nothing and is unbiased.
        block: elements that share a scale of 4 bytes. Smaller blocks are more accurate.

    Example:
        >>> gradwire.codec("lpc(bits=4, block=512)").payload_bytes(1024)
        520
    """

    name: ClassVar[str] = "lpc"
    paper: ClassVar[str] = "Yu, Wu, Huang, LPC-SVRG, AISTATS 2019"
    plain_on_gpu: ClassVar[str] = ""
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
        check = checked(self)
        check.integer("bits", self.bits, 2, 16)
        check.number("clip", self.clip, 2.0**-20, 1, "the share of the largest magnitude to clip at, in (0, 1]")

    @property
    def traits(self) -> Traits:
        rule = self.rule(self.block)
        if self.clip == 1:
            return replace(ROUNDED, unbiased=True, omega=bound(rule), odd=False)
        spacing = self.clip / rule.high
        left = (1 - self.clip) ** 2 + min(self.block * spacing**2 / 4, math.sqrt(self.block) * spacing)
        return replace(ROUNDED, delta=1 - left if left < 1 else None, odd=False)

    def rule(self, numel: int) -> Rule:
        high = (1 << (self.bits - 1)) - 1
        return Rule(self.block, high + 1, high, clip=self.clip)
