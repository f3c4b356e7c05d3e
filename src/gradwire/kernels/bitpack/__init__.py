"""Packing of w-bit codes, 1 <= w <= 32, into bytes, row by row.

Layout: the codes of a row follow each other without gaps, each with its least significant bit first, in a
stream of bits that fills each byte from its least significant bit on. A row of d codes takes ceil(d·w/8) bytes;
the bits behind the last code are zero.
"""

from __future__ import annotations

from torch import Tensor

from gradwire.kernels.backend import run
from gradwire.kernels.bitpack import reference


def packed_bytes(numel: int, width: int) -> int:
    """Bytes of `numel` codes of `width` bits."""
    return -(-numel * width // 8)


def pack(codes: Tensor, width: int) -> Tensor:
    """(rows, d) unsigned codes below 2^width, any integer dtype or bool -> (rows, ceil(d·width/8)) uint8."""
    return run(reference.pack, codes, width)


def unpack(data: Tensor, width: int, numel: int) -> Tensor:
    """The inverse: (rows, bytes) uint8 -> (rows, numel) codes, uint8 up to 8 bits, else int64."""
    return run(reference.unpack, data, width, numel)
