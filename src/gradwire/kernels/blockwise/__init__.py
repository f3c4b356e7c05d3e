"""Statistics of each block of a row: (rows, numel) float32 -> (rows, ceil(numel/block)) float32.

Sums are taken in a fixed order, so that every device and kernel gives the same bits: a block is padded with zeros to a
power of two, and its upper half is added to its lower half until one number is left. The last block may be shorter.
"""

from __future__ import annotations

from torch import Tensor

from gradwire.kernels.backend import compiled
from gradwire.kernels.blockwise import reference


def abs_max(x: Tensor, block: int) -> Tensor:
    """The largest magnitude of each block; NaN if one of them is."""
    if compiled(x):
        from gradwire.kernels.blockwise import cpu

        return cpu.abs_max(x, block)
    return reference.abs_max(x, block)


def abs_sum(x: Tensor, block: int) -> Tensor:
    """The sum of magnitudes of each block."""
    if compiled(x):
        from gradwire.kernels.blockwise import cpu

        return cpu.abs_sum(x, block)
    return reference.abs_sum(x, block)


def square_sum(x: Tensor, block: int) -> Tensor:
    """The sum of squares of each block."""
    if compiled(x):
        from gradwire.kernels.blockwise import cpu

        return cpu.square_sum(x, block)
    return reference.square_sum(x, block)
