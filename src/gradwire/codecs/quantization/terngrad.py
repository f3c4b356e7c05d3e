r"""TernGrad: −1, 0 or 1 an element, at random, times the largest magnitude of its block.

.. math::  Q(x_i) = s\,\mathrm{sgn}(x_i)\, b_i, \qquad P(b_i = 1) = \min(1, |x_i| / s), \qquad
           s = \min\big(\max_{j \in B} |x_j|,\ c\,\sigma_B\big)

c = `clip` cuts the rare large elements, which would make all others improbable. E[Q(x)] is then x clipped at ±s, which
is biased, and nothing is claimed. Without clipping E[Q(x)] = x with E‖Q(x)‖² = s‖x‖₁ ≤ (1+√B)/2 ‖x‖², hence
omega = (√B − 1)/2 for blocks of B elements, attained where one element is √B + 1 times as large as all others.
Runs without memory: clipped, it is not a contraction, and error feedback over the unclipped form scales it to one.
Wire: one float32 scale for each block, then codes + 1: ``packing="trits"`` five to a byte, ``"bits"`` two bits each.
With shared scales, n workers' codes + 1 in fields of bit_length(2n) bits, as many as fit in each 32-bit word. Each
worker then clips at the shared scale; the variance depends on the other workers' gradients, so nothing is claimed.

Departs from the paper in the unit (blocks instead of layers) and in sigma, which is taken about zero and over the
non-zero elements: a constant block would otherwise be clipped to nothing, and so would one that is mostly padding.

Wen et al., TernGrad, NeurIPS 2017, arXiv:1705.07878, sections 3.1 and 3.4.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from gradwire.codecs._parameters import checked
from gradwire.codecs.quantization._grid import ROUNDED
from gradwire.codecs.quantization._ranges import SharedScales
from gradwire.core.codec import Combine, Traits, register
from gradwire.kernels.grid import Rule, bound


@register
@dataclass(frozen=True)
class TernGrad(SharedScales):
    """Send −1, 0 or 1 for each element, drawn at random, and a scale for each block.

    Args:
        clip: clip at this many standard deviations of a block; None clips nothing and is unbiased. 2.5 as published.
        block: elements that share a scale of 4 bytes; None takes one scale for all. 2048 adds 1 % to the bytes and
            limits what one large element does to the others.
        packing: "trits", five codes in a byte (1.6 bits each), or "bits", two bits each.
        share_scale: agree on the largest scales first, so that codes can be all-reduced. Pays with many workers.

    Example:
        >>> gradwire.codec("terngrad(block=2048)").payload_bytes(4096)
        828
    """

    name: ClassVar[str] = "terngrad"
    paper: ClassVar[str] = "Wen et al., TernGrad, NeurIPS 2017, arXiv:1705.07878"
    plain_on_gpu: ClassVar[str] = ""
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
        check = checked(self)
        if self.clip is not None:
            check.number("clip", self.clip, 2.0**-20, 2.0**20, "a positive multiple of sigma, or None for no clipping")
        check.one_of("packing", self.packing, ("trits", "bits"))

    @property
    def traits(self) -> Traits:
        if self.share_scale:
            return replace(ROUNDED, combine=Combine.ROUNDS, ignores_shapes=True)
        if self.clip is not None or self.block is None:
            return ROUNDED
        return replace(ROUNDED, unbiased=True, omega=bound(self.rule(self.block)))

    def rule(self, numel: int) -> Rule:
        return Rule(self.block or max(1, numel), 1, 1, sigma=self.clip or 0.0, trits=self.packing == "trits")
