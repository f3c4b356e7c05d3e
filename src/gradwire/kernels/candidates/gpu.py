"""The first passes of a selection on a GPU: which elements may be kept, in the order of their indices.

A sample gives the limit of a row, a magnitude that is probably a little below the smallest kept one. `survey` reads all
elements once, keeps the compensated ones and marks those that reach the limit, a bit for each. `gather` lists what is
marked. Where that is too little, or more than there is room for, all elements of the row are candidates, and are not
listed.

Candidates are counted by the upper 16 bits of their magnitudes. Digits run from large magnitudes to small ones.
"""

from __future__ import annotations

from typing import NamedTuple

import triton
import triton.language as tl
from torch import Tensor

from gradwire.kernels.window.gpu import compensated, compensated_tile, keep

# where the numbers of a row's desk stand, all zero at first
TOTAL = tl.constexpr(0)  # how many are marked
DIGIT = tl.constexpr(1)  # the upper digit of the smallest kept magnitude
WANTED = tl.constexpr(2)  # how many of those that share it are kept
LEAST = tl.constexpr(3)  # the smallest kept magnitude
TIES = tl.constexpr(4)  # how many of those that equal it are kept
LIMIT = tl.constexpr(5)  # the magnitude from which on elements are marked
DONE = tl.constexpr(6)  # programs that have sampled
COARSE = tl.constexpr(256)  # how many have each lower digit, 128 digits at a time
LOWER = tl.constexpr(512)  # how many have each lower digit
UPPER = tl.constexpr(33280)  # how many have each upper digit
GROUPS = tl.constexpr(98816)  # how many are marked in each group of elements


class Desk(NamedTuple):
    """What is known of each row."""

    numbers: Tensor
    stride: int


class Listed(NamedTuple):
    """Candidates of each row."""

    marks: Tensor  # a bit for each element
    marks_stride: int
    groups: int
    where: Tensor
    values: Tensor
    room: int


@triton.jit
def magnitudes(a):
    """The bits of magnitudes; all NaN are one."""
    return tl.minimum(a.to(tl.int32, bitcast=True) & 0x7FFFFFFF, 0x7F800001)


@triton.jit
def upper_digit(bits):
    """0 for NaN."""
    return 0xFF00 - (bits >> 15)


@triton.jit
def desk_of(desk, row):
    """A row's numbers."""
    return desk[0] + row.to(tl.int64) * desk[1]


@triton.jit
def tally(counts, digit, chosen, size: tl.constexpr):
    """Count the digits of the chosen elements of a tile.

    Many of them may be equal, zero say, and additions to one number wait for each other: ends of a tile go as one.
    """
    if 8 * tl.sum(chosen.to(tl.int32), 0) > size:
        least = tl.min(tl.where(chosen, digit, 0x7FFFFFFF), 0)
        tl.atomic_add(counts + least, tl.sum((chosen & (digit == least)).to(tl.int32), 0), sem="relaxed")
        chosen = chosen & (digit != least)
        most = tl.max(tl.where(chosen, digit, 0), 0)
        tl.atomic_add(counts + most, tl.sum((chosen & (digit == most)).to(tl.int32), 0), sem="relaxed")
        chosen = chosen & (digit != most)
    tl.atomic_add(counts + digit, tl.full((size,), 1, tl.int32), mask=chosen, sem="relaxed")


@triton.jit
def sample(place, memory, desk, digits, stretch, rank, pieces: tl.constexpr, tile: tl.constexpr, size: tl.constexpr):
    """The limit of a row: what `rank` elements of a sample reach. The last program of a row finds it."""
    numel, shards, length, firsts = place[2], place[3], place[4], place[7]
    row = tl.program_id(0) // pieces
    piece = tl.program_id(0) % pieces
    worker = row // shards
    shard = row % shards
    i = piece * size + tl.arange(0, size)
    turn = ((i.to(tl.uint32) * 0x9E3779B1) >> 8).to(tl.int32) % stretch  # varies, so that no period is met
    element = i * stretch + turn
    position = shard * length + element
    inside = position < numel
    if firsts is None:
        shift = tl.load(place[6])
    else:
        span = tl.load(place[8] + shard * place[5] + element // tile)
        further = (tl.load(firsts + span + 1) <= position) & inside
        while tl.max(further.to(tl.int32), 0) > 0:
            span += further.to(tl.int32)
            further = (tl.load(firsts + span + 1) <= position) & inside
        shift = tl.load(place[6] + span)
    at = place[0] + worker.to(tl.int64) * place[1] + (position + shift)
    a = compensated(tl.load(at, mask=inside, other=0.0).to(tl.float32), memory, worker, position, inside)
    digits += row.to(tl.int64) * pieces * size
    tl.store(digits + i, upper_digit(magnitudes(tl.where(inside, a, 0.0))))
    tl.debug_barrier()
    state = desk_of(desk, row)
    if tl.atomic_add(state + DONE, 1, sem="acq_rel") == pieces - 1:
        _limit(state, tl.load(digits + tl.arange(0, pieces * size), cache_modifier=".cg"), rank)


@triton.jit
def _limit(state, digit, rank):
    """Which digit `rank` of the sampled ones reach, by halving; the smallest magnitude that has it is the limit."""
    first = rank * 0
    last = first + 0xFF00
    while first < last:
        middle = (first + last) // 2
        enough = tl.sum((digit <= middle).to(tl.int32), 0) >= rank
        first = tl.where(enough, first, middle + 1)
        last = tl.where(enough, middle, last)
    tl.store(state + LIMIT, (0xFF00 - last) << 15)


@triton.jit
def mark(marks, chosen, element, size: tl.constexpr):
    """Write a bit for each element of a tile, whether it is chosen; how many are."""
    bit = tl.where(chosen, 65536 | (1 << (element & 7)), 0)
    eight = tl.sum(tl.reshape(bit, (size // 8, 8)), 1)  # the marks, and how many there are
    tl.store(marks + tl.arange(0, size // 8), (eight & 255).to(tl.uint8))
    return tl.sum(eight >> 16, 0)


@triton.jit
def survey(place, memory, desk, listed, group: tl.constexpr, size: tl.constexpr):
    """Compensate, keep that, mark what reaches the limit, and count the marks."""
    worker, _shard, tile, row, element, position, inside, a = compensated_tile(place, memory, size)
    live = element < place[4]
    keep(a, memory, worker, position, inside)
    if listed is not None:
        state = desk_of(desk, row)
        bits = tl.where(inside, a, 0.0).to(tl.int32, bitcast=True) & 0x7FFFFFFF
        chosen = live & (bits >= tl.load(state + LIMIT))
        many = mark(listed[0] + row.to(tl.int64) * listed[1] + tile * (size // 8), chosen, element, size)
        tl.atomic_add(state + GROUPS + tile * size // group, many, mask=many > 0, sem="relaxed")


@triton.jit
def held_values(held, row, element, there):
    """Compensated elements of a row, which lie together."""
    position = row % held[3] * held[4] + element
    at = held[0] + (row // held[3]).to(tl.int64) * held[1] + tl.load(held[6])
    return tl.load(at + position, mask=there & (position < held[2]), other=0.0).to(tl.float32)


@triton.jit
def bits_set(word):
    """How many bits of 32 are set."""
    word -= (word >> 1) & 0x55555555
    word = (word & 0x33333333) + ((word >> 2) & 0x33333333)
    word = (word + (word >> 4)) & 0x0F0F0F0F
    return ((word * 0x01010101) >> 24).to(tl.int32)


@triton.jit
def lowest_bit(word):
    """The number of the lowest bit that is set, and all others."""
    lowest = word & (~word + 1)
    return (lowest.to(tl.float32).to(tl.int32, bitcast=True) >> 23) - 127, word ^ lowest


@triton.jit
def gather(held, desk, listed, k, group: tl.constexpr, chunk: tl.constexpr, size: tl.constexpr):
    """List the candidates of a group of elements, or none where the row has too few or too many; count their digits."""
    marks, marks_stride, groups, where, values, room = listed
    row = tl.program_id(0) // groups
    this = tl.program_id(0) % groups
    state = desk_of(desk, row)
    total = this * 0
    before = this * 0
    for start in range(0, groups, chunk):
        other = start + tl.arange(0, chunk)
        count = tl.load(state + GROUPS + other, mask=other < groups, other=0)
        total += tl.sum(count, 0)
        before += tl.sum(tl.where(other < this, count, 0), 0)
    if this == 0:
        tl.store(state + TOTAL, total)
    if (total >= k) & (total <= room):
        words: tl.constexpr = group // 32
        number = tl.arange(0, words)
        there = this * group + number * 32 < held[5] * size
        to = (marks + row.to(tl.int64) * marks_stride).to(tl.pointer_type(tl.uint32))
        word = tl.load(to + this * words + number, mask=there, other=0)
        count = bits_set(word)
        slot = before + tl.cumsum(count, 0) - count
        first = this * group + number * 32
        where += row.to(tl.int64) * room
        values += row.to(tl.int64) * room
        while tl.max((word != 0).to(tl.int32), 0) > 0:
            bit, rest = lowest_bit(word)
            tl.store(where + slot, first + bit, mask=word != 0)
            slot += 1
            word = rest
        tl.debug_barrier()
        end = before + tl.sum(count, 0)
        for start in range(before, end, words):
            slot = start + number
            there = slot < end
            a = held_values(held, row, tl.load(where + slot, mask=there, other=0), there)
            tl.store(values + slot, a, mask=there)
            digit = upper_digit(magnitudes(a))
            tl.atomic_add(state + UPPER + digit, tl.full((words,), 1, tl.int32), mask=there, sem="relaxed")
    else:
        count_all(held, state, row, this * group, group, size)


@triton.jit
def count_all(held, state, row, start, group: tl.constexpr, size: tl.constexpr):
    """Count the upper digits of a group of elements."""
    for first in range(start, tl.minimum(start + group, held[4]), size):
        element = first + tl.arange(0, size)
        live = element < held[4]
        tally(state + UPPER, upper_digit(magnitudes(held_values(held, row, element, live))), live, size)


@triton.jit
def count_rows(held, desk, groups, group: tl.constexpr, size: tl.constexpr):
    """Count the upper digits of all elements."""
    row = tl.program_id(0) // groups
    count_all(held, desk_of(desk, row), row, tl.program_id(0) % groups * group, group, size)
