r"""Magnitudes rounded at random to one of the two nearest powers of two, in 9 or 8 bits.

23 random bits are added to the pattern of the magnitude, and the mantissa is dropped: the carry into the exponent has
the probability that leaves no bias. Element i of the flattened rows takes the upper bits of quick word i of the stream.

- 9 bits: `numel` bytes of exponent fields, at most 254, or 255 for what is not finite; then the signs, packed, 1 for
  negative.
- 8 bits: one byte an element with the sign on top. Code c from 1 to 126 is the exponent field c + 18, that is the power
  2^(c − 109); 0 is zero, and all magnitudes below code 1; 127 is what is not finite. Larger powers become 126.

What is not finite decodes to NaN.
"""

from __future__ import annotations

from torch import Tensor

from gradwire.core.random import Stream
from gradwire.kernels.backend import run
from gradwire.kernels.fused import Fused
from gradwire.kernels.powers import reference


def encode(x: Tensor, bits: int, noise: Stream) -> Tensor:
    """(rows, numel) float32 -> (rows, bytes) uint8."""
    return run(reference.encode, x, bits, noise)


def decode(data: Tensor, bits: int, numel: int) -> Tensor:
    """The values: (rows, numel) float32."""
    return run(reference.decode, data, bits, numel)


def decode_sum(data: Tensor, bits: int, numel: int, groups: int = 1) -> Tensor:
    """The values summed over the rows of each of `groups` equal groups, first to last: (groups, numel) float32."""
    return run(reference.decode_sum, data, bits, numel, groups)


def fused(bits: int) -> Fused:
    """The launches for such codes."""
    return Fused(__name__, bits)
