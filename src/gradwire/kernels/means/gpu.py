"""Two means a block on a GPU, in one launch each way. A program treats whole blocks."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from gradwire.core.random import Stream
from gradwire.core.window import Feedback, Flag, Window
from gradwire.kernels.bitpack.gpu import load_codes, load_float, store_codes, store_float
from gradwire.kernels.blockwise.gpu import (
    LARGEST,
    block_tile,
    blocks_in_tile,
    columns_of,
    folded,
    folding_warps,
    warps_of,
)
from gradwire.kernels.fused import rows_of
from gradwire.kernels.launch import launch
from gradwire.kernels.window.gpu import compensated, divided, keep, keep_there, put_checked, take_compensated, tile_of
from gradwire.kernels.window.places import memory_of, place_of


@triton.jit
def _mean_magnitude(members, others, count, shape: tl.constexpr):
    """Of the `count` members of each block, zero where the others stand; NaN if one of these is not finite.

    A sum of products with zero in one rounding: nothing but NaN changes.
    """
    total = tl.abs(folded(tl.fma(others, tl.zeros_like(others), members), shape[1], shape[2], shape[3]))
    return tl.div_rn(total, tl.where(count < 1, 1, count).to(tl.float32))


@triton.jit
def _encoded(a, live, blocks, numel, out, row, factor, shape: tl.constexpr):
    """Means and bits of the tile `a`, zero where there is nothing, to a row of the payload; returns what is lost."""
    block: tl.constexpr = shape[0]
    data, count, words = out[0] + row.to(tl.int64) * out[1], (numel + block - 1) // block, out[3]
    bits = (live & (a >= 0)).to(tl.int32)
    ones = tl.sum(bits, 1)
    zeros = tl.minimum(numel - blocks * block, block) - ones
    above = tl.maximum(a, 0.0, propagate_nan=tl.PropagateNan.ALL)
    below = tl.minimum(a, 0.0, propagate_nan=tl.PropagateNan.ALL)
    plus = _mean_magnitude(above, below, ones, shape)
    minus = _mean_magnitude(below, above, zeros, shape) * -1.0  # a difference from zero would lose its sign
    store_float(data, blocks, minus, blocks < count, words)
    store_float(data, count + blocks, plus, blocks < count, words)
    store_codes(data + 8 * count, bits, blocks, (numel + 7) // 8, words, block, shape[1], shape[2], 1)
    # not by the bits: the compiler would keep a condition for each element all the time
    return a - tl.where(a < 0, (minus * factor)[:, None], (plus * factor)[:, None])


@triton.jit
def _row(data, words, blocks, numel, shape: tl.constexpr):
    """The values of a tile of a row."""
    block: tl.constexpr = shape[0]
    count = (numel + block - 1) // block
    minus = load_float(data, blocks, blocks < count, words)
    plus = load_float(data, count + blocks, blocks < count, words)
    bits = load_codes(data + 8 * count, blocks, (numel + 7) // 8, words, block, shape[1], shape[2], 1)
    return tl.where(bits != 0, plus[:, None], minus[:, None])


@triton.jit
def _mean(received, group, blocks, numel, shape: tl.constexpr):
    """The mean of a tile over the rows of a group, first to last; or a row as it is."""
    data, stride, senders, words = received
    rows: tl.constexpr = shape[1]
    columns: tl.constexpr = shape[2]
    if senders is None:
        return _row(data + group.to(tl.int64) * stride, words, blocks, numel, shape)
    else:
        data += group.to(tl.int64) * senders * stride
        total = tl.zeros((rows, columns), tl.float32)
        for _ in range(senders):
            total += _row(data, words, blocks, numel, shape)
            data += stride
        return divided(total, senders)


@triton.jit
def _encode_from(place, memory, out, factor, shape: tl.constexpr):
    worker, shard, tile, row = tile_of(place)
    blocks, element, live = block_tile(tile, place[4], shape[0], shape[1], shape[2])
    size: tl.constexpr = shape[0] * shape[1]
    a, there = take_compensated(place, memory, worker, shard, tile, element, live, size)
    lost = _encoded(a, live, blocks, place[4], out, row, factor, shape)
    keep_there(lost, memory, worker, there)


@triton.jit
def _reduce_and_encode(received, memory, out, numel, tiles, factor, shape: tl.constexpr):
    group = tl.program_id(0) // tiles
    blocks, element, live = block_tile(tl.program_id(0) % tiles, numel, shape[0], shape[1], shape[2])
    mean = _mean(received, group, blocks, numel, shape)
    a = compensated(tl.where(live, mean * factor, 0.0), memory, group, element, live)
    lost = _encoded(a, live, blocks, numel, out, group, factor, shape)
    keep(lost, memory, group, element, live)


@triton.jit
def _mean_to(received, place, flag, factor, shape: tl.constexpr):
    """The means of the groups, shards of one vector, to where they belong."""
    worker, shard, tile, row = tile_of(place)
    blocks, element, live = block_tile(tile, place[4], shape[0], shape[1], shape[2])
    mean = _mean(received, row, blocks, place[4], shape)
    put_checked(mean * factor, place, worker, shard, tile, element, live, flag, shape[0] * shape[1])


def serves(block: int) -> bool:
    """Blocks fill whole bytes, and fit into a program."""
    return block % 8 == 0 and block <= LARGEST


def encode_from(
    block: int, source: Window, feedback: Feedback | None, shards: int, shard: int, noise: Stream | None, factor: float
) -> Tensor:
    device, rows, shape = source.buffer.device, source.rows * shards, _shape(block, shard)
    place, data = place_of(source, shards, shard, shape[0], shape[1]), _room(block, rows, shard, device)
    args = place, memory_of(feedback), rows_of(data, None, -(-shard // 8)), factor
    launch(_encode_from, rows * place.tiles, device, *args, warps=folding_warps(shape), shape=shape)
    return data


def mean_to(block: int, data: Tensor, senders: int | None, shard: int, target: Window, factor: float) -> Flag:
    device, groups, shape = target.buffer.device, data.shape[0] // (senders or 1), _shape(block, shard)
    place, flag = place_of(target, groups, shard, shape[0], shape[1]), torch.zeros((), device=device)
    launch(
        _mean_to,
        groups * place.tiles,
        device,
        rows_of(data, senders, -(-shard // 8)),
        place,
        flag,
        factor,
        shape=shape,
        warps=warps_of(shape),
    )
    return flag


def reduce_and_encode(
    block: int, data: Tensor, numel: int, feedback: Feedback | None, noise: Stream | None, groups: int, factor: float
) -> Tensor:
    device, shape, out = data.device, _shape(block, numel), _room(block, groups, numel, data.device)
    tiles, received = triton.cdiv(numel, shape[0] * shape[1]), rows_of(data, data.shape[0] // groups, -(-numel // 8))
    args = received, memory_of(feedback), rows_of(out, None, -(-numel // 8)), numel, tiles, factor
    launch(_reduce_and_encode, groups * tiles, device, *args, warps=folding_warps(shape), shape=shape)
    return out


def _room(block: int, rows: int, numel: int, device: torch.device) -> Tensor:
    return torch.empty((rows, 8 * -(-numel // block) + -(-numel // 8)), dtype=torch.uint8, device=device)


def _shape(block: int, numel: int) -> tuple[int, ...]:
    """What kernels are compiled for: block, rows, columns and their logarithm."""
    columns = columns_of(block)
    return block, blocks_in_tile(block, numel), columns, columns.bit_length() - 1
