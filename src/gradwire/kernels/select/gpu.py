"""Selection on a GPU: digit by digit on the bit patterns of magnitudes, which order as the magnitudes do.

A row that fits into a program is one launch. Of a longer one, `_survey` counts the upper 16 bits of all magnitudes,
`_find` sees in which of these 2¹⁶ cells the k-th largest lies, `_narrow` counts the lower 15 bits of what is in that
cell, and `_find` has the smallest kept magnitude. `_count` and `_collect` write what is kept in the order of the
indices. Digits run from large magnitudes to small ones.

Few magnitudes matter, and counting many of them in few cells is slow. So a sample of a long row gives a limit that is
probably a little below the smallest kept magnitude: `_survey` counts and marks what lies above, and nobody reads the
rest again. Where a limit proves too high, `_widen` counts the rest and marks all.

The host waits for nothing, and sums of integers do not depend on the order: results are the same in each run.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from gradwire.core.window import Feedback, Window
from gradwire.kernels.backend import only
from gradwire.kernels.launch import launch
from gradwire.kernels.window.gpu import MOST, Place, compensated, keep, memory_of, place_of, places, tile_of

SMALL = 8192  # elements of a row that one program can hold
TILE = 4096  # elements of a program otherwise
SAMPLED = 1 << 17  # elements of a row from which on a sample pays
SAMPLE = 8192  # elements of the sample
CHUNK = 8192  # counts that are searched at a time
UPPER, LOWER = 1 << 16, 1 << 15  # cells of the two digits


class Marks(NamedTuple):
    """Which elements may be kept."""

    limits: Tensor | None  # the last upper digit, of each row, whose elements are marked; None: all are
    totals: Tensor | None  # how many are marked
    data: Tensor | None  # a bit for each
    stride: int


class Chosen(NamedTuple):
    """What is kept."""

    values: Tensor
    where: Tensor
    k: int


@triton.jit
def _magnitudes(a):
    """The bits of magnitudes; all NaN are one."""
    return tl.minimum(a.to(tl.int32, bitcast=True) & 0x7FFFFFFF, 0x7F800001)


@triton.jit
def _upper(bits):
    """The upper digit: 0 for NaN."""
    return 0xFF00 - (bits >> 15)


@triton.jit
def _first(place, memory, size: tl.constexpr):
    """The compensated elements of this program's tile, which are kept: row, tile, elements, which there are, values."""
    worker, shard, tile, row = tile_of(place)
    element = tile * size + tl.arange(0, size)
    live = element < place[4]
    at, inside = places(place, worker, shard, tile, element, size)
    inside = inside & live
    position = shard * place[4] + element
    a = compensated(tl.load(at, mask=inside, other=0.0).to(tl.float32), memory, worker, position, inside)
    keep(a, memory, worker, position, inside)
    return row, tile, element, live, tl.where(inside, a, 0.0)


@triton.jit
def _marked(marks, row, tile, live, size: tl.constexpr):
    """Which elements of a tile are marked."""
    _, _, data, stride = marks
    if data is None:
        return live
    else:
        bit = tl.arange(0, size)
        byte = tl.load(data + row.to(tl.int64) * stride + tile * (size // 8) + (bit >> 3))
        return live & (((byte.to(tl.int32) >> (bit & 7)) & 1) != 0)


@triton.jit
def _again(place, marks, every: tl.constexpr, size: tl.constexpr):
    """The marked elements of this program's tile, or every one: row, tile, elements, which are read, values."""
    worker, shard, tile, row = tile_of(place)
    element = tile * size + tl.arange(0, size)
    read = element < place[4]
    if not every:
        read = _marked(marks, row, tile, read, size)
    at, inside = places(place, worker, shard, tile, element, size)
    return row, tile, element, read, tl.load(at, mask=inside & read, other=0.0).to(tl.float32)


@triton.jit
def _mark(marks, row, tile, chosen, size: tl.constexpr):
    """Remember which elements of a tile are marked."""
    data = marks[2] + row.to(tl.int64) * marks[3] + tile * (size // 8)
    bits = tl.reshape(chosen.to(tl.int32), (size // 8, 8)) << tl.arange(0, 8)[None, :]
    tl.store(data + tl.arange(0, size // 8), tl.sum(bits, 1).to(tl.uint8))


@triton.jit
def _tally(counts, digit, chosen, size: tl.constexpr):
    """Count the digits of the chosen elements of a tile; returns how many there are.

    Many of them may be equal, zero say, and additions to one number wait for each other: ends of a tile go as one.
    """
    many = tl.sum(chosen.to(tl.int32), 0)
    if 8 * many > size:
        least = tl.min(tl.where(chosen, digit, 0x7FFFFFFF), 0)
        tl.atomic_add(counts + least, tl.sum((chosen & (digit == least)).to(tl.int32), 0), sem="relaxed")
        chosen = chosen & (digit != least)
        most = tl.max(tl.where(chosen, digit, 0), 0)
        tl.atomic_add(counts + most, tl.sum((chosen & (digit == most)).to(tl.int32), 0), sem="relaxed")
        chosen = chosen & (digit != most)
    tl.atomic_add(counts + digit, tl.full((size,), 1, tl.int32), mask=chosen, sem="relaxed")
    return many


@triton.jit
def _sample(place, memory, spans, steps, stretch, rank, limits, size: tl.constexpr):
    """The upper digit that `rank` elements of a sample of the row reach."""
    x, row_stride, numel, shards, length, _, shifts, firsts, _, _ = place
    row = tl.program_id(0)
    worker = row // shards
    i = tl.arange(0, size)
    turn = ((i.to(tl.uint32) * 0x9E3779B1) >> 8).to(tl.int32) % stretch  # varies, so that no period is met
    position = row % shards * length + i * stretch + turn
    inside = position < numel
    low = tl.zeros_like(position)
    if firsts is not None:
        high = low + spans
        for _ in range(steps):
            middle = (low + high) // 2
            below = tl.load(firsts + middle) <= position
            low = tl.where(below, middle, low)
            high = tl.where(below, high, middle)
    at = x + worker.to(tl.int64) * row_stride + (position + tl.load(shifts + low))
    a = compensated(tl.load(at, mask=inside, other=0.0).to(tl.float32), memory, worker, position, inside)
    digit = _upper(_magnitudes(tl.where(inside, a, 0.0)))
    first = row * 0
    last = first + 0xFF00
    while first < last:
        middle = (first + last) // 2
        enough = tl.sum((digit <= middle).to(tl.int32), 0) >= rank
        first = tl.where(enough, first, middle + 1)
        last = tl.where(enough, middle, last)
    tl.store(limits + row, last)


@triton.jit
def _survey(place, memory, marks, counts, counts_stride, size: tl.constexpr):
    """Compensate, keep that, mark what the limit lets through, and count its upper digits."""
    row, tile, _, live, a = _first(place, memory, size)
    digit = _upper(_magnitudes(a))
    counts += row.to(tl.int64) * counts_stride
    if marks[2] is None:
        _tally(counts, digit, live, size)
    else:
        chosen = live & (digit <= tl.load(marks[0] + row))
        _mark(marks, row, tile, chosen, size)
        tl.atomic_add(marks[1] + row, _tally(counts, digit, chosen, size), sem="relaxed")


@triton.jit
def _widen(place, marks, counts, counts_stride, k, size: tl.constexpr):
    """Where fewer than k are marked, count the others, and mark all."""
    row = tl.program_id(0) // place[5]
    if tl.load(marks[1] + row) < k:
        _, tile, _, live, a = _again(place, marks, True, size)
        digit = _upper(_magnitudes(a))
        chosen = live & (digit > tl.load(marks[0] + row))
        _tally(counts + row.to(tl.int64) * counts_stride, digit, chosen, size)
        _mark(marks, row, tile, live, size)


@triton.jit
def _find(counts, counts_stride, k, state, cells: tl.constexpr, size: tl.constexpr):
    """The digit of the k-th largest element, and how many of those that share it are kept."""
    row = tl.program_id(0)
    upper: tl.constexpr = cells > 32768
    state += 4 * row
    if upper:
        wanted = row * 0 + k
    else:
        wanted = tl.load(state + 1)
    counts += row.to(tl.int64) * counts_stride + tl.arange(0, size)
    start = row * 0
    before = row * 0
    here = tl.load(counts)
    total = tl.sum(here, 0)
    while (before + total < wanted) & (start + size < cells):
        before += total
        start += size
        here = tl.load(counts + start)
        total = tl.sum(here, 0)
    reached = before + tl.cumsum(here, 0)
    digit = start + tl.sum((reached < wanted).to(tl.int32), 0)
    wanted -= tl.max(tl.where(reached < wanted, reached, before), 0)
    if upper:
        tl.store(state, digit)
        tl.store(state + 1, wanted)
    else:
        tl.store(state + 2, ((0xFF00 - tl.load(state)) << 15) | (0x7FFF - digit))
        tl.store(state + 3, wanted)


@triton.jit
def _narrow(place, marks, state, counts, counts_stride, size: tl.constexpr):
    """Count the lower digits of the elements whose upper digit is that of the k-th largest."""
    row, _, _, marked, a = _again(place, marks, False, size)
    bits = _magnitudes(a)
    chosen = marked & (_upper(bits) == tl.load(state + 4 * row))
    _tally(counts + row.to(tl.int64) * counts_stride, 0x7FFF - (bits & 0x7FFF), chosen, size)


@triton.jit
def _count(place, marks, state, sums, sums_stride, size: tl.constexpr):
    """How many elements of each tile are larger than the smallest kept magnitude, and how many equal to it."""
    row, _, _, marked, a = _again(place, marks, False, size)
    bits = _magnitudes(a)
    least = tl.load(state + 4 * row + 2)
    to = sums + tl.program_id(0)
    tl.store(to, tl.sum((marked & (bits > least)).to(tl.int32), 0))
    tl.store(to + sums_stride, tl.sum((marked & (bits == least)).to(tl.int32), 0))


@triton.jit
def _put(chosen, row, a, element, larger, equal, larger_before, equal_before, ties):
    """Write what is kept of a tile behind what is kept of the tiles before it; lower indices win ties."""
    values, where, k = chosen
    more = larger.to(tl.int32)
    even = equal.to(tl.int32)
    rank = equal_before + tl.cumsum(even, 0) - even
    slot = larger_before + tl.cumsum(more, 0) - more + tl.minimum(rank, ties)
    kept = (larger | (equal & (rank < ties))) & (slot < k)
    to = row.to(tl.int64) * k + slot
    tl.store(values + to, a, mask=kept)
    tl.store(where + to, element.to(tl.int64), mask=kept)


@triton.jit
def _collect(place, marks, state, sums, sums_stride, chosen, size: tl.constexpr):
    """Values and places of what is kept; `sums` are running ones of each row."""
    row, tile, element, marked, a = _again(place, marks, False, size)
    bits = _magnitudes(a)
    least = tl.load(state + 4 * row + 2)
    ties = tl.load(state + 4 * row + 3)
    before = sums + tl.program_id(0) - 1
    larger_before = tl.load(before, mask=tile > 0, other=0)
    equal_before = tl.load(before + sums_stride, mask=tile > 0, other=0)
    _put(chosen, row, a, element, marked & (bits > least), marked & (bits == least), larger_before, equal_before, ties)


@triton.jit
def _top_of_small(place, memory, chosen, size: tl.constexpr):
    """All of it, for a row that fits into a program: the smallest kept magnitude is found by halving."""
    row, _, element, live, a = _first(place, memory, size)
    bits = tl.where(live, _magnitudes(a), -1)
    k = chosen[2]
    low = row * 0  # so many reach it, and too few what is above `high`
    high = low + 0x7F800001
    while low < high:
        middle = high - (high - low) // 2
        enough = tl.sum((bits >= middle).to(tl.int32), 0) >= k
        low = tl.where(enough, middle, low)
        high = tl.where(enough, high, middle - 1)
    larger = bits > low
    ties = k - tl.sum(larger.to(tl.int32), 0)
    _put(chosen, row, a, element, larger, bits == low, 0, 0, ties)


@triton.jit
def _settle(chosen, memory, momentum, momentum_stride, numel, shards, shard, factor, tiles, shape: tl.constexpr):
    size: tl.constexpr = shape[0]
    values, where, k = chosen
    row = tl.program_id(0) // tiles
    i = tl.program_id(0) % tiles * size + tl.arange(0, size)
    there = i < k
    place = tl.load(where + row.to(tl.int64) * k + i, mask=there, other=0) + row % shards * shard
    sent = tl.load(values + row.to(tl.int64) * k + i, mask=there, other=0.0)
    if shape[1] == 16:
        sent = sent.to(tl.float16).to(tl.float32)
    sent = sent * factor
    there = there & (place < numel)
    worker = (row // shards).to(tl.int64)
    at = memory[5] + worker * memory[6] + place
    tl.store(at, tl.load(at, mask=there, other=0.0) - sent, mask=there)
    if momentum is not None:
        tl.store(momentum + worker * momentum_stride + place, tl.zeros_like(sent), mask=there & (sent != 0))


def top_from(source: Window, feedback: Feedback | None, shards: int, shard: int, k: int) -> tuple[Tensor, Tensor]:
    device, rows, memory = source.buffer.device, source.rows * shards, memory_of(feedback)
    values = torch.empty((rows, k), device=device)
    chosen = Chosen(values, torch.empty((rows, k), dtype=torch.int64, device=device), k)
    if shard <= SMALL:
        size = max(1024, int(triton.next_power_of_2(shard)))
        place = place_of(source, shards, shard, size)
        launch(_top_of_small, rows, device, place, memory, chosen, warps=max(4, size // 1024), size=size)
        return chosen.values, chosen.where
    place = place_of(source, shards, shard, TILE)
    held = place if feedback is None else place_of(Window.whole(feedback.out), shards, shard, TILE)
    programs = rows * place.tiles
    room = torch.zeros((rows, UPPER + LOWER + 1), dtype=torch.int32, device=device)
    upper, lower = room, room[:, UPPER:]
    stride, state = room.stride(0), torch.empty((rows, 4), dtype=torch.int32, device=device)
    marks = _sampled(source, place, memory, k, rows)
    launch(_survey, programs, device, place, memory, marks, upper, stride, size=TILE)
    if marks.data is not None:
        launch(_widen, programs, device, held, marks, upper, stride, k, size=TILE)
    launch(_find, rows, device, upper, stride, k, state, warps=8, cells=UPPER, size=CHUNK)
    launch(_narrow, programs, device, held, marks, state, lower, stride, size=TILE)
    launch(_find, rows, device, lower, stride, k, state, warps=8, cells=LOWER, size=CHUNK)
    sums = torch.empty((2, rows, place.tiles), dtype=torch.int32, device=device)
    launch(_count, programs, device, held, marks, state, sums, programs, size=TILE)
    sums = sums.cumsum(2, dtype=torch.int32)
    launch(_collect, programs, device, held, marks, state, sums, programs, chosen, size=TILE)
    return chosen.values, chosen.where


def _sampled(source: Window, place: Place, memory: NamedTuple, k: int, rows: int) -> Marks:
    """Limits by a sample, where one pays: room for marks."""
    share, device = k / place.shard, source.buffer.device
    rank = int(SAMPLE * share + 4 * math.sqrt(SAMPLE * share * (1 - share)) + 4)
    if place.shard < max(SAMPLE, SAMPLED) or 2 * rank > SAMPLE:
        return Marks(None, None, None, 0)
    limits, totals = torch.zeros((2, rows), dtype=torch.int32, device=device)
    stride = place.tiles * TILE // 8
    data = torch.empty((rows, stride), dtype=torch.uint8, device=device)
    spans = 1 if place.firsts is None else place.firsts.numel() - 2
    args = place, memory, spans, spans.bit_length(), place.shard // SAMPLE, rank, limits
    launch(_sample, rows, device, *args, warps=8, size=SAMPLE)
    return Marks(limits, totals, data, stride)


def _serves(x: Tensor, k: int) -> bool:
    return x.dtype == torch.float32 and 0 < k <= x.shape[1] < MOST and x.stride(1) == 1


@only(_serves)
def top(x: Tensor, k: int) -> Tensor:
    return top_from(Window.whole(x), None, 1, x.shape[1], k)[1]


def settle_rows(
    feedback: Feedback, values: Tensor, where: Tensor, shards: int, shard: int, value_bits: int, factor: float
) -> None:
    (rows, k), momentum = values.shape, feedback.momentum
    size = min(1024, max(128, int(triton.next_power_of_2(k))))
    tiles = triton.cdiv(k, size)
    chosen = Chosen(values.contiguous(), where.contiguous(), k)
    args = chosen, memory_of(feedback), momentum, 0 if momentum is None else momentum.stride(0), feedback.out.shape[1]
    launch(_settle, rows * tiles, values.device, *args, shards, shard, factor, tiles, shape=(size, value_bits))
