"""Scattering on a GPU: a program owns a tile of the result, sets it to zero, and adds what falls into it, row by row.

Indices of a row ascend, so those of a tile are neighbours; `_edges` finds them for all tiles. A barrier lies between
two rows: the order of sums is that of the rows.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from gradwire.core.window import Flag, Window
from gradwire.kernels.backend import only
from gradwire.kernels.launch import launch
from gradwire.kernels.window.gpu import divided, places, put, put_checked, tile_of, write
from gradwire.kernels.window.places import MOST, Place, place_of

TILE = 2048  # elements of a program
CHUNK = 128  # entries that are added at a time
TOGETHER = 8  # rows whose entries are read at once
EDGES = 256  # tiles of a program that looks for their entries


class Entries(NamedTuple):
    """Rows of values at ascending indices."""

    values: Tensor
    where: Tensor
    k: int
    edges: Tensor  # the first entry of each tile, and the number of those inside the row


@triton.jit
def _edges(entries, length, tiles, steps, programs, tile: tl.constexpr, size: tl.constexpr):
    """How many indices of a row lie below the first element of each tile; and how many in the row at all."""
    _, where, k, edges = entries
    row = (tl.program_id(0) // programs).to(tl.int64)
    i = tl.program_id(0) % programs * size + tl.arange(0, size)
    there = i <= tiles
    where += row * k
    bound = tl.minimum(i.to(tl.int64) * tile, length)
    low = tl.zeros_like(i)
    high = low + k
    for _ in range(steps):
        middle = (low + high) // 2
        still = there & (low < high)
        below = tl.load(where + middle, mask=still, other=0) < bound
        low = tl.where(still & below, middle + 1, low)
        high = tl.where(still & (below == 0), middle, high)
    tl.store(edges + row * (tiles + 1) + i, low, mask=there)


@triton.jit
def _entries(entries, row, tile, start, end, length, tile_size: tl.constexpr, chunk: tl.constexpr):
    """Entries of a tile, from number `start` of the row on: values, elements, and which there are."""
    values, where, k, _ = entries
    i = start + tl.arange(0, chunk)
    to = row.to(tl.int64) * k + i
    return _within(values, where, to, i < end, tile * tile_size, length, tile_size)


@triton.jit
def _within(values, where, to, there, first, length, tile_size: tl.constexpr):
    """Values and elements of entries; those outside of their tile, which no encoder writes, are left out."""
    element = tl.load(where + to, mask=there, other=-1)
    value = tl.load(values + to, mask=there, other=0.0)
    there = (element >= first) & (element < tl.minimum(first + tile_size, length))
    return value, tl.where(there, element, first).to(tl.int32), there


@triton.jit
def _put_to(entries, place, flag, factor, size: tl.constexpr, chunk: tl.constexpr):
    """A row for each shard."""
    worker, shard, tile, row = tile_of(place)
    edge = entries[3] + row.to(tl.int64) * (place[5] + 1) + tile
    start = tl.load(edge)
    last = tl.load(edge + 1)
    value, element, there = _entries(entries, row, tile, start, last, place[4], size, chunk)
    own = tile * size + tl.arange(0, size)
    put(tl.zeros((size,), tl.float32) * factor, place, worker, shard, tile, own, own < place[4], size)
    tl.debug_barrier()
    while start < last:
        at, real = places(place, worker, shard, tile, element, size)
        write(value * factor, at, real & there, flag)
        start += chunk
        value, element, there = _entries(entries, row, tile, start, last, place[4], size, chunk)


@triton.jit
def _add(to, element, value, there):
    """Add values to the sums; then wait for all threads."""
    tl.store(to + element, tl.load(to + element, mask=there, other=0.0) + value, mask=there)
    tl.debug_barrier()


@triton.jit
def _mean_to(
    entries, senders, among, place, sums, flag, factor, size: tl.constexpr, chunk: tl.constexpr, together: tl.constexpr
):
    """The sum of `senders` rows for each shard, divided by `among`; `sums` is room for their sums.

    Where each row has few entries in the tile, those of all rows, `together` at most, are read at once.
    """
    worker, shard, tile, row = tile_of(place)
    values, where, k, edges = entries
    own = tile * size + tl.arange(0, size)
    live = own < place[4]
    number = tl.arange(0, together)
    this = row * senders + number
    edge = edges + this.to(tl.int64) * (place[5] + 1) + tile
    start = tl.load(edge, mask=number < senders, other=0)
    last = tl.load(edge + 1, mask=number < senders, other=0)
    i = start[:, None] + tl.arange(0, chunk)[None, :]
    to = this.to(tl.int64)[:, None] * k + i
    value, element, there = _within(values, where, to, i < last[:, None], tile * size, place[4], size)
    sums += row.to(tl.int64) * place[4]
    tl.store(sums + own, tl.zeros((size,), tl.float32), mask=live)
    tl.debug_barrier()
    if (senders <= together) & (tl.max(last - start, 0) <= chunk):
        for sender in range(senders):
            _add(sums, element, value, there & (number == sender)[:, None])
    else:
        for sender in range(senders):
            one = row * senders + sender
            at = edges + one.to(tl.int64) * (place[5] + 1) + tile
            end = tl.load(at + 1)
            for first in range(tl.load(at), end, chunk):
                a, e, real = _entries(entries, one, tile, first, end, place[4], size, chunk)
                _add(sums, e, a, real)
    mean = divided(tl.load(sums + own, mask=live, other=0.0), among) * factor
    if flag is None:
        put(mean, place, worker, shard, tile, own, live, size)
    else:
        put_checked(mean, place, worker, shard, tile, own, live, flag, size)


def put_rows_to(values: Tensor, indices: Tensor, shard: int, target: Window, factor: float) -> Flag:
    device, rows = target.buffer.device, values.shape[0]
    place, flag = place_of(target, rows, shard, TILE), torch.zeros((), device=device)
    entries = _found(values, indices, place)
    launch(_put_to, rows * place.tiles, device, entries, place, flag, factor, size=TILE, chunk=CHUNK)
    return flag


def _serves(values: Tensor, indices: Tensor, numel: int, groups: int) -> bool:
    return values.dtype == torch.float32 and 0 < numel < MOST


@only(_serves)
def mean(values: Tensor, indices: Tensor, numel: int, groups: int) -> Tensor:
    out = torch.empty((groups, numel), device=values.device)
    _mean(values, indices, Window.whole(out), 1.0, None)
    return out


def mean_to(values: Tensor, indices: Tensor, target: Window, factor: float) -> Flag:
    flag = torch.zeros((), device=target.buffer.device)
    _mean(values, indices, target, factor, flag)
    return flag


def sums_to(
    values: Tensor, indices: Tensor, shards: int, shard: int, among: int, target: Window, factor: float
) -> Flag:
    flag = torch.zeros((), device=target.buffer.device)
    _sums(values, indices, shards, shard, among, target, factor, flag)
    return flag


def _mean(values: Tensor, indices: Tensor, target: Window, factor: float, flag: Flag | None) -> None:
    _sums(values, indices, 1, target.numel, values.shape[0] // target.rows, target, factor, flag)


def _sums(
    values: Tensor,
    indices: Tensor,
    shards: int,
    shard: int,
    among: int,
    target: Window,
    factor: float,
    flag: Flag | None,
) -> None:
    device, rows = target.buffer.device, target.rows * shards
    place = place_of(target, shards, shard, TILE)
    entries = _found(values, indices, place)
    here = target.buffer.dtype == torch.float32 and len(target.spans) == 1 and target.buffer.is_contiguous()
    here = here and target.buffer.shape[1] == shards * shard
    sums = target.buffer if here else torch.empty((rows, shard), device=device)
    senders = values.shape[0] // rows
    together = min(TOGETHER, int(triton.next_power_of_2(senders)))
    args = entries, senders, among, place, sums, flag, factor
    launch(_mean_to, rows * place.tiles, device, *args, size=TILE, chunk=CHUNK // 2, together=together)


def _found(values: Tensor, indices: Tensor, place: Place) -> Entries:
    (rows, k), device, tiles = values.shape, values.device, place.tiles
    edges = torch.empty((rows, tiles + 1), dtype=torch.int32, device=device)
    entries = Entries(values.contiguous(), indices.contiguous(), k, edges)
    programs = triton.cdiv(tiles + 1, EDGES)
    launch(
        _edges, rows * programs, device, entries, place.shard, tiles, k.bit_length(), programs, tile=TILE, size=EDGES
    )
    return entries
