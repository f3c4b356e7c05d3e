r"""TernGrad: −1, 0 or 1 an element, at random, times the largest magnitude of its block.

.. math::  Q(x_i) = s\,\mathrm{sgn}(x_i)\, b_i, \qquad P(b_i = 1) = \min(1, |x_i| / s), \qquad
           s = \min\big(\max_{j \in B} |x_j|,\ c\,\sigma_B\big)

c = `clip` cuts the rare large elements, which would make all others improbable; then E[Q(x)] is x clipped at ±s, which
is biased, and nothing is claimed. ``clip=None`` leaves s at the maximum: E[Q(x)] = x with
E‖Q(x)‖² = s‖x‖₁ ≤ (1+√B)/2 ‖x‖², hence omega = (√B − 1)/2 for blocks of B elements, attained where one element is
√B + 1 times as large as all others. Such a bound needs blocks: with ``block=None`` a whole unit (or shard) shares one
scale, as a layer does in the paper, and no omega is claimed. The scales of blocks of 2048 cost 1 % of the bytes and
limit what a single large element can do to the others.
Runs without memory: clipped, it is not a contraction, and error feedback over the unclipped form scales it to one.

``share_scale=True`` lets the workers agree on the largest of their scales first. Codes then add up exactly as integers,
so two all-reduces do: one of scales, one of codes. Each worker then clips at the shared scale. The rounding
stays independent and, without clipping, unbiased, but its variance depends on the other workers' gradients, so nothing
is claimed.
Wire: one float32 scale for each block, then codes + 1: ``packing="trits"`` five to a byte, ``"bits"`` two bits each.
With shared scales, n workers' codes + 1 in fields of bit_length(2n) bits, as many as fit in each 32-bit word.

Departs from the paper in the unit (blocks instead of layers) and in sigma, which is taken about zero and over the
non-zero elements: a constant block would otherwise be clipped to nothing, and so would one that is mostly padding.

Wen et al., TernGrad, NeurIPS 2017, arXiv:1705.07878, sections 3.1 and 3.4.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import ClassVar

from torch import Tensor

from gradwire.codecs.quantization._grid import GridCodec
from gradwire.codecs.quantization._ranges import add_up, agree, values
from gradwire.core.codec import Combine, Context, Reduced, Traits, register
from gradwire.core.registry import Check
from gradwire.kernels import grid
from gradwire.kernels.grid import Rule, bound


@register
@dataclass(frozen=True)
class TernGrad(GridCodec):
    """Ternary codes."""

    name: ClassVar[str] = "terngrad"
    family: ClassVar[str] = "quantization"
    paper: ClassVar[str] = "Wen et al., TernGrad, NeurIPS 2017, arXiv:1705.07878"
    variants: ClassVar[tuple[str, ...]] = (
        "terngrad(clip=None, block=64)",
        "terngrad(clip=None, block=7, packing='bits')",
        "terngrad(block=None)",
        "terngrad(share_scale=True, block=64)",
        "terngrad(clip=None, block=None, share_scale=True)",
    )
    clip: float | None = 2.5
    block: int | None = 2048
    packing: str = "trits"
    share_scale: bool = False

    def __post_init__(self) -> None:
        check = Check(self.name)
        if self.clip is not None:
            check.number("clip", self.clip, 2.0**-20, 2.0**20, "a positive multiple of sigma, or None for no clipping")
        if self.block is not None:
            check.integer("block", self.block, 1)
        check.one_of("packing", self.packing, ("trits", "bits"))
        check.one_of("share_scale", self.share_scale, (True, False))

    @property
    def traits(self) -> Traits:
        if self.share_scale:
            return Traits(combine=Combine.ROUNDS, propagates_nonfinite=True, stochastic=True, ignores_shapes=True)
        if self.clip is not None or self.block is None:
            return Traits(combine=Combine.GATHER, propagates_nonfinite=True, stochastic=True)
        omega = bound(self.rule(self.block))
        return Traits(combine=Combine.GATHER, propagates_nonfinite=True, stochastic=True, unbiased=True, omega=omega)

    @property
    def alignment(self) -> int:
        return math.lcm(self.block or 1, 8)

    def rule(self, numel: int) -> Rule:
        return Rule(self.block or max(1, numel), 1, 1, sigma=self.clip or 0.0, trits=self.packing == "trits")

    def reduce(self, x: Tensor, ctx: Context) -> Reduced:
        count, numel = x.shape
        rule = replace(self.rule(numel), trits=False)
        scales = yield from agree(grid.scale(x, rule))
        everywhere = scales.expand(count, -1)
        data = grid.encode(x, 1 / everywhere, rule.block, 1, 1, self.noise(ctx.rng))
        own = grid.decode_by(data, everywhere, rule, numel) if ctx.wants_own else None
        total = yield from add_up(data, 1, numel, ctx.workers)
        return values(total, scales / ctx.workers, rule.block), own
