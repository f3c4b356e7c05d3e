r"""Natural compression: magnitudes are rounded at random to one of the two nearest powers of two.

.. math::  C(x) = \mathrm{sgn}(x)\, 2^{a}\, \xi, \qquad a = \lfloor \log_2 |x| \rfloor, \qquad
           \xi = 2 \text{ with probability } |x|/2^a - 1,\ \text{else } 1

On the bits of a float32: add 23 random bits to the pattern of the magnitude and drop the mantissa; the carry into the
exponent has just this probability.

- ``bits=9``: sign and exponent. E[C(x)] = x, with variance omega = 1/8, attained at |x| = 4/3 · 2^a. A denormal number
  becomes 0 or 2⁻¹²⁶, unbiased but not within omega. From 2¹²⁷ on the result is 2¹²⁷: 2¹²⁸ would be infinite.
- ``bits=8``: sign and a 7-bit code: 0, the powers from 2⁻¹⁰⁸ to 2¹⁷, and NaN. Magnitudes below 2⁻¹⁰⁸ become 0 and those
  above 2¹⁷ become 2¹⁷, so that E|C(x) − x|² <= |x|² for every x: delta = 0, neither unbiased nor homogeneous.

Infinities and NaN decode to NaN, element by element. Runs with error feedback, as in GRACE; omega < 1, so it is safe.
Wire: 9 bits: n exponents of one byte, then ceil(n/8) bytes of signs (1 is negative). 8 bits: n bytes, the sign on top.

Departs from the paper in the 8-bit form, whose range of exponents is not fixed there.

Horváth et al., Natural Compression for Distributed Deep Learning, 2019, arXiv:1905.10988.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from torch import Tensor

from gradwire.codecs.quantization._fused import FusedCodec
from gradwire.core.codec import Combine, Traits, register
from gradwire.core.exchange import Payload
from gradwire.core.random import Random, Stream
from gradwire.core.registry import Check
from gradwire.kernels import powers, rows
from gradwire.kernels.bitpack import packed_bytes
from gradwire.kernels.fused import Fused


@register
@dataclass(frozen=True)
class Natural(FusedCodec):
    """Round each element at random to one of the two nearest powers of two, right on average.

    Args:
        bits: of each element. 9 keeps the whole range of float32 and is unbiased; 8 keeps 2**-108 to 2**17.

    Example:
        >>> gradwire.codec("natural").payload_bytes(1000)
        1125
    """

    name: ClassVar[str] = "natural"
    family: ClassVar[str] = "quantization"
    paper: ClassVar[str] = "Horváth et al., Natural Compression, 2019, arXiv:1905.10988"
    plain_on_gpu: ClassVar[str] = ""
    variants: ClassVar[tuple[str, ...]] = ("natural(bits=8)",)
    bits: int = 9

    def __post_init__(self) -> None:
        Check(self.name).one_of("bits", self.bits, (9, 8))

    @property
    def traits(self) -> Traits:
        claims = Traits(combine=Combine.GATHER, memory="error_feedback", stochastic=True, elementwise=True)
        if self.bits == 9:
            return replace(claims, unbiased=True, omega=1 / 8)
        return replace(claims, delta=0.0, homogeneous=False)

    @property
    def fused(self) -> Fused:
        return powers.fused(self.bits)

    def noise(self, rng: Random) -> Stream:
        return rng.private("round")

    def encode(self, x: Tensor, rng: Random) -> Payload:
        return Payload(powers.encode(x, self.bits, self.noise(rng)))

    def decode(self, payload: Payload, numel: int, rng: Random) -> Tensor:
        return powers.decode(payload.data, self.bits, numel)

    def combine(self, payload: Payload, numel: int, rng: Random, groups: int = 1) -> Tensor:
        return rows.divide_(powers.decode_sum(payload.data, self.bits, numel, groups), payload.rows // groups)

    def payload_bytes(self, numel: int) -> int:
        return numel + (packed_bytes(numel, 1) if self.bits == 9 else 0)
