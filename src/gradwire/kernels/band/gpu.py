"""A bisected threshold on a GPU: `_sizes` adds up and compares magnitudes, `_bisect` finds the thresholds of each row,
`_count` counts what each tile has above and between them, `_collect` writes what is sent.

The host waits for nothing.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from gradwire.core.random import Stream
from gradwire.core.window import Feedback, Window
from gradwire.kernels.band import WAYS
from gradwire.kernels.launch import launch
from gradwire.kernels.random.gpu import keys_of, word
from gradwire.kernels.select.gpu import top_from
from gradwire.kernels.window.gpu import compensated, keep, position_of, take, tile_of
from gradwire.kernels.window.places import memory_of, place_of

TILE = 1024  # elements of a program
CHUNK = 1024  # sums of tiles that are added at a time


class Counts(NamedTuple):
    """Elements that are sent for sure, and of the band: of each tile, those of all before it in its row included."""

    sure: Tensor
    band: Tensor


class Sent(NamedTuple):
    """Where values and places go, k a row; what is taken off the new error, and the momentum that becomes zero."""

    values: Tensor
    where: Tensor
    k: int
    factor: float
    momentum: Tensor | None
    momentum_stride: int


@triton.jit
def _sizes(place, memory, sums, largest, size: tl.constexpr):
    """Compensate, keep that; the sum and the largest of a tile's magnitudes."""
    worker, shard, tile, _ = tile_of(place)
    element = tile * size + tl.arange(0, size)
    a, inside = take(place, worker, shard, tile, element, element < place[4], size)
    position = position_of(place, shard, element)
    a = tl.where(inside, compensated(a, memory, worker, position, inside), 0.0)
    keep(a, memory, worker, position, inside)
    a = tl.abs(a)
    tl.store(sums + tl.program_id(0), tl.sum(a.to(tl.float64), 0))
    tl.store(largest + tl.program_id(0), tl.max(a, 0))


@triton.jit
def _bisect(sums, largest, next_largest, bounds, tiles, numel, steps, ways: tl.constexpr, chunk: tl.constexpr):
    """The two thresholds of a row, and 0, or NaN if it is not finite. `next_largest`: the magnitude of rank k + 1."""
    row = tl.program_id(0)
    i = tl.arange(0, chunk)
    total = tl.zeros((chunk,), tl.float64)
    most = tl.zeros((chunk,), tl.float32)
    for first in range(0, tiles, chunk):
        at = row.to(tl.int64) * tiles + first + i
        total += tl.load(sums + at, mask=first + i < tiles, other=0.0)
        most = tl.maximum(most, tl.load(largest + at, mask=first + i < tiles, other=0.0))
    mean = (tl.sum(total, 0) / numel).to(tl.float32)
    bad = mean * 0
    top = tl.max(most, 0)
    rank = tl.load(next_largest + row)
    low = tl.where(mean <= rank, mean, 0.0)
    high = tl.where(mean <= rank, float("inf"), mean)
    for _ in range(steps):
        first_low = low
        width = tl.minimum(high, top) - low
        for part in tl.static_range(1, ways):
            tried = first_low + width * (part / ways)
            low = tl.where((tried <= rank) & (tried > low), tried, low)
            high = tl.where((tried <= rank) | (tried >= high), high, tried)
    tl.store(bounds + 3 * row, low + bad)
    tl.store(bounds + 3 * row + 1, high + bad)
    tl.store(bounds + 3 * row + 2, bad)


@triton.jit
def _split(place, bounds, row, size: tl.constexpr):
    """The elements of a tile, which there are, which are sent for sure, and which are of the band."""
    worker, shard, tile, _ = tile_of(place)
    element = tile * size + tl.arange(0, size)
    live = element < place[4]
    a, inside = take(place, worker, shard, tile, element, live, size)
    a = a.to(tl.float32)
    sure = live & (tl.abs(a) >= tl.load(bounds + 3 * row + 1))
    band = live & ((tl.abs(a) < tl.load(bounds + 3 * row)) == 0) & (sure == 0)  # all, where the threshold is NaN
    return a, element, inside, sure, band


@triton.jit
def _count(place, bounds, counts, size: tl.constexpr):
    _, _, _, row = tile_of(place)
    _a, _element, _inside, sure, band = _split(place, bounds, row, size)
    tl.store(counts[0] + tl.program_id(0), tl.sum(sure.to(tl.int32), 0))
    tl.store(counts[1] + tl.program_id(0), tl.sum(band.to(tl.int32), 0))


@triton.jit
def _before(counts, tile):
    """Those of the row before this program's tile, and those up to its end."""
    end = counts + tl.program_id(0)
    first = tl.load(end - 1, mask=tile > 0, other=0)
    return first, tl.load(end)


@triton.jit
def _collect(place, memory, bounds, counts, noise, sent, bits: tl.constexpr, size: tl.constexpr):
    """What is sent of a tile; it is taken off the new error."""
    worker, shard, tile, row = tile_of(place)
    values, where, k, factor, momentum, momentum_stride = sent
    sure_before, sure_end = _before(counts[0], tile)
    band_before, band_end = _before(counts[1], tile)
    last = (row + 1).to(tl.int64) * place[5] - 1
    missing = k - tl.load(counts[0] + last)
    bad = tl.load(bounds + 3 * row + 2)
    many = tl.load(counts[1] + last)
    drawn = word(tl.load(noise[0] + worker), tl.load(noise[1] + worker) + shard)
    start = ((drawn.to(tl.int64) * many) >> 32).to(tl.int32)
    start = tl.where(bad == 0, start, 0)  # behind the end of a shard nobody would see the NaN
    again = tl.maximum(missing - (many - start), 0)  # of the run lie at the beginning of the band
    if (sure_end > sure_before) | (band_end > band_before):
        a, element, inside, sure, band = _split(place, bounds, row, size)
        one = sure.to(tl.int32)
        other = band.to(tl.int32)
        rank = band_before + tl.cumsum(other, 0) - other
        run = (rank < again) | ((rank >= start) & (rank < start + missing - again))
        chosen = sure | (band & run)
        taken = tl.minimum(rank, again) + tl.minimum(tl.maximum(rank - start, 0), missing - again)
        slot = sure_before + tl.cumsum(one, 0) - one + taken
        to = row.to(tl.int64) * k + slot
        value = a + bad
        tl.store(values + to, value, mask=chosen & (slot < k))
        tl.store(where + to, element.to(tl.int64), mask=chosen & (slot < k))
        own = value
        if bits == 16:
            own = own.to(tl.float16).to(tl.float32)
        own = own * factor
        position = position_of(place, shard, element)
        keep(a - own, memory, worker, position, chosen & inside)
        if momentum is not None:
            at = momentum + worker.to(tl.int64) * momentum_stride + position
            tl.store(at, tl.zeros_like(own), mask=chosen & inside & (own != 0))


def send_from(
    source: Window,
    feedback: Feedback | None,
    shards: int,
    shard: int,
    k: int,
    steps: int,
    value_bits: int,
    factor: float,
    start: Stream,
) -> tuple[Tensor, Tensor]:
    device, rows, memory = source.buffer.device, source.rows * shards, memory_of(feedback)
    place = place_of(source, shards, shard, TILE)
    sums = torch.empty((rows, place.tiles), dtype=torch.float64, device=device)
    largest = torch.empty((rows, place.tiles), device=device)
    launch(_sizes, rows * place.tiles, device, place, memory, sums, largest, size=TILE)
    held = source if feedback is None else Window.whole(feedback.out)
    if k < shard:
        ranked = top_from(held, None, shards, shard, k + 1)[0].abs().amin(1)
    else:
        ranked = torch.full((rows,), -1.0, device=device)  # nothing: all are sent
    bounds = torch.empty((rows, 3), device=device)
    args = sums, largest, ranked, bounds, place.tiles, shard, steps
    launch(_bisect, rows, device, *args, ways=WAYS, chunk=CHUNK)
    place = place_of(held, shards, shard, TILE)
    found = torch.empty((2, rows, place.tiles), dtype=torch.int32, device=device)
    launch(_count, rows * place.tiles, device, place, bounds, Counts(*found), size=TILE)
    found = found.cumsum(2, dtype=torch.int32)
    values, where = torch.empty((rows, k), device=device), torch.empty((rows, k), dtype=torch.int64, device=device)
    momentum = None if feedback is None else feedback.momentum
    sent = Sent(values, where, k, factor, momentum, 0 if momentum is None else momentum.stride(0))
    told = place, memory, bounds, Counts(*found), keys_of(start, source.rows, device), sent
    launch(_collect, rows * place.tiles, device, *told, bits=value_bits, size=TILE)
    return values, where
