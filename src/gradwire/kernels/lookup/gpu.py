"""Nearest entries on a GPU, in one launch each way, by the guesses of the CPU's kernel. A program treats whole blocks.

The scale of a block is its largest magnitude. Payloads are as they travel: the scales, then a byte an element.
"""

from __future__ import annotations

from bisect import bisect_left
from functools import lru_cache
from itertools import groupby
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from gradwire.core.random import Stream
from gradwire.core.window import Feedback, Flag, Window
from gradwire.kernels.bitpack.gpu import bytes_at, load_float, store_float
from gradwire.kernels.blockwise.gpu import (
    LARGEST,
    abs_max,
    blocks_in_tile,
    columns_of,
    flat_tile,
    shares,
    spread,
    warps_of,
)
from gradwire.kernels.fused import rows_of
from gradwire.kernels.launch import launch
from gradwire.kernels.lookup.reference import Shares
from gradwire.kernels.window.gpu import compensated, divided, keep, keep_there, put_checked, take_compensated, tile_of
from gradwire.kernels.window.places import memory_of, place_of

SHIFT = tl.constexpr(16)  # of a pattern: what is left begins it
EACH = 512  # elements of a warp
STOP = 0x7FFFFFFF  # no pattern of a magnitude is above


class Tables(NamedTuple):
    """Where to look. Patterns of numbers from 0 on are ordered as the numbers are, NaN above all."""

    values: Tensor  # of codes
    ends: Tensor  # patterns of the midpoints, and a stop
    guesses: Tensor  # for each beginning of a pattern, how many midpoints lie below all patterns that begin so
    first: int  # beginning that has a guess, and the last one; all others have the guess of the nearest
    last: int


@triton.jit
def _nearest(a, scale, tables, shape: tl.constexpr):
    """The codes of a flat tile, for scales that are not zero."""
    _, ends, guesses, first, last = tables
    steps: tl.constexpr = shape[3]
    share = shares(tl.reshape(tl.abs(a), (shape[1], shape[2])), scale)
    share = tl.reshape(share, a.shape).to(tl.int32, bitcast=True) & 0x7FFFFFFF
    begin = tl.minimum(tl.maximum(share >> SHIFT, first), last)
    k = tl.load(guesses + (begin - first)).to(tl.int32)
    for _ in tl.static_range(steps):
        k += (tl.load(ends + k) < share).to(tl.int32)
    return tl.where((a < 0) & (k > 0), tl.minimum(k, 127) + 128, k)


@triton.jit
def _encoded(a, live, blocks, element, numel, tables, out, row, factor, shape: tl.constexpr):
    """Scales and codes of the flat tile `a`, to a row of the payload; returns what is lost."""
    data, words = out[0] + row.to(tl.int64) * out[1], out[3]
    largest = abs_max(tl.reshape(a, (shape[1], shape[2])))
    store_float(data, blocks, largest, blocks * shape[0] < numel, words)
    code = _nearest(a, tl.where(largest > 0, largest, 1.0), tables, shape)
    at, there = bytes_at(data + (numel + shape[0] - 1) // shape[0] * 4, element, live, words)
    tl.store(at, code.to(tl.uint8), mask=there)
    return a - tl.load(tables[0] + code) * spread(largest, shape[1], shape[2]) * factor


@triton.jit
def _row(data, words, blocks, element, live, numel, tables, shape: tl.constexpr):
    """The values of a tile of a row."""
    scale = load_float(data, blocks, blocks * shape[0] < numel, words)
    at, there = bytes_at(data + (numel + shape[0] - 1) // shape[0] * 4, element, live, words)
    code = tl.load(at, mask=there, other=0).to(tl.int32)
    return tl.load(tables[0] + code) * spread(scale, shape[1], shape[2])


@triton.jit
def _mean(received, group, blocks, element, live, numel, tables, shape: tl.constexpr):
    """The mean of a tile over the rows of a group, first to last; or a row as it is."""
    data, stride, senders, words = received
    if senders is None:
        return _row(data + group.to(tl.int64) * stride, words, blocks, element, live, numel, tables, shape)
    else:
        data += group.to(tl.int64) * senders * stride
        total = tl.zeros_like(element).to(tl.float32)
        for _ in range(senders):
            total += _row(data, words, blocks, element, live, numel, tables, shape)
            data += stride
        return divided(total, senders)


@triton.jit
def _encode_from(place, memory, tables, out, factor, shape: tl.constexpr):
    worker, shard, tile, row = tile_of(place)
    blocks, element, live = flat_tile(tile, place[4], shape[0], shape[1], shape[2])
    size: tl.constexpr = shape[0] * shape[1]
    a, there = take_compensated(place, memory, worker, shard, tile, element, live, size)
    lost = _encoded(a, live, blocks, element, place[4], tables, out, row, factor, shape)
    keep_there(lost, memory, worker, there)


@triton.jit
def _reduce_and_encode(received, memory, tables, out, numel, tiles, factor, shape: tl.constexpr):
    group = tl.program_id(0) // tiles
    blocks, element, live = flat_tile(tl.program_id(0) % tiles, numel, shape[0], shape[1], shape[2])
    mean = _mean(received, group, blocks, element, live, numel, tables, shape)
    a = compensated(tl.where(live, mean * factor, 0.0), memory, group, element, live)
    lost = _encoded(a, live, blocks, element, numel, tables, out, group, factor, shape)
    keep(lost, memory, group, element, live)


@triton.jit
def _mean_to(received, tables, place, flag, factor, shape: tl.constexpr):
    """The means of the groups, shards of one vector, to where they belong."""
    worker, shard, tile, row = tile_of(place)
    blocks, element, live = flat_tile(tile, place[4], shape[0], shape[1], shape[2])
    mean = _mean(received, row, blocks, element, live, place[4], tables, shape)
    put_checked(mean * factor, place, worker, shard, tile, element, live, flag, shape[0] * shape[1])


def serves(form: Shares) -> bool:
    """Blocks fit into a program; shares too small to be rounded for certain, see `shares`, have the first code."""
    return form.block <= LARGEST and all(midpoint > 2.0**-74 for midpoint in form.midpoints[:1])


def encode_from(
    form: Shares,
    source: Window,
    feedback: Feedback | None,
    shards: int,
    shard: int,
    noise: Stream | None,
    factor: float,
) -> Tensor:
    device, rows, shape = source.buffer.device, source.rows * shards, _shape(form, shard)
    place, data = place_of(source, shards, shard, shape[0], shape[1]), _room(form, rows, shard, device)
    args = place, memory_of(feedback), _tables(form, device), rows_of(data, None, shard, form.block), factor
    launch(_encode_from, rows * place.tiles, device, *args, warps=warps_of(shape, EACH), shape=shape)
    return data


def mean_to(form: Shares, data: Tensor, senders: int | None, shard: int, target: Window, factor: float) -> Flag:
    device, groups, shape = target.buffer.device, data.shape[0] // (senders or 1), _shape(form, shard)
    place, flag = place_of(target, groups, shard, shape[0], shape[1]), torch.zeros((), device=device)
    args = rows_of(data, senders, shard, form.block), _tables(form, device), place, flag, factor
    launch(_mean_to, groups * place.tiles, device, *args, warps=warps_of(shape, EACH), shape=shape)
    return flag


def reduce_and_encode(
    form: Shares, data: Tensor, numel: int, feedback: Feedback | None, noise: Stream | None, groups: int, factor: float
) -> Tensor:
    device, shape, out = data.device, _shape(form, numel), _room(form, groups, numel, data.device)
    tiles, received = triton.cdiv(numel, shape[0] * shape[1]), rows_of(data, data.shape[0] // groups, numel, form.block)
    args = (
        received,
        memory_of(feedback),
        _tables(form, device),
        rows_of(out, None, numel, form.block),
        numel,
        tiles,
        factor,
    )
    launch(_reduce_and_encode, groups * tiles, device, *args, warps=warps_of(shape, EACH), shape=shape)
    return out


def _room(form: Shares, rows: int, numel: int, device: torch.device) -> Tensor:
    return torch.empty((rows, 4 * -(-numel // form.block) + numel), dtype=torch.uint8, device=device)


def _shape(form: Shares, numel: int) -> tuple[int, ...]:
    """What kernels are compiled for: block, rows, columns, and how many midpoints begin alike."""
    return form.block, blocks_in_tile(form.block, numel), columns_of(form.block), _alike(form.midpoints)


@lru_cache
def _tables(form: Shares, device: torch.device) -> Tables:
    patterns = _patterns(form.midpoints)
    first, last = (patterns[0] >> 16, (patterns[-1] >> 16) + 1) if patterns else (0, 0)
    guesses = [bisect_left(patterns, begin << 16) for begin in range(first, last + 1)]
    values, ends = torch.tensor(form.table, device=device), torch.tensor([*patterns, STOP], device=device)
    return Tables(values, ends.to(torch.int32), torch.tensor(guesses, dtype=torch.uint8, device=device), first, last)


@lru_cache
def _alike(midpoints: tuple[float, ...]) -> int:
    """How many midpoints begin alike, at most."""
    beginnings = (pattern >> 16 for pattern in _patterns(midpoints))
    return max((sum(1 for _ in same) for _, same in groupby(beginnings)), default=0)


@lru_cache
def _patterns(midpoints: tuple[float, ...]) -> list[int]:
    found: list[int] = torch.tensor(midpoints, dtype=torch.float32).view(torch.int32).tolist()
    return found
