"""Rows of values and their indices of which each has a number of its own, as they travel, on a GPU only.

A row is its count k in 4 bytes, k values, and k indices in the shortest coding; no bytes where k = 0. The count changes
from row to row and from step to step, so kernels find it, and the coding that follows from it, on the device: they are
compiled once, and all rows are one launch.
"""

from __future__ import annotations

from torch import Tensor

from gradwire.kernels.backend import fast
from gradwire.kernels.indices import index_bytes


def row_bytes(numel: int, count: int, value_bits: int) -> int:
    """Bytes of a row of `count` entries."""
    return 4 + count * value_bits // 8 + index_bytes(numel, count) if count else 0


def read(data: Tensor, lengths: Tensor, numel: int, value_bits: int) -> tuple[Tensor, Tensor]:
    """(rows, bytes) uint8, of which `lengths`, int64 on the CPU, are meant -> values and ascending indices.

    Both are (rows, most), float32 and int32: places `numel`, behind the end, fill up, and are nobody's. A row whose
    count does not fit its length has no entries.
    """
    found: tuple[Tensor, Tensor] = fast(__name__, "read", data)(data, lengths, numel, value_bits)
    return found
