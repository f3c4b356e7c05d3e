r"""Block integers: each block as integers of `bits` bits, scaled by its largest magnitude.

With L = 2^(bits−1) − 1, and M the largest magnitude of a block of B = `block` elements,

.. math::  C(x)_i = \frac{M}{L}\,\mathrm{round}\Big(\frac{L}{M}\,x_i\Big), \qquad \text{codes } -L \ldots L

Rounding to nearest (ties away from zero) is a contraction with delta = 4L²/(4L² + B − 1). Stochastic rounding gives
E[C(x)] = x with omega = (√(1 + (B−1)/L²) − 1)/2. Both bounds are attained, by blocks of one large element.
Rotation turns every 32 elements by a randomised Hadamard matrix, with signs that all workers share, new in each step.
At 4 bits and blocks of 128 the error is then about 0.0137 of the energy, whatever the distribution; without, 0.05 for
Student's t with 3 degrees of freedom. It is linear, so rotated values are added up and turned back once.
Wire: ceil(n·bits/8) bytes and 4 for each block; with `rotate`, n rounded up to a multiple of 32.

Wang et al., ZeRO++, 2023, arXiv:2306.10209; rotation, there without signs: Jia et al., SDP4Bit, NeurIPS 2024.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from gradwire.codecs._parameters import checked
from gradwire.codecs.quantization._grid import ROUNDED, GridCodec
from gradwire.codecs.quantization._rotation import RUN
from gradwire.core.codec import Combine, Traits, register
from gradwire.core.random import Random, Stream
from gradwire.kernels.grid import Rule, bound


@register
@dataclass(frozen=True)
class BlockInt(GridCodec):
    """Send each element as an integer of a few bits, scaled by the largest magnitude of its block.

    Args:
        bits: of each integer: 8, 6, 4 or 2. 4 is an eighth of float32.
        block: elements that share a scale of 4 bytes. 128 adds 0.25 bits an element; smaller blocks are more accurate.
        rounding: "nearest" has the smaller error and runs with error feedback; "stochastic" is right on average.
        rotate: spread outliers over 32 elements first, of which `block` must then be a multiple. Good for heavy tails.

    Example:
        >>> gradwire.codec("blockint(bits=4, block=128)").payload_bytes(1024)
        544
    """

    name: ClassVar[str] = "blockint"
    paper: ClassVar[str] = "Wang et al., ZeRO++, 2023, arXiv:2306.10209; Jia et al., NeurIPS 2024, arXiv:2410.15526"
    plain_on_gpu: ClassVar[str] = ""
    variants: ClassVar[tuple[str, ...]] = (
        "blockint(bits=8, block=100)",
        "blockint(bits=2, block=64, rotate=True)",
        "blockint(bits=6, rounding='stochastic')",
        "blockint(bits=4, block=32, rounding='stochastic', rotate=True)",
    )
    bits: int = 4
    block: int = 128
    rounding: str = "nearest"
    rotate: bool = False

    def __post_init__(self) -> None:
        check = checked(self)
        check.one_of("bits", self.bits, (8, 6, 4, 2))
        check.one_of("rounding", self.rounding, ("nearest", "stochastic"))
        if self.rotate and self.block % RUN:
            check.fail("block", f"a multiple of {RUN} with rotate=True", self.block)

    @property
    def traits(self) -> Traits:
        rule = self.rule(self.block)
        if self.rounding == "stochastic":
            return replace(ROUNDED, unbiased=True, omega=bound(rule))
        delta = 1 / (1 + (self.block - 1) / rule.high**2 / 4)
        return Traits(combine=Combine.GATHER, propagates_nonfinite=True, memory="error_feedback", delta=delta)

    def rule(self, numel: int) -> Rule:
        return Rule(self.block, 2 ** (self.bits - 1) - 1, 2 ** (self.bits - 1) - 1)

    def noise(self, rng: Random) -> Stream | None:
        return super().noise(rng) if self.rounding == "stochastic" else None

    def run(self, numel: int) -> int:
        return RUN if self.rotate else 0
