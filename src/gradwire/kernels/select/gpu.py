"""Selection on a GPU: digit by digit on the bit patterns of magnitudes, which order as the magnitudes do.

A row that fits into a program is one launch. Of a longer one, the passes of `gradwire.kernels.candidates` find the
candidates and count the upper 16 bits of their magnitudes. `_narrow` sees in which of these 2¹⁶ cells the k-th largest
lies and counts the lower 15 bits of what is in that cell. `_count` has the smallest kept magnitude from that, and
counts what each program keeps; `_collect` writes it in the order of the indices, and takes what is sent off the new
error. Each program looks for the cell by itself: that is faster than a launch.

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
from gradwire.kernels.candidates.gpu import (
    COARSE,
    DIGIT,
    GROUPS,
    LEAST,
    LIMIT,
    LOWER,
    TIES,
    TOTAL,
    UPPER,
    WANTED,
    Desk,
    Listed,
    count_rows,
    desk_of,
    gather,
    held_values,
    magnitudes,
    sample,
    survey,
    tally,
    upper_digit,
)
from gradwire.kernels.launch import launch
from gradwire.kernels.window.gpu import compensated, keep, position_of, take
from gradwire.kernels.window.places import MOST, Memory, Place, memory_of, place_of

SMALL = 8192  # elements of a row that one program can hold
TILE = 1024  # elements of a program otherwise
GROUP = 16  # tiles whose candidates one program lists
SAMPLED = 1 << 17  # elements of a row from which on the sample is as large as it gets
SAMPLE = 8192  # elements of the sample; of shorter rows a quarter
PARTS = 256  # programs that look at the candidates of a row, at most
SPARE = 4096  # candidates of a row that there is room for beyond twice those expected
CHUNK = 1024  # counts that are searched at a time


class Chosen(NamedTuple):
    """What is kept."""

    values: Tensor
    where: Tensor
    k: int


class Sent(NamedTuple):
    """What is sent is taken off the new error, multiplied by a factor; the momentum of these elements becomes zero."""

    out: Tensor | None  # None: there is no error
    out_stride: int
    factor: float
    momentum: Tensor | None
    momentum_stride: int


NOT_KEPT = Sent(None, 0, 1.0, None, 0)


@triton.jit
def take_off(sent, a, position, worker, there, value_bits: tl.constexpr):
    """Take what is sent of the compensated elements `a` off them."""
    out, out_stride, factor, momentum, momentum_stride = sent
    off = a
    if value_bits == 16:
        off = a.to(tl.float16).to(tl.float32)
    off = off * factor
    tl.store(out + worker.to(tl.int64) * out_stride + position, a - off, mask=there)
    if momentum is not None:
        at = momentum + worker.to(tl.int64) * momentum_stride + position
        tl.store(at, tl.zeros_like(off), mask=there & (off != 0))


@triton.jit
def _put(chosen, place, sent, row, a, element, larger, equal, larger_before, equal_before, ties, bits: tl.constexpr):
    """Write what is kept of some elements behind what is kept of those before them; lower indices win ties."""
    values, where, k = chosen
    more = larger.to(tl.int32)
    even = equal.to(tl.int32)
    rank = equal_before + tl.cumsum(even, 0) - even
    slot = larger_before + tl.cumsum(more, 0) - more + tl.minimum(rank, ties)
    kept = (larger | (equal & (rank < ties))) & (slot < k)
    to = row.to(tl.int64) * k + slot
    tl.store(values + to, a, mask=kept)
    tl.store(where + to, element.to(tl.int64), mask=kept)
    if sent[0] is not None:
        position = row % place[3] * place[4] + element
        take_off(sent, a, position, row // place[3], kept & (position < place[2]), bits)


@triton.jit
def _range(desk, held, listed, k, parts, size: tl.constexpr):
    """Candidates of this program: row, part, its desk, whether they are listed, how many of the row, first and end."""
    row = tl.program_id(0) // parts
    part = tl.program_id(0) % parts
    state = desk_of(desk, row)
    total = held[4]
    good = total < 0
    if listed is not None:
        found = tl.load(state + TOTAL)
        good = (found >= k) & (found <= listed[5])
        total = tl.where(good, found, total)
    each = tl.cdiv(tl.cdiv(total, parts), size) * size
    start = part * each
    return row, part, state, good, total, start, tl.minimum(start + each, total)


@triton.jit
def _items(held, listed, row, good, first, end, size: tl.constexpr):
    """Candidates from number `first` on: elements, values, and which there are."""
    i = first + tl.arange(0, size)
    there = i < end
    if listed is None:
        element = i
        a = held_values(held, row, element, there)
    else:
        if good:
            at = row.to(tl.int64) * listed[5] + i
            element = tl.load(listed[3] + at, mask=there, other=0)
            a = tl.load(listed[4] + at, mask=there, other=0.0)
        else:
            element = i
            a = held_values(held, row, element, there)
    return element, a, there


@triton.jit
def _cell(counts, last, drop, size: tl.constexpr):
    """The digit of the k-th largest, if `drop` candidates are smaller ones; and its rank among those with that digit.

    The k-th largest is probably near the limit: digits are searched from `last` on towards larger magnitudes.
    """
    start = last + 1 - size
    cell = start + tl.arange(0, size)
    here = tl.load(counts + cell, mask=cell >= 0, other=0)
    behind = last * 0
    sum_here = tl.sum(here, 0)
    while (behind + sum_here <= drop) & (start > 0):
        behind += sum_here
        start -= size
        cell = start + tl.arange(0, size)
        here = tl.load(counts + cell, mask=cell >= 0, other=0)
        sum_here = tl.sum(here, 0)
    reached = behind + sum_here - tl.cumsum(here, 0) + here  # with all smaller ones
    digit = start + tl.sum((reached > drop).to(tl.int32), 0) - 1
    return digit, tl.min(tl.where(reached > drop, reached, 0x7FFFFFFF), 0) - drop


@triton.jit
def _narrow(held, desk, listed, k, parts, chunk: tl.constexpr, size: tl.constexpr):
    """Count the lower digits of the candidates whose upper digit is that of the k-th largest."""
    row, part, state, good, total, start, end = _range(desk, held, listed, k, parts, size)
    last = tl.where(good, 0xFF00 - (tl.load(state + LIMIT) >> 15), 0xFF00)
    digit, wanted = _cell(state + UPPER, last, total - k, chunk)
    if part == 0:
        tl.store(state + DIGIT, digit)
        tl.store(state + WANTED, wanted)
    for first in range(start, end, size):
        _element, a, there = _items(held, listed, row, good, first, end, size)
        bits = magnitudes(a)
        lower = 0x7FFF - (bits & 0x7FFF)
        chosen = there & (upper_digit(bits) == digit)
        tally(state + LOWER, lower, chosen, size)
        tally(state + COARSE, lower >> 7, chosen, size)


@triton.jit
def _least(state):
    """The smallest kept magnitude, and how many that equal it are kept."""
    wanted = tl.load(state + WANTED)
    reached = tl.cumsum(tl.load(state + COARSE + tl.arange(0, 256)), 0)
    coarse = tl.sum((reached < wanted).to(tl.int32), 0)
    before = tl.max(tl.where(reached < wanted, reached, 0), 0)
    reached = before + tl.cumsum(tl.load(state + LOWER + 128 * coarse + tl.arange(0, 128)), 0)
    digit = 128 * coarse + tl.sum((reached < wanted).to(tl.int32), 0)
    ties = wanted - tl.max(tl.where(reached < wanted, reached, before), 0)
    return ((0xFF00 - tl.load(state + DIGIT)) << 15) | (0x7FFF - digit), ties


@triton.jit
def _count(held, desk, listed, k, parts, sums, sums_stride, size: tl.constexpr):
    """How many candidates of each program are larger than the smallest kept magnitude, and how many equal to it."""
    row, part, state, good, _total, start, end = _range(desk, held, listed, k, parts, size)
    least, ties = _least(state)
    if part == 0:
        tl.store(state + LEAST, least)
        tl.store(state + TIES, ties)
    larger = tl.zeros((size,), tl.int32)
    equal = tl.zeros((size,), tl.int32)
    for first in range(start, end, size):
        _element, a, there = _items(held, listed, row, good, first, end, size)
        bits = magnitudes(a)
        larger += (there & (bits > least)).to(tl.int32)
        equal += (there & (bits == least)).to(tl.int32)
    tl.store(sums + tl.program_id(0), tl.sum(larger, 0))
    tl.store(sums + sums_stride + tl.program_id(0), tl.sum(equal, 0))


@triton.jit
def _collect(
    held,
    desk,
    listed,
    parts,
    sums,
    sums_stride,
    chosen,
    sent,
    most: tl.constexpr,
    bits: tl.constexpr,
    size: tl.constexpr,
):
    """Values and places of what is kept."""
    row, part, state, good, _total, start, end = _range(desk, held, listed, chosen[2], parts, size)
    least = tl.load(state + LEAST)
    ties = tl.load(state + TIES)
    other = tl.arange(0, most)
    before = sums + row * parts + other
    larger_before = tl.sum(tl.load(before, mask=other < part, other=0), 0)
    equal_before = tl.sum(tl.load(before + sums_stride, mask=other < part, other=0), 0)
    for first in range(start, end, size):
        element, a, there = _items(held, listed, row, good, first, end, size)
        magnitude = magnitudes(a)
        larger = there & (magnitude > least)
        equal = there & (magnitude == least)
        _put(chosen, held, sent, row, a, element, larger, equal, larger_before, equal_before, ties, bits)
        larger_before += tl.sum(larger.to(tl.int32), 0)
        equal_before += tl.sum(equal.to(tl.int32), 0)


@triton.jit
def _top_of_small(place, memory, chosen, sent, bits: tl.constexpr, size: tl.constexpr):
    """All of it, for a row that fits into a program: the smallest kept magnitude is found by halving."""
    row = tl.program_id(0)
    worker = row // place[3]
    shard = row % place[3]
    element = tl.arange(0, size)
    live = element < place[4]
    a, inside = take(place, worker, shard, 0, element, live, size)
    position = position_of(place, shard, element)
    a = tl.where(inside, compensated(a, memory, worker, position, inside), 0.0)
    keep(a, memory, worker, position, inside)
    magnitude = tl.where(live, magnitudes(a), -1)
    k = chosen[2]
    low = row * 0  # so many reach it, and too few what is above `high`
    high = low + 0x7F800001
    while low < high:
        middle = high - (high - low) // 2
        enough = tl.sum((magnitude >= middle).to(tl.int32), 0) >= k
        low = tl.where(enough, middle, low)
        high = tl.where(enough, high, middle - 1)
    larger = magnitude > low
    ties = k - tl.sum(larger.to(tl.int32), 0)
    tl.debug_barrier()  # what is kept lies there before what is sent is taken off
    _put(chosen, place, sent, row, a, element, larger, magnitude == low, 0, 0, ties, bits)


@triton.jit
def _count_above(x, stride, numel, thresholds, many, counts, tiles, size: tl.constexpr):
    """Count what reaches each threshold of a row."""
    row = (tl.program_id(0) // tiles).to(tl.int64)
    i = tl.program_id(0) % tiles * size + tl.arange(0, size)
    a = tl.abs(tl.load(x + row * stride + i, mask=i < numel, other=float("nan")))
    for t in range(many):
        count = tl.sum((a >= tl.load(thresholds + row * many + t)).to(tl.int32), 0)
        tl.atomic_add(counts + row * many + t, count.to(tl.int64), mask=count > 0, sem="relaxed")


def top_from(source: Window, feedback: Feedback | None, shards: int, shard: int, k: int) -> tuple[Tensor, Tensor]:
    return _top(source, feedback, shards, shard, k, NOT_KEPT, 32)


def send_from(
    source: Window, feedback: Feedback | None, shards: int, shard: int, k: int, value_bits: int, factor: float
) -> tuple[Tensor, Tensor]:
    return _top(source, feedback, shards, shard, k, sent_of(feedback, factor), value_bits)


def sent_of(feedback: Feedback | None, factor: float) -> Sent:
    """What is taken off the new error, where there is one."""
    if feedback is None:
        return NOT_KEPT
    out, momentum = feedback.out, feedback.momentum
    return Sent(out, out.stride(0), factor, momentum, 0 if momentum is None else momentum.stride(0))


def _top(
    source: Window, feedback: Feedback | None, shards: int, shard: int, k: int, sent: Sent, bits: int
) -> tuple[Tensor, Tensor]:
    device, rows, memory = source.buffer.device, source.rows * shards, _memory(source, feedback)
    values = torch.empty((rows, k), device=device)
    chosen = Chosen(values, torch.empty((rows, k), dtype=torch.int64, device=device), k)
    if shard <= SMALL:
        size = max(1024, int(triton.next_power_of_2(shard)))
        place, warps = place_of(source, shards, shard, size), max(4, size // 1024)
        launch(_top_of_small, rows, device, place, memory, chosen, sent, warps=warps, bits=bits, size=size)
        return chosen.values, chosen.where
    place = place_of(source, shards, shard, TILE)
    if memory.out is None and place.firsts is not None:  # the passes after the first want rows that lie together
        out = torch.empty((source.rows, source.numel), device=device)
        memory = memory._replace(out=out, out_stride=out.stride(0))
    held = place if memory.out is None else place_of(Window.whole(memory.out), shards, shard, TILE)
    desk, listed = _candidates(place, held, memory, k, rows)
    parts = max(1, min(PARTS, place.tiles, 2048 // rows))
    args = held, desk, listed, k, parts
    launch(_narrow, rows * parts, device, *args, chunk=CHUNK, size=TILE)
    sums = torch.empty((2, rows, parts), dtype=torch.int32, device=device)
    launch(_count, rows * parts, device, *args, sums, sums.stride(0), size=TILE)
    told = held, desk, listed, parts, sums, sums.stride(0), chosen, sent
    launch(_collect, rows * parts, device, *told, most=PARTS, bits=bits, size=TILE)
    return chosen.values, chosen.where


def _memory(source: Window, feedback: Feedback | None) -> Memory:
    """What is added and kept; nothing where the gradients are compensated already, in the place where they are kept."""
    if feedback is not None and feedback.error is None and feedback.gain == 1 and len(source.spans) == 1:
        x, first, out = source.buffer, source.spans[0][0], feedback.out
        if x.dtype == out.dtype and x.stride() == out.stride() and x[:, first:].data_ptr() == out.data_ptr():
            return memory_of(None)
    return memory_of(feedback)


def _candidates(place: Place, held: Place, memory: Memory, k: int, rows: int) -> tuple[Desk, Listed | None]:
    """The passes before the list is searched; None: all elements are candidates."""
    share, device, shard = k / place.shard, place.x.device, place.shard
    size = SAMPLE if shard >= SAMPLED else SAMPLE // 4
    rank = int(size * share + 4 * math.sqrt(size * share * (1 - share)) + 4)
    group, groups = GROUP * TILE, triton.cdiv(place.tiles, GROUP)
    numbers = torch.zeros((rows, GROUPS.value + groups), dtype=torch.int32, device=device)
    desk, programs = Desk(numbers, numbers.stride(0)), rows * place.tiles
    if shard < 2 * size or 2 * rank > size:
        if memory.out is not None:
            launch(survey, programs, device, place, memory, desk, None, group=group, size=TILE)
        launch(count_rows, rows * groups, device, held, desk, groups, group=group, size=TILE)
        return desk, None
    pieces = max(1, min(16, size // 256))
    digits = torch.empty((rows, size), dtype=torch.int32, device=device)
    args = place, memory, desk, digits, shard // size, rank
    shape = {"pieces": pieces, "tile": TILE, "size": size // pieces}
    launch(sample, rows * pieces, device, *args, warps=8, **shape)
    room = min(shard, 2 * triton.cdiv(rank * shard, size) + SPARE)
    marks = torch.empty((rows, groups * group // 8), dtype=torch.uint8, device=device)
    where = torch.empty((rows, room), dtype=torch.int32, device=device)
    listed = Listed(marks, marks.stride(0), groups, where, torch.empty((rows, room), device=device), room)
    launch(survey, programs, device, place, memory, desk, listed, group=group, size=TILE)
    launch(gather, rows * groups, device, held, desk, listed, k, group=group, chunk=CHUNK, size=TILE)
    return desk, listed


def _serves(x: Tensor, k: int) -> bool:
    return x.dtype == torch.float32 and 0 < k <= x.shape[1] < MOST and x.stride(1) == 1


@only(_serves)
def top(x: Tensor, k: int) -> Tensor:
    return top_from(Window.whole(x), None, 1, x.shape[1], k)[1]


@only(lambda x, thresholds: x.dtype == thresholds.dtype == torch.float32 and x.shape[1] < MOST and x.stride(1) == 1)
def count_above(x: Tensor, thresholds: Tensor) -> Tensor:
    counts, tiles = torch.zeros(thresholds.shape, dtype=torch.int64, device=x.device), triton.cdiv(x.shape[1], 4 * TILE)
    args = x, x.stride(0), x.shape[1], thresholds.contiguous(), thresholds.shape[1], counts, tiles
    launch(_count_above, x.shape[0] * tiles, x.device, *args, warps=8, size=4 * TILE)
    return counts
