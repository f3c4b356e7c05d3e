"""Blocks inside other kernels: a program treats a tile of whole blocks, and finds their statistics.

A tile is (rows, columns): a block a row, of which the first `block` columns count.
"""

from __future__ import annotations

import triton
import triton.language as tl

TILE = 4096  # elements of a program
LARGEST = 8192  # elements of a block that a program can hold


def columns_of(block: int) -> int:
    """Columns of a tile of such blocks."""
    return max(8, int(triton.next_power_of_2(block)))


def blocks_in_tile(block: int, numel: int) -> int:
    """Blocks of a tile of rows of `numel` elements."""
    return max(1, min(int(triton.next_power_of_2(-(-numel // block))), TILE // columns_of(block)))


@triton.jit
def block_tile(tile, numel, block: tl.constexpr, rows: tl.constexpr, columns: tl.constexpr):
    """The blocks of a tile of a row of `numel` elements, their elements, and which of them there are."""
    blocks = tile * rows + tl.arange(0, rows)
    column = tl.arange(0, columns)
    element = blocks[:, None] * block + column[None, :]
    return blocks, element, (column < block)[None, :] & (element < numel)


@triton.jit
def abs_max(x):
    """The largest magnitude of each row; NaN if there is one: its bits, less the sign, are larger than all others."""
    bits = x.to(tl.int32, bitcast=True) & 0x7FFFFFFF
    return tl.max(bits, 1).to(tl.float32, bitcast=True)


@triton.jit
def folded(x, rows: tl.constexpr, columns: tl.constexpr, levels: tl.constexpr):
    """The sum of each row of 2**levels columns, by adding its second half to its first again and again."""
    for i in tl.static_range(levels):
        x = tl.sum(tl.reshape(x, (rows, 2, columns >> (i + 1))), 1)
    return tl.reshape(x, (rows,))
