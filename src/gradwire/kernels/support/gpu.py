"""Supports on a GPU.

`_draw` draws the indices, and says for each tile of the vector which strata fall into it: they are neighbours. `_take`
and `_put` go over the vector once and treat the few entries of their tile behind it. The first k elements of the range
need no table: `_take_run` and `_put_run` see by its beginning which elements are meant.

Whether a row is finite is known only behind its last tile: `_spoil` makes what was taken of one that is not NaN.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from gradwire.core.random import joined
from gradwire.core.window import Feedback, Flag, Window
from gradwire.kernels.backend import only
from gradwire.kernels.launch import launch
from gradwire.kernels.random.gpu import keys_of, word
from gradwire.kernels.support import Support
from gradwire.kernels.window.gpu import compensated_tile, keep, places, put, put_checked, tile_of, write
from gradwire.kernels.window.places import fits, memory_of, place_of

TILE = 1024  # elements of a program
ENTRIES = 128  # entries of a tile that are treated at a time
DRAWN = 256  # indices, or tiles, of a program that draws


class Drawn(NamedTuple):
    """A support on the device."""

    where: Tensor  # the indices; of a run, the first one
    k: int
    tiles: Tensor | None  # the first stratum of each tile, and how many there are; None: the support is a run


class Taken(NamedTuple):
    """What is sent, and how it is made."""

    values: Tensor
    bad: Tensor  # NaN for each worker whose row is not finite
    share: float
    gain: float
    back: float  # what is sent, times this, is taken off the error
    momentum: Tensor | None
    momentum_stride: int


@triton.jit
def _any_index(keys, offsets, stream: tl.constexpr, numel):
    """One index below `numel`, of a stream."""
    key = tl.load(keys + stream)
    place = tl.load(offsets + stream)
    high = word(key, place).to(tl.int64)
    return ((high << 31) | (word(key, place + 1).to(tl.int64) >> 1)) % numel


@triton.jit
def _stratum(inside, k, numel):
    """The stratum of elements of the range, int64."""
    return ((inside + 1) * k - 1) // numel


@triton.jit
def _draw(noise, drawn, numel, least, left, tiles, room, shape: tl.constexpr):
    """Indices of the strata, whose lengths are `least`, or one more; the strata of the tiles; and zeros to `room`."""
    size: tl.constexpr = shape[0]
    few: tl.constexpr = shape[1]
    tile: tl.constexpr = shape[2]
    keys, offsets = noise
    where, k, edges = drawn
    turn = _any_index(keys, offsets, 0, numel)
    i = tl.program_id(0) * size + tl.arange(0, size)
    if tl.program_id(0) == 0:
        zeros = tl.arange(0, few)
        tl.store(room[0] + zeros, tl.zeros((few,), tl.float32), mask=zeros < room[1])
    there = i < k
    wide = i.to(tl.int64)
    first = wide * numel // k
    length = least + (wide * numel - first * k + left >= k).to(tl.int64)
    found = first + (word(tl.load(keys + 1), tl.load(offsets + 1) + wide).to(tl.int64) * length >> 32) + turn
    tl.store(where + i, tl.where(found >= numel, found - numel, found).to(tl.int32), mask=there)
    inside = wide * tile - turn
    inside = tl.where(inside < 0, inside + numel, inside)
    end = inside + tl.minimum(tile, numel - wide * tile) - 1
    start = _stratum(inside, k, numel)
    last = tl.where(end < numel, _stratum(end, k, numel), k + _stratum(end - numel, k, numel))
    tl.store(edges + 2 * i, start.to(tl.int32), mask=i < tiles)
    tl.store(edges + 2 * i + 1, tl.minimum(last - start + 1, k).to(tl.int32), mask=i < tiles)


@triton.jit
def _draw_run(noise, drawn, numel, room, few: tl.constexpr):
    """Where a run begins, and zeros to `room`."""
    tl.store(drawn[0], _any_index(noise[0], noise[1], 0, numel).to(tl.int32))
    zeros = tl.arange(0, few)
    tl.store(room[0] + zeros, tl.zeros((few,), tl.float32), mask=zeros < room[1])


@triton.jit
def _first(place, memory, taken, size: tl.constexpr):
    """The compensated elements of this program's tile, and whether they are finite: worker, shard, tile, …"""
    worker, shard, tile, _row, _element, position, inside, a = compensated_tile(place, memory, size)
    wrong = tl.sum(tl.where(inside, a * 0, 0.0), 0)
    tl.store(taken[1] + worker, wrong, mask=wrong != wrong)  # all programs that find one write the same
    return worker, shard, tile, position, inside, a


@triton.jit
def _entries(drawn, tile, start, count, first, size: tl.constexpr, chunk: tl.constexpr):
    """Entries of a tile: their numbers, their elements, and which there are."""
    where, k, _ = drawn
    i = start + tl.arange(0, chunk)
    number = first + i
    number = tl.where(number >= k, number - k, number)
    element = tl.load(where + number, mask=i < count, other=-1)
    there = (element >= tile * size) & (element < (tile + 1) * size)
    return number, tl.where(there, element, tile * size), there


@triton.jit
def _settle(lost, own, memory, taken, worker, position, there):
    """The new error of elements that are sent, and no momentum."""
    keep(lost, memory, worker, position, there)
    if taken[5] is not None:
        at = taken[5] + worker.to(tl.int64) * taken[6] + position
        tl.store(at, tl.zeros_like(own), mask=there & (own != 0))


@triton.jit
def _take(place, memory, drawn, taken, size: tl.constexpr, chunk: tl.constexpr):
    first = tl.load(drawn[2] + 2 * (tl.program_id(0) % place[5]))
    count = tl.load(drawn[2] + 2 * (tl.program_id(0) % place[5]) + 1)
    worker, shard, tile, position, inside, a = _first(place, memory, taken, size)
    keep(a, memory, worker, position, inside)
    tl.debug_barrier()
    values = taken[0] + worker.to(tl.int64) * drawn[1]
    for start in range(0, count, chunk):
        number, element, there = _entries(drawn, tile, start, count, first, size, chunk)
        if memory[5] is None:
            spot, _real = places(place, worker, shard, tile, element, size)
        else:
            spot = memory[5] + worker.to(tl.int64) * memory[6] + element
        x = tl.load(spot, mask=there, other=0.0).to(tl.float32)
        sent = x * taken[2] * taken[3]
        tl.store(values + number, sent, mask=there)
        _settle(x - sent * taken[4], sent * taken[4], memory, taken, worker, element, there)


@triton.jit
def _take_run(place, memory, drawn, taken, size: tl.constexpr):
    worker, _, _, position, inside, a = _first(place, memory, taken, size)
    number = position - tl.load(drawn[0])
    number = tl.where(number < 0, number + place[2], number)
    there = inside & (number < drawn[1])
    sent = a * taken[2] * taken[3]
    tl.store(taken[0] + worker.to(tl.int64) * drawn[1] + number, sent, mask=there)
    own = tl.where(there, sent * taken[4], 0.0)
    _settle(a - own, own, memory, taken, worker, position, inside)


@triton.jit
def _spoil(place, memory, drawn, taken, programs, size: tl.constexpr):
    worker = tl.program_id(0) // programs
    bad = tl.load(taken[1] + worker)
    if bad != bad:
        i = tl.program_id(0) % programs * size + tl.arange(0, size)
        there = i < drawn[1]
        nothing = tl.zeros((size,), tl.float32) + bad
        tl.store(taken[0] + worker.to(tl.int64) * drawn[1] + i, nothing, mask=there)
        if drawn[2] is None:
            element = tl.load(drawn[0]).to(tl.int64) + i
            element = tl.where(element >= place[2], element - place[2], element)
        else:
            element = tl.load(drawn[0] + i, mask=there, other=0)
        _settle(nothing, nothing, memory, taken, worker, element, there)


@triton.jit
def _put(values, drawn, place, flag, factor, size: tl.constexpr, chunk: tl.constexpr):
    worker, shard, tile, _ = tile_of(place)
    first = tl.load(drawn[2] + 2 * tile)
    count = tl.load(drawn[2] + 2 * tile + 1)
    own = tile * size + tl.arange(0, size)
    put(tl.zeros((size,), tl.float32), place, worker, shard, tile, own, own < place[4], size)
    tl.debug_barrier()
    for start in range(0, count, chunk):
        number, element, there = _entries(drawn, tile, start, count, first, size, chunk)
        found = tl.load(values + number, mask=there, other=0.0) * factor
        spot, real = places(place, worker, shard, tile, element, size)
        write(found, spot, there & real, flag)


@triton.jit
def _put_run(values, drawn, place, flag, factor, size: tl.constexpr):
    worker, shard, tile, _ = tile_of(place)
    element = tile * size + tl.arange(0, size)
    live = element < place[4]
    number = element - tl.load(drawn[0])
    number = tl.where(number < 0, number + place[2], number)
    found = tl.load(values + number, mask=live & (number < drawn[1]), other=0.0) * factor
    put_checked(found, place, worker, shard, tile, element, live, flag, size)


def _takes(source: Window, feedback: Feedback | None, support: Support, share: float, gain: float, back: float) -> bool:
    return fits(source)


@only(_takes)
def take_from(
    source: Window, feedback: Feedback | None, support: Support, share: float, gain: float, back: float
) -> Tensor:
    device, rows, k, numel = source.buffer.device, source.rows, support.k, source.numel
    drawn, bad = _drawn(support, numel, rows, device)
    momentum = None if feedback is None else feedback.momentum
    stride = 0 if momentum is None else momentum.stride(0)
    taken = Taken(torch.empty((rows, k), device=device), bad, share, gain, back, momentum, stride)
    place = place_of(source, 1, numel, TILE)
    args, programs = (place, memory_of(feedback), drawn, taken), triton.cdiv(k, TILE)
    if drawn.tiles is None:
        launch(_take_run, rows * place.tiles, device, *args, size=TILE)
    else:
        launch(_take, rows * place.tiles, device, *args, size=TILE, chunk=ENTRIES)
    launch(_spoil, rows * programs, device, *args, programs, size=TILE)
    return taken.values


def _puts(values: Tensor, support: Support, target: Window, factor: float) -> bool:
    return fits(target) and values.is_contiguous()


@only(_puts)
def put_to(values: Tensor, support: Support, target: Window, factor: float) -> Flag:
    device, place = target.buffer.device, place_of(target, 1, target.numel, TILE)
    drawn, flag = _drawn(support, target.numel, 1, device)
    if drawn.tiles is None:
        launch(_put_run, place.tiles, device, values, drawn, place, flag, factor, size=TILE)
    else:
        launch(_put, place.tiles, device, values, drawn, place, flag, factor, size=TILE, chunk=ENTRIES)
    return flag.view(())


def _drawn(support: Support, numel: int, room: int, device: torch.device) -> tuple[Drawn, Tensor]:
    """A support, as kernels take it, and `room` zeros."""
    k, tiles, zeros = support.k, triton.cdiv(numel, TILE), torch.empty(room, device=device)
    streams = [support.turn] if support.draw is None else [support.turn, support.draw]
    both = joined(streams)
    noise = keys_of(both, len(streams), device)
    few = int(triton.next_power_of_2(room))
    if support.draw is None:
        drawn = Drawn(torch.empty(1, dtype=torch.int32, device=device), k, None)
        launch(_draw_run, 1, device, noise, drawn, numel, (zeros, room), few=few)
        return drawn, zeros
    where = torch.empty(k, dtype=torch.int32, device=device)
    drawn = Drawn(where, k, torch.empty((tiles, 2), dtype=torch.int32, device=device))
    args = noise, drawn, numel, numel // k, numel % k, tiles, (zeros, room)
    launch(_draw, triton.cdiv(max(k, tiles), DRAWN), device, *args, shape=(DRAWN, few, TILE))
    return drawn, zeros
