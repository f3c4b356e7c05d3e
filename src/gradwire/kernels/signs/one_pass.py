"""Signs in one pass over memory, compiled: gradients are read, and results written, where they lie."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from gradwire.core.window import Feedback, Flag, Window, nonfinite_flag
from gradwire.kernels.bitpack.cpu import TILE, array, flat, unit, unpack_codes
from gradwire.kernels.blockwise.cpu import average, fold_room
from gradwire.kernels.jit import jit
from gradwire.kernels.parallel import split_rows
from gradwire.kernels.rows import join
from gradwire.kernels.signs.cpu import _add_rows, _choose, _pack_signs, _scale
from gradwire.kernels.signs.reference import split
from gradwire.kernels.window.cpu import Memory, Spans, each_worker, load, memory_of, spans_of, store
from gradwire.kernels.workspace import room


@jit
def _encode_scaled_from(
    x: np.ndarray,
    spans: Spans,
    memory: Memory,
    out: np.ndarray,
    factor: Any,
    shard: int,
    block: int,
    scales: np.ndarray,
    packed: np.ndarray,
    size: int,
    first: int,
    last: int,
) -> None:
    """One read of the gradient and of its error: scales, signs and the new error, `size` elements at a time."""
    parts = (shard + size - 1) // size
    tile, bits, room = np.empty(size, np.float32), np.empty(TILE, np.uint8), fold_room(min(block, shard))
    for i in range(first, last):
        row, start = i // parts, i % parts * size
        position, a = row * shard + start, tile[: min(size, shard - start)]
        load(x, spans, memory, position, a)
        scale = scales[row, start // block : (start + a.size + block - 1) // block]
        _scale(a, block, room, scale)
        _pack_signs(a, bits, packed[row, start // 8 :])
        if position < out.size:
            new = out[position : position + a.size]
            for j in range(scale.size):
                run, y, high = a[j * block : (j + 1) * block], new[j * block : (j + 1) * block], scale[j] * factor
                for k in range(y.size):
                    y[k] = run[k] - (high if run[k] >= 0 else -high)


@jit
def _decode_to(
    data: np.ndarray,
    stride: int,
    minus: np.ndarray,
    plus: np.ndarray,
    block: int,
    shard: int,
    factor: Any,
    x: np.ndarray,
    spans: Spans,
    first: int,
    last: int,
) -> None:
    """The values of the rows, shards of one vector, to where they belong."""
    parts, bits, values = (shard + TILE - 1) // TILE, np.empty(TILE, np.uint8), np.empty(TILE, np.float32)
    for tile in range(first, last):
        row, start = tile // parts, tile % parts * TILE
        count = min(TILE, shard - start)
        unpack_codes(data[row * stride + start // 8 :], 1, bits[:count])
        _choose(bits[:count], minus[row], plus[row], start, block, values[:count])
        store(values[:count], factor, x, spans, row * shard + start)


@jit
def _combine_to(
    data: np.ndarray,
    stride: int,
    minus: np.ndarray,
    plus: np.ndarray,
    block: int,
    numel: int,
    factor: Any,
    x: np.ndarray,
    spans: Spans,
    first: int,
    last: int,
) -> None:
    """The mean of the rows to where it belongs."""
    bits, values, nothing = np.empty(TILE, np.uint8), np.empty(TILE, np.float32), np.empty(0, np.float32)
    for start in range(first * TILE, min(last * TILE, numel), TILE):
        part = values[: min(TILE, numel - start)]
        _add_rows(data, stride, minus, plus, start, block, bits, part)
        average(part, plus.shape[0], np.float32(1), nothing, np.float32(1))
        store(part, factor, x, spans, start)


@jit
def _reduce_and_encode(
    data: np.ndarray,
    stride: int,
    minus: np.ndarray,
    plus: np.ndarray,
    block: int,
    carry: np.ndarray,
    decay: Any,
    packed: np.ndarray,
    scales: np.ndarray,
    lost: np.ndarray,
    numel: int,
    size: int,
    first: int,
    last: int,
) -> None:
    count = plus.shape[0]
    bits, fold, room = (
        np.empty(TILE, np.uint8),
        fold_room(min(block, numel)),
        np.empty(0 if lost.size else size, np.float32),
    )
    for begin in range(first * size, min(last * size, numel), size):
        end = min(begin + size, numel)
        mean = lost[begin:end] if lost.size else room[: end - begin]
        for start in range(0, mean.size, TILE):
            part = mean[start : start + TILE]
            _add_rows(data, stride, minus, plus, begin + start, block, bits, part)
            kept = carry[begin + start : begin + start + part.size]
            average(part, count, np.float32(1), kept, decay)
        scale = scales[begin // block : (end + block - 1) // block]
        _scale(mean, block, fold, scale)
        _pack_signs(mean, bits, packed[begin // 8 :])
        if lost.size:
            for j in range(scale.size):
                run, high = mean[j * block : (j + 1) * block], scale[j]
                for k in range(run.size):
                    run[k] -= high if run[k] >= 0 else -high


def reduce_and_encode(
    data: Tensor, block: int, numel: int, feedback: Feedback | None, groups: int, owner: str
) -> Tensor:
    worth, received = split(data, block, numel)
    packed = torch.empty((groups, -(-numel // 8)), dtype=torch.uint8)
    scales, size = torch.empty((groups, -(-numel // block)), dtype=torch.float32), unit(block, numel)
    for g, parts in enumerate(zip(*(t.chunk(groups) for t in (received, -worth, worth)), strict=True)):
        (carry, decay, _), lost = memory_of(feedback, g)
        results = packed[g].numpy(), scales[g].numpy(), lost
        common = *flat(parts[0]), array(parts[1]), array(parts[2]), block, carry, decay, *results, numel, size
        _reduce_group(common, numel, size)
    return join(scales, packed, owner=owner)


def _reduce_group(common: Any, numel: int, size: int) -> None:
    split_rows(lambda first, last: _reduce_and_encode(*common, first, last), 1, numel, size)


def encode_scaled_from(
    source: Window, feedback: Feedback | None, shards: int, shard: int, block: int, factor: float, owner: str
) -> Tensor:
    rows, size = source.rows * shards, unit(block, shard)
    scales = room(owner, "scales", (rows, -(-shard // block)), torch.float32)
    packed = room(owner, "signs", (rows, -(-shard // 8)), torch.uint8)

    def work(row: int, *worker: Any) -> Any:
        mine = slice(row * shards, (row + 1) * shards)
        common = *worker, np.float32(factor), shard, block, scales[mine].numpy(), packed[mine].numpy(), size
        return lambda first, last: _encode_scaled_from(*common, first, last)

    each_worker(source, feedback, shards, shard, size, work)
    return join(scales, packed, owner=owner)


def decode_scaled_to(data: Tensor, block: int, shard: int, target: Window, factor: float) -> Flag:
    scales, bits = split(data, block, shard)
    decode_to(bits, -scales, scales, block, shard, target, factor)
    return nonfinite_flag(scales)


def combine_scaled_to(data: Tensor, block: int, target: Window, factor: float) -> Flag:
    scales, bits = split(data, block, target.numel)
    combine_to(bits, -scales, scales, block, target, factor)
    return nonfinite_flag(scales)


def decode_to(data: Tensor, minus: Tensor, plus: Tensor, block: int, shard: int, target: Window, factor: float) -> None:
    values = *flat(data), array(minus), array(plus), block, shard, np.float32(factor)
    common = *values, target.buffer[0].numpy(), spans_of(target)
    split_rows(lambda first, last: _decode_to(*common, first, last), data.shape[0], shard, TILE)


def combine_to(data: Tensor, minus: Tensor, plus: Tensor, block: int, target: Window, factor: float) -> None:
    values = *flat(data), array(minus), array(plus), block, target.numel, np.float32(factor)
    common = *values, target.buffer[0].numpy(), spans_of(target)
    split_rows(lambda first, last: _combine_to(*common, first, last), 1, target.numel, TILE)
