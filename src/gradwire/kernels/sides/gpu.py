"""Positive and negative elements on a GPU: `_part` writes them apart, a selection finds the largest of both at once,
`_tidy` puts empty places last, `_fold` adds up what is left, and `_settle` takes the means off the new error.

The host waits for nothing.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from gradwire.core.window import Feedback, Window
from gradwire.kernels.blockwise.gpu import folded
from gradwire.kernels.launch import launch
from gradwire.kernels.select.gpu import sent_of, top_from
from gradwire.kernels.window.gpu import compensated, keep, position_of, take, tile_of
from gradwire.kernels.window.places import memory_of, place_of

TILE = 1024  # elements of a program
CHUNK = 1024  # entries of a program
DEEP = 12  # levels of a sum that one program can fold
LEVELS = 7  # that are folded at a time otherwise
LANES = 32  # sums of a program then


class Lines(NamedTuple):
    """Entries of all lines."""

    values: Tensor
    where: Tensor
    k: int
    bad: Tensor  # whether a row is not finite


@triton.jit
def _part(place, memory, sides, bad, size: tl.constexpr):
    """Compensate, and keep that; magnitudes of positive and of negative elements, each zero for the others."""
    worker, shard, tile, row = tile_of(place)
    element = tile * size + tl.arange(0, size)
    live = element < place[4]
    a, inside = take(place, worker, shard, tile, element, live, size)
    position = position_of(place, shard, element)
    a = tl.where(inside, compensated(a, memory, worker, position, inside), 0.0)
    keep(a, memory, worker, position, inside)
    to = sides + 2 * row.to(tl.int64) * place[4]
    tl.store(to + element, tl.where(a > 0, a, 0.0), mask=live)
    tl.store(to + place[4] + element, tl.where(a < 0, a * -1.0, 0.0), mask=live)
    wrong = tl.max((a * 0 != 0).to(tl.int32), 0)
    tl.store(bad + row, 1, mask=wrong > 0)


@triton.jit
def _entries(lines, line, first, size: tl.constexpr):
    """Values and places of a line, and which there are; the first elements, all NaN, of a row that is not finite."""
    values, where, k, bad = lines
    i = first + tl.arange(0, size)
    live = i < k
    value = tl.load(values + line.to(tl.int64) * k + i, mask=live, other=0.0)
    at = tl.load(where + line.to(tl.int64) * k + i, mask=live, other=0)
    wrong = tl.load(bad + line // 2) > 0
    value = tl.where(wrong, float("nan"), value)
    return i, live, value, tl.where(wrong, i.to(tl.int64), at), live & ((value <= 0) == 0)


@triton.jit
def _count(lines, counts, chunks, size: tl.constexpr):
    """How many entries of each chunk are not empty."""
    first = tl.program_id(0) % chunks * size
    _i, _live, _value, _at, there = _entries(lines, tl.program_id(0) // chunks, first, size)
    tl.store(counts + tl.program_id(0), tl.sum(there.to(tl.int32), 0))


@triton.jit
def _tidy(lines, counts, chunks, numel, places, shares, size: tl.constexpr):
    """Places, the empty ones last; and each value's share of the mean."""
    line = tl.program_id(0) // chunks
    this = tl.program_id(0) % chunks
    total = this * 0
    before = this * 0
    for start in range(0, chunks, size):
        other = start + tl.arange(0, size)
        count = tl.load(counts + line * chunks + other, mask=other < chunks, other=0)
        total += tl.sum(count, 0)
        before += tl.sum(tl.where(other < this, count, 0), 0)
    i, live, value, at, there = _entries(lines, line, this * size, size)
    one = there.to(tl.int32)
    rank = before + tl.cumsum(one, 0) - one
    slot = tl.where(there, rank, total + i - rank)
    to = line.to(tl.int64) * lines[2]
    tl.store(places + to + slot, tl.where(there, at, (numel + i).to(tl.int64)), mask=live)
    many = tl.maximum(total, 1).to(tl.float32)
    tl.store(shares + to + i, tl.div_rn(value, tl.zeros_like(value) + many), mask=live)


@triton.jit
def _fold(x, have, out, many, programs, last: tl.constexpr, lanes: tl.constexpr, levels: tl.constexpr):
    """Fold `levels` times: `many` sums of a line are left. The last one of a negative line is its mean, negative."""
    columns: tl.constexpr = 1 << levels
    line = (tl.program_id(0) // programs).to(tl.int64)
    lane = tl.program_id(0) % programs * lanes + tl.arange(0, lanes)
    at = lane[:, None] + tl.arange(0, columns)[None, :] * many
    found = tl.load(x + line * have + at, mask=(lane < many)[:, None] & (at < have), other=0.0)
    found = folded(found, lanes, columns, levels)
    if last:
        found = tl.where((line & 1) == 0, found, found * -1.0)
    tl.store(out + line * many + lane, found, mask=lane < many)


@triton.jit
def _settle(places, means, k, place, sent, chunks, size: tl.constexpr):
    """Take the mean of a line off the elements that it stands for."""
    out, stride, factor, momentum, momentum_stride = sent
    line = tl.program_id(0) // chunks
    row = line // 2
    i = tl.program_id(0) % chunks * size + tl.arange(0, size)
    at = tl.load(places + line.to(tl.int64) * k + i, mask=i < k, other=place[4])
    position = row % place[3] * place[4] + at
    there = (at < place[4]) & (position < place[2])
    own = tl.where(there, tl.load(means + line) * factor, 0.0)
    to = out + (row // place[3]).to(tl.int64) * stride + position
    tl.store(to, tl.load(to, mask=there, other=0.0) - own, mask=there)
    if momentum is not None:
        to = momentum + (row // place[3]).to(tl.int64) * momentum_stride + position
        tl.store(to, tl.zeros_like(own), mask=there & (own != 0))


def send_from(
    source: Window, feedback: Feedback | None, shards: int, shard: int, k: int, factor: float
) -> tuple[Tensor, Tensor]:
    device, rows, place = source.buffer.device, source.rows * shards, place_of(source, shards, shard, TILE)
    sides, bad = torch.empty((2 * rows, shard), device=device), torch.zeros(rows, dtype=torch.int32, device=device)
    launch(_part, rows * place.tiles, device, place, memory_of(feedback), sides, bad, size=TILE)
    lines, chunks = Lines(*top_from(Window.whole(sides), None, 1, shard, k), k, bad), triton.cdiv(k, CHUNK)
    counts = torch.empty((2 * rows, chunks), dtype=torch.int32, device=device)
    launch(_count, counts.numel(), device, lines, counts, chunks, size=CHUNK)
    places, shares = torch.empty_like(lines.where), torch.empty_like(lines.values)
    launch(_tidy, counts.numel(), device, lines, counts, chunks, shard, places, shares, size=CHUNK)
    means = _means(shares)
    if feedback is not None:
        sent = sent_of(feedback, factor)
        launch(_settle, counts.numel(), device, places, means, k, place, sent, chunks, size=CHUNK)
    return means.view(rows, 2), places


def _means(shares: Tensor) -> Tensor:
    """The sum of each line, as `blockwise.abs_sum` adds up; negative for negative lines."""
    left = (shares.shape[1] - 1).bit_length()
    while True:
        last = left <= DEEP
        levels = left if last else LEVELS
        left -= levels
        (lines, have), many = shares.shape, 1 << left
        sums = torch.empty((lines, many), device=shares.device)
        lanes = 1 if last else LANES
        programs = triton.cdiv(many, lanes)
        args = shares, have, sums, many, programs
        launch(_fold, lines * programs, shares.device, *args, last=last, lanes=lanes, levels=levels)
        if last:
            return sums
        shares = sums
