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
from gradwire.kernels.window.gpu import MOST, place_of, places, tile_of, write

TILE = 4096  # elements of a program
CHUNK = 128  # entries that are added at a time
EDGES = 256  # tiles of a program that looks for their entries


class Entries(NamedTuple):
    """Rows of values at ascending indices."""

    values: Tensor
    where: Tensor
    k: int
    edges: Tensor  # the first entry of each tile, and the number of all


@triton.jit
def _edges(entries, tiles, steps, programs, tile: tl.constexpr, size: tl.constexpr):
    """How many indices of a row lie below the first element of each tile."""
    _, where, k, edges = entries
    row = (tl.program_id(0) // programs).to(tl.int64)
    i = tl.program_id(0) % programs * size + tl.arange(0, size)
    there = i <= tiles
    where += row * k
    low = tl.zeros_like(i)
    high = low + k
    for _ in range(steps):
        middle = (low + high) // 2
        still = there & (low < high)
        below = tl.load(where + middle, mask=still, other=0) < i.to(tl.int64) * tile
        low = tl.where(still & below, middle + 1, low)
        high = tl.where(still & (below == 0), middle, high)
    tl.store(edges + row * (tiles + 1) + i, tl.where(i == tiles, k, low), mask=there)


@triton.jit
def _entries(entries, row, tile, start, length, tile_size: tl.constexpr, chunk: tl.constexpr):
    """Entries of a tile, from number `start` of the row on: values, elements, and which there are."""
    values, where, k, _ = entries
    i = start + tl.arange(0, chunk)
    to = row.to(tl.int64) * k + i
    element = tl.load(where + to, mask=i < k, other=-1)
    first = tile * tile_size
    there = (element >= first) & (element < tl.minimum(first + tile_size, length))
    return tl.load(values + to, mask=there, other=0.0), tl.where(there, element, first).to(tl.int32), there


@triton.jit
def _put_to(entries, place, flag, factor, size: tl.constexpr, chunk: tl.constexpr):
    """A row for each shard."""
    worker, shard, tile, row = tile_of(place)
    own = tile * size + tl.arange(0, size)
    target, inside = places(place, worker, shard, tile, own, size)
    nothing = tl.zeros((size,), tl.float32) * factor
    tl.store(target, nothing.to(target.dtype.element_ty), mask=inside & (own < place[4]))
    tl.debug_barrier()
    edge = entries[3] + row.to(tl.int64) * (place[5] + 1) + tile
    last = tl.load(edge + 1)
    for start in range(tl.load(edge), last, chunk):
        value, element, there = _entries(entries, row, tile, start, place[4], size, chunk)
        at, real = places(place, worker, shard, tile, element, size)
        write((value * factor)[None, :], at[None, :], (real & there)[None, :], flag)


@triton.jit
def _mean_to(entries, senders, place, sums, flag, factor, size: tl.constexpr, chunk: tl.constexpr):
    """The mean of `senders` rows for each shard; `sums` is room for them where the result is too coarse."""
    worker, shard, tile, row = tile_of(place)
    own = tile * size + tl.arange(0, size)
    target, inside = places(place, worker, shard, tile, own, size)
    inside = inside & (own < place[4])
    if sums is None:
        to = target
    else:
        sums += row.to(tl.int64) * place[4]
        to = sums + own
    tl.store(to, tl.zeros((size,), tl.float32), mask=inside)
    tl.debug_barrier()
    for sender in range(senders):
        this = row * senders + sender
        edge = entries[3] + this.to(tl.int64) * (place[5] + 1) + tile
        last = tl.load(edge + 1)
        for start in range(tl.load(edge), last, chunk):
            value, element, there = _entries(entries, this, tile, start, place[4], size, chunk)
            at, real = places(place, worker, shard, tile, element, size)
            if sums is not None:
                at = sums + element
            there = there & real
            tl.store(at, tl.load(at, mask=there, other=0.0) + value, mask=there)
        tl.debug_barrier()
    total = tl.load(to, mask=inside, other=0.0)
    mean = tl.div_rn(total, tl.zeros_like(total) + senders) * factor
    write(mean[None, :], target[None, :], inside[None, :], flag)


def put_rows_to(values: Tensor, indices: Tensor, shard: int, target: Window, factor: float) -> Flag:
    device, rows = target.buffer.device, values.shape[0]
    place, flag = place_of(target, rows, shard, TILE), torch.zeros((), device=device)
    entries = _found(values, indices, place.tiles)
    launch(_put_to, rows * place.tiles, device, entries, place, flag, factor, size=TILE, chunk=CHUNK)
    return flag


def _serves(values: Tensor, indices: Tensor, numel: int, groups: int) -> bool:
    return values.dtype == torch.float32 and 0 < numel < MOST


@only(_serves)
def mean(values: Tensor, indices: Tensor, numel: int, groups: int) -> Tensor:
    out = torch.empty((groups, numel), device=values.device)
    mean_to(values, indices, Window.whole(out), 1.0)
    return out


def mean_to(values: Tensor, indices: Tensor, target: Window, factor: float) -> Flag:
    device, numel, groups = target.buffer.device, target.numel, target.rows
    place, flag = place_of(target, 1, numel, TILE), torch.zeros((), device=device)
    entries = _found(values, indices, place.tiles)
    sums = None if target.buffer.dtype == torch.float32 else torch.empty((groups, numel), device=device)
    args = entries, values.shape[0] // groups, place, sums, flag, factor
    launch(_mean_to, groups * place.tiles, device, *args, size=TILE, chunk=CHUNK, num_stages=1)
    return flag


def _found(values: Tensor, indices: Tensor, tiles: int) -> Entries:
    (rows, k), device = values.shape, values.device
    edges = torch.empty((rows, tiles + 1), dtype=torch.int32, device=device)
    entries = Entries(values.contiguous(), indices.contiguous(), k, edges)
    programs = triton.cdiv(tiles + 1, EDGES)
    launch(_edges, rows * programs, device, entries, tiles, k.bit_length(), programs, tile=TILE, size=EDGES)
    return entries
