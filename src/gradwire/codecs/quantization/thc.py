r"""THC: rotate, round to integers of `bits` bits without bias, and add the integers up.

With L = 2^(bits−1) − 1, H the Hadamard matrix of order m, D random signs that all workers share, new in each step, and
R the range of a chunk of m elements,

.. math::  y = H D x / \sqrt{m}, \qquad c_i = \mathrm{sgn}(y_i) \lfloor L |y_i| / R + u_i \rfloor \in \{-L \ldots L\},
           \qquad \hat{x} = D H (c\,R/L) / \sqrt{m}, \qquad R = \max_i |y_i|

Each y_i is sub-Gaussian with variance |x|²/m over the signs, so E[R²] <= 2(ln 2m + 1)|x|²/m, and a step of R/L costs
at most R²/(4L²) an element. E[x̂] = x with variance

.. math::  \omega = \min\Big(\frac{\ln 2m + 1}{2L^2},\ \frac{\sqrt{1 + (m-1)/L^2} - 1}{2}\Big)

and the second alone without rotation: 0.088 for 4 bits and chunks of 1024, against 1.84 unrotated (m = 2³¹ for "full").
Where omega < 1 it runs with error feedback, as the authors' code does. With ``aggregation="sum"`` the variance holds
against the worker with the largest range; "saturate" is biased, without a bound, and runs without memory.
Wire: `bits` an element and 4 bytes a chunk ("scatter": each way). "sum": 4 bytes a chunk, and 32-bit words of
floor(32/w) codes each, w = ceil(log2(2nL + 1)) for n workers. Rotation pads to whole chunks, whose codes travel too.

Departs from THC in the uniform grid in place of its table of levels, in ranges that cut nothing off (the authors' code
clips at a quantile), in signs that are new in each step, and in ranges of one's own in "scatter".

Li et al., THC, NSDI 2024, arXiv:2302.08545; partial rotation and saturation: Han et al., Beyond Throughput and
Compression Ratios, 2024, arXiv:2407.01378, section 3.2.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import ClassVar

from torch import Tensor

from gradwire.codecs.quantization._grid import ROUNDED
from gradwire.codecs.quantization._ranges import SharedScales
from gradwire.codecs.quantization._ring import saturated
from gradwire.core.codec import Combine, Context, Traits, register
from gradwire.core.exchange import Program
from gradwire.core.registry import Check
from gradwire.kernels.grid import Rule, bound


@register
@dataclass(frozen=True)
class THC(SharedScales):
    """Rotate chunks to spread outliers, then round at random to integers of a few bits.

    Args:
        bits: of each integer, 2 to 8. 4 is an eighth of float32.
        rotation: "partial" rotates each chunk, "full" the whole vector at once, "none" nothing.
        chunk: elements that share a range of 4 bytes, a power of two from 32. 1024 makes ranges cost 1 % of the bytes.
        aggregation: how integers are added up. "scatter" decodes and encodes again at the owner of a shard. "sum"
            agrees on the ranges first and adds the integers exactly, in wider fields. "saturate" adds them in a ring
            and clamps sums to `bits` bits: smallest, but good for about 4 workers at 4 bits.

    Example:
        >>> gradwire.codec("thc(bits=4, chunk=1024)").payload_bytes(1024)
        516
    """

    name: ClassVar[str] = "thc"
    paper: ClassVar[str] = "Li et al., THC, NSDI 2024, arXiv:2302.08545; Han et al., 2024, arXiv:2407.01378"
    variants: ClassVar[tuple[str, ...]] = (
        "thc(bits=6, rotation='full')",
        "thc(bits=3, rotation='none', chunk=64)",
        "thc(bits=4, chunk=64, aggregation='sum')",
        "thc(bits=4, chunk=64, aggregation='saturate')",
    )
    bits: int = 4
    rotation: str = "partial"
    chunk: int = 1024
    aggregation: str = "scatter"

    def __post_init__(self) -> None:
        check = Check(self.name)
        check.integer("bits", self.bits, 2, 8)
        check.one_of("rotation", self.rotation, ("partial", "full", "none"))
        check.integer("chunk", self.chunk, 32, 2**30)
        if self.chunk & (self.chunk - 1):
            check.fail("chunk", "a power of two", self.chunk)
        check.one_of("aggregation", self.aggregation, ("scatter", "sum", "saturate"))

    @property
    def plain_on_gpu(self) -> str:
        return "" if self.aggregation == "scatter" else "sums of codes have no kernel yet"

    @property
    def traits(self) -> Traits:
        combine = Combine.GATHER if self.aggregation == "scatter" else Combine.ROUNDS
        claims = replace(ROUNDED, combine=combine, ignores_shapes=True)
        if self.aggregation == "saturate":
            return claims
        rule = self.rule(2**31)
        omega = bound(rule)
        if self.rotates:
            omega = min(omega, (math.log(2 * rule.block) + 1) / (2 * rule.high**2))
        return replace(claims, unbiased=True, omega=omega, memory="error_feedback" if omega < 1 else "none")

    @property
    def alignment(self) -> int:
        return 32 if self.rotation == "full" else self.chunk

    def rule(self, numel: int) -> Rule:
        largest = int(2 ** (self.bits - 1) - 1)
        return Rule(self.run(numel) or self.chunk, largest, largest)

    def run(self, numel: int) -> int:
        if self.rotation == "none":
            return 0
        whole = 1 << (numel - 1).bit_length()
        return whole if self.rotation == "full" else min(self.chunk, whole)

    def added(self, codes: Tensor, rule: Rule, coded: int, ctx: Context) -> Program[Tensor]:
        if self.aggregation == "sum":
            return super().added(codes, rule, coded, ctx)
        return saturated(codes, self.bits, rule.high, coded, ctx)
