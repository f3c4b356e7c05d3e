"""Five three-valued codes in a byte: 1.6 bits each.

Layout: byte j of a row is 81·c₀ + 27·c₁ + 9·c₂ + 3·c₃ + c₄ of the codes 5j … 5j+4, each 0, 1 or 2, so bytes stay below
243. Behind the end of a row stands code 1, which is the zero of {−1, 0, 1}.
"""

from __future__ import annotations

from torch import Tensor

from gradwire.kernels.backend import run
from gradwire.kernels.rows import check_bytes
from gradwire.kernels.trits import reference


def trit_bytes(numel: int) -> int:
    """Bytes of `numel` codes."""
    return -(-numel // 5)


def pack(codes: Tensor) -> Tensor:
    """(rows, d) codes in {0, 1, 2}, any integer dtype -> (rows, ceil(d/5)) uint8."""
    return run(reference.pack, codes)


def unpack(data: Tensor, numel: int) -> Tensor:
    """The inverse: (rows, bytes) uint8 -> (rows, numel) uint8."""
    check_bytes(data, trit_bytes(numel))
    return run(reference.unpack, data, numel)
