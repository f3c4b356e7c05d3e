"""Packing of w-bit codes, 1 <= w <= 32, into bytes, row by row.

Layout: the codes of a row follow each other without gaps, each with its least significant bit first, in a
stream of bits that fills each byte from its least significant bit on. A row of d codes takes ceil(d·w/8) bytes;
the bits behind the last code are zero.
"""

from __future__ import annotations

from torch import Tensor

from gradwire.kernels.backend import run
from gradwire.kernels.bitpack import reference
from gradwire.kernels.rows import check_bytes


def packed_bytes(numel: int, width: int) -> int:
    """Bytes of `numel` codes of `width` bits.

    Args:
        numel: how many codes.
        width: bits of a code.
    """
    return -(-numel * width // 8)


def pack(codes: Tensor, width: int) -> Tensor:
    """(rows, d) unsigned codes below 2^width, any integer dtype or bool -> (rows, ceil(d·width/8)) uint8.

    Args:
        codes: the codes.
        width: bits of a code, 1 to 32.

    Example:
        >>> import torch
        >>> packed = pack(torch.tensor([[1, 2, 3, 0, 1]]), 2)
        >>> packed, packed_bytes(5, 2)
        (tensor([[57,  1]], dtype=torch.uint8), 2)
        >>> unpack(packed, 2, 5)
        tensor([[1, 2, 3, 0, 1]], dtype=torch.uint8)
    """
    return run(reference.pack, codes, width)


def unpack(data: Tensor, width: int, numel: int) -> Tensor:
    """The inverse: (rows, bytes) uint8 -> (rows, numel) codes, uint8 up to 8 bits, else int64.

    Args:
        data: what `pack` made.
        width: bits of a code.
        numel: codes of a row.
    """
    check_bytes(data, packed_bytes(numel, width))
    return run(reference.unpack, data, width, numel)
