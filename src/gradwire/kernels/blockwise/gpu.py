"""Blocks on a GPU: a program treats a tile of whole blocks, and finds their statistics, for other kernels or by itself.

A tile is (rows, columns): a block a row, of which the first `block` columns count.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

from gradwire.core.window import Feedback, Window
from gradwire.kernels.launch import launch
from gradwire.kernels.window.gpu import keep_there, take_compensated, tile_of
from gradwire.kernels.window.places import memory_of, place_of

TILE = 1024  # elements of a program, if a block is no longer; a thread holds few, so that many threads run
HELD = 2048  # elements of a warp that finds a sum by halves: most halves are then added in its threads' registers
LARGEST = 8192  # elements of a block that a program can hold
LARGE = tl.constexpr(4.0)  # scales are below, or infinite


def columns_of(block: int) -> int:
    """Columns of a tile of such blocks."""
    return max(8, int(triton.next_power_of_2(block)))


def warps_of(shape: Sequence[int], each: int = 256) -> int:
    """Of a program for a tile of the form (block, rows, columns, …), for `each` so many elements, but not a few."""
    return max(4, min(16, shape[1] * shape[2] // each))


def folding_warps(shape: Sequence[int]) -> int:
    """Of a program that adds blocks up by halves: one warp holds up to `HELD` elements, and waits for no other."""
    return max(1, shape[1] * shape[2] // HELD) if shape[2] > 128 else warps_of(shape)


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
def flat_tile(tile, numel, block: tl.constexpr, rows: tl.constexpr, columns: tl.constexpr):
    """`block_tile`, elements in one row: only then the compiler loads from tables where the elements are."""
    blocks, element, live = block_tile(tile, numel, block, rows, columns)
    if block == columns:  # the compiler sees which are neighbours
        element = tile * (rows * columns) + tl.arange(0, rows * columns)
        return blocks, element, element < numel
    else:
        return blocks, tl.reshape(element, (rows * columns,)), tl.reshape(live, (rows * columns,))


@triton.jit
def spread(x, rows: tl.constexpr, columns: tl.constexpr):
    """A number of each block, for each element of a flat tile."""
    return tl.reshape(tl.broadcast_to(x[:, None], (rows, columns)), (rows * columns,))


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


@triton.jit
def shares(a, scale):
    """``a / scale`` of each row, rounded once; for magnitudes up to the scale. Below 2⁻⁷⁵ only about.

    A product with the inverse, and twice what it lacks: the second time starts within half a unit of the last place,
    from where the rounding is the quotient's. The scale is brought near to one first, by a power of two, so that what
    is lacking does not underflow.
    """
    exponent = (scale.to(tl.int32, bitcast=True) >> 23) & 255
    power = tl.minimum(tl.maximum(254 - exponent, 1), 253) << 23
    unit = power.to(tl.float32, bitcast=True)
    scale = scale * unit
    inverse = tl.div_rn(tl.full(scale.shape, 1.0, tl.float32), scale)[:, None] + tl.zeros_like(a)
    minus = tl.where(scale > LARGE, 0.0, scale * -1.0)[:, None] + tl.zeros_like(a)  # shares of infinity are zero
    a = a * unit[:, None]
    found = a * inverse
    for _ in tl.static_range(2):
        found = tl.fma(tl.fma(found, minus, a), inverse, found)
    return found


@triton.jit
def _square_sums(place, memory, sums, stride, block: tl.constexpr, rows: tl.constexpr, shape: tl.constexpr):
    columns: tl.constexpr = shape[0]
    worker, shard, tile, _ = tile_of(place)
    blocks, element, live = block_tile(tile, place[4], block, rows, columns)
    a, there = take_compensated(place, memory, worker, shard, tile, element, live, block * rows)
    keep_there(a, memory, worker, there)
    found = folded(a * a, rows, columns, shape[1])  # a is zero where there is nothing
    tl.store(sums + worker.to(tl.int64) * stride + blocks, found, mask=blocks * block < place[4])


def serves(block: int) -> bool:
    """Whether a program can hold such blocks."""
    return block <= LARGEST


def square_sum_from(source: Window, feedback: Feedback | None, block: int) -> Tensor:
    numel, device, columns = source.numel, source.buffer.device, columns_of(block)
    rows = blocks_in_tile(block, numel)
    sums = torch.empty((source.rows, -(-numel // block)), device=device)
    place, shape = place_of(source, 1, numel, block, rows), (columns, columns.bit_length() - 1)
    args = place, memory_of(feedback), sums, sums.stride(0)
    warps = folding_warps((block, rows, columns))
    launch(_square_sums, source.rows * place.tiles, device, *args, warps=warps, block=block, rows=rows, shape=shape)
    return sums
