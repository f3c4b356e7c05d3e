"""Integer codes side by side in 32-bit words, with room to be summed: an all-reduce of words is one of codes.

A word holds floor(32/width) fields of `width` bits, the first in its lowest bits. As long as the sum of the workers'
codes stays below 2^width, no field spills into its neighbour, and the summed words (int32, wrapping) unpack to the
summed codes.
"""

from __future__ import annotations

from torch import Tensor

from gradwire.kernels.backend import run
from gradwire.kernels.fields import reference


def field_width(largest: int) -> int:
    """Bits for sums up to `largest`."""
    return max(1, largest.bit_length())


def field_words(numel: int, width: int) -> int:
    """32-bit words of `numel` fields."""
    return -(-numel // (32 // width))


def pack(codes: Tensor, width: int) -> Tensor:
    """(rows, d) codes below 2^width -> (rows, words) int32."""
    return run(reference.pack, codes, width)


def unpack(words: Tensor, width: int, numel: int) -> Tensor:
    """The inverse: (rows, words) int32 -> (rows, numel) int64."""
    return run(reference.unpack, words, width, numel)
