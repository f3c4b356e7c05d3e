"""Products with thin factors on a GPU: all matrices of a unit in one launch, two where a sum is cut into parts.

A program is told by one row of a table which elements of which matrix it treats. M Q is found by programs that own some
rows and go through the columns, Pᵀ M by programs that own some columns and go through the rows. A long way is cut into
parts, whose results a second launch adds; all sums have an order that the shapes alone decide. Products and sums are
fused here: products agree with plain torch to rounding only, and so they cost half.

The first `times` also compensates the gradient: it reads what the window and the memory hold, multiplies it, and leaves
it in `x`, vectors between the matrices included. That spares a read of all elements. Before it, `x` holds nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from gradwire.core.window import Feedback, Spans, Window
from gradwire.kernels.backend import only
from gradwire.kernels.launch import launch
from gradwire.kernels.products.matrices import Matrices
from gradwire.kernels.window.gpu import Memory, compensated, fits, keep, memory_of

MOST_RANK = 32
ROWS, COLUMNS = 8, 128  # of a tile
STEPS = 16  # tiles that a program goes through to find M Q, or to write P Qᵀ
PART = 256  # least rows that a program goes through to find Pᵀ M
PARTS = 64  # most parts of a sum over the rows
ADDED = 128  # elements of a program that adds parts


class Tiles(NamedTuple):
    """What the programs of a launch treat, an array of numbers each. See `_tile`, or `_added` for `parts`."""

    tiles: Tensor
    parts: Tensor | None  # None: no sum is cut into parts
    size: int  # elements of the results
    room: int  # elements of the results and of the parts behind them


class Lies(NamedTuple):
    """Where elements lie, a row for each worker."""

    x: Tensor
    stride: int
    shifts: Tensor | None = None  # of each tile: its matrix lies so far from its place


@triton.jit
def _at(lies, worker, place, tile):
    """Where a matrix lies."""
    x, stride, shifts = lies
    if shifts is not None:
        place += tl.load(shifts + tile)
    return x + worker * stride + place


@triton.jit
def _tile(table, tile):
    """Place of a matrix, width, rows from-to, columns from-to, rank, places of its factors P and Qᵀ."""
    at = table + tile * 9
    place = tl.load(at)
    width = tl.load(at + 1).to(tl.int32)
    top = tl.load(at + 2).to(tl.int32)
    bottom = tl.load(at + 3).to(tl.int32)
    low = tl.load(at + 4).to(tl.int32)
    high = tl.load(at + 5).to(tl.int32)
    rank = tl.load(at + 6).to(tl.int32)
    return place, width, top, bottom, low, high, rank, tl.load(at + 7), tl.load(at + 8)


@triton.jit
def _mine(tiles, groups: tl.constexpr, together: tl.constexpr):
    """Tile, worker and columns of the factors that this program treats; and whether those are the first."""
    program = tl.program_id(0)
    rest = program // tiles
    group = rest % groups
    return program % tiles, (rest // groups).to(tl.int64), group * together + tl.arange(0, together), group == 0


@triton.jit
def _times(table, tiles, given, memory, right, left, shape: tl.constexpr):
    """Some rows of M Q, (factor's columns, rows, columns) at a time."""
    together: tl.constexpr = shape[1]
    rows: tl.constexpr = shape[2]
    columns: tl.constexpr = shape[3]
    tile, worker, r, first = _mine(tiles, shape[0], together)
    place, width, top, bottom, low, high, rank, to, start = _tile(table, tile)
    x = _at(given, worker, place, tile)
    row = top + tl.arange(0, rows)
    last = tl.where(first, bottom, 0)  # one program of those that read an element keeps it
    total = tl.zeros((together, rows, columns), tl.float32)
    for begin in range(low, high, columns):
        column = begin + tl.arange(0, columns)
        element = row[None, :, None] * width + column[None, None, :]
        inside = (row < bottom)[None, :, None] & (column < high)[None, None, :]
        a = tl.load(x + element, mask=inside, other=0.0).to(tl.float32)
        a = compensated(a, memory, worker, place + element, inside)
        keep(a, memory, worker, place + element, inside & (row < last)[None, :, None])
        live = (r < rank)[:, None, None] & (column < high)[None, None, :]
        q = tl.load(right + start + r[:, None, None] * width + column[None, None, :], mask=live, other=0.0)
        a, q = tl.broadcast(a, q)
        total = tl.fma(a, q, total)
    found = left[0] + worker * left[1] + to + row[None, :] * rank + r[:, None]
    tl.store(found, tl.sum(total, 2), mask=(row < bottom)[None, :] & (r < rank)[:, None])


@triton.jit
def _transposed(table, tiles, given, left, right, shape: tl.constexpr):
    """Some columns of Pᵀ M, (factor's columns, rows, columns) at a time."""
    together: tl.constexpr = shape[1]
    rows: tl.constexpr = shape[2]
    columns: tl.constexpr = shape[3]
    tile, worker, r, _ = _mine(tiles, shape[0], together)
    place, width, top, bottom, low, high, rank, start, to = _tile(table, tile)
    x = _at(given, worker, place, tile)
    column = low + tl.arange(0, columns)
    total = tl.zeros((together, rows, columns), tl.float32)
    for begin in range(top, bottom, rows):
        row = begin + tl.arange(0, rows)
        inside = (row < bottom)[None, :, None] & (column < high)[None, None, :]
        a = tl.load(x + (row[None, :, None] * width + column[None, None, :]), mask=inside, other=0.0)
        live = (r < rank)[:, None, None] & (row < bottom)[None, :, None]
        p = tl.load(left + start + row[None, :, None] * rank + r[:, None, None], mask=live, other=0.0)
        a, p = tl.broadcast(a, p)
        total = tl.fma(a, p, total)
    found = right[0] + worker * right[1] + to + r[:, None] * width + column[None, :]
    tl.store(found, tl.sum(total, 1), mask=(r < rank)[:, None] & (column < high)[None, :])


@triton.jit
def _added(table, tiles, room, size: tl.constexpr, together: tl.constexpr):
    """Results whose sum was cut: their parts, `together` at a time."""
    row = table + tl.program_id(0) % tiles * 5
    at = room[0] + (tl.program_id(0) // tiles).to(tl.int64) * room[1]
    to, start, step, parts, count = tl.load(row), tl.load(row + 1), tl.load(row + 2), tl.load(row + 3), tl.load(row + 4)
    element = tl.arange(0, size)
    total = tl.zeros((together, size), tl.float32)
    for first in range(0, parts.to(tl.int32), together):
        part = first + tl.arange(0, together)
        inside = (part < parts)[:, None] & (element < count)[None, :]
        total += tl.load(at + start + part[:, None] * step + element[None, :], mask=inside, other=0.0)
    tl.store(at + to + element, tl.sum(total, 0), mask=element < count)


@triton.jit
def _write(table, tiles, left, right, target, kept: tl.constexpr, shape: tl.constexpr):
    """P Qᵀ to where the matrices lie in `target`; or, if that is what is kept, taken off it."""
    groups: tl.constexpr = shape[0]
    together: tl.constexpr = shape[1]
    rows: tl.constexpr = shape[2]
    columns: tl.constexpr = shape[3]
    wide: tl.constexpr = groups * together
    tile, worker, _, _ = _mine(tiles, 1, 1)
    place, width, top, bottom, low, high, rank, of_left, of_right = _tile(table, tile)
    out = _at(target, worker, place, tile)
    p_at = left + of_left
    q_at = right[0] + worker * right[1] + of_right
    row = top + tl.arange(0, rows)
    for begin in range(low, high, columns):
        column = begin + tl.arange(0, columns)
        product = tl.zeros((rows, columns), tl.float32)
        for r in tl.static_range(wide):
            p = tl.load(p_at + row * rank + r, mask=row < tl.where(r < rank, bottom, 0), other=0.0)
            q = tl.load(q_at + r * width + column, mask=column < tl.where(r < rank, high, 0), other=0.0)
            p, q = tl.broadcast(p[:, None], q[None, :])
            product = tl.fma(p, q, product)
        at = out + (row[:, None] * width + column[None, :])
        inside = (row < bottom)[:, None] & (column < high)[None, :]
        if kept:
            product = tl.load(at, mask=inside, other=0.0) - product
        tl.store(at, product.to(at.dtype.element_ty), mask=inside)


def _each(matrices: Matrices) -> Iterator[tuple[int, int, int, int, int, int]]:
    """Place, height, width, rank, and the places of the factors, of each matrix."""
    left = right = 0
    for place, (height, width), rank in zip(matrices.places, matrices.shapes, matrices.ranks, strict=True):
        yield place, height, width, rank, left, right
        left, right = left + height * rank, right + rank * width


def _between(matrices: Matrices, spans: Spans) -> Iterator[tuple[int, int, int]]:
    """What lies beside the matrices, as other ones that have no factors: place, height and width."""
    ends, at, step = [], 0, COLUMNS * STEPS
    for first, last in spans:
        ends.append((at, at := at + last - first))
    for first, last in matrices.between:
        for low, high in ((max(first, a), min(last, b)) for a, b in ends if a < last and first < b):
            whole = (high - low) // step
            yield low, whole, step
            yield low + whole * step, 1, high - low - whole * step


@lru_cache(maxsize=256)
def _for_times(matrices: Matrices, spans: Spans | None, device: torch.device) -> Tiles:
    """Programs that own `ROWS` rows and up to `STEPS` tiles of columns; with `spans`, of what lies beside, too."""
    step, found, cut = COLUMNS * STEPS, [], _Cut(sum(h * r for h, r in matrices.left))
    for place, height, width, rank, left, right in _each(matrices):
        to, size = cut.places(left, height * rank, -(-width // step))
        for k, low in enumerate(range(0, width, step)):
            ends = low, min(low + step, width), rank, to + k * size, right
            found += [(place, width, top, min(top + ROWS, height), *ends) for top in range(0, height, ROWS)]
    for place, height, width in _between(matrices, spans) if spans is not None else ():
        ends = 0, width, 0, 0, 0
        found += [(place, width, top, min(top + ROWS, height), *ends) for top in range(0, height, ROWS) if width]
    return cut.tiles(found, device)


@lru_cache(maxsize=256)
def _for_transposed(matrices: Matrices, device: torch.device) -> Tiles:
    """Programs that own a tile of columns and a part of the rows."""
    found, cut = [], _Cut(sum(r * w for r, w in matrices.right))
    for place, height, width, rank, left, right in _each(matrices):
        step = max(PART, -(-height // (PARTS * ROWS)) * ROWS)
        to, size = cut.places(right, rank * width, -(-height // step))
        for k, top in enumerate(range(0, height, step)):
            ends = width, top, min(top + step, height)
            tiles = ((low, min(low + COLUMNS, width)) for low in range(0, width, COLUMNS))
            found += [(place, *ends, low, high, rank, left, to + k * size) for low, high in tiles]
    return cut.tiles(found, device)


@lru_cache(maxsize=256)
def _for_write(matrices: Matrices, device: torch.device) -> Tensor:
    """Programs that own `ROWS` rows and up to `STEPS` tiles of columns."""
    step, found = COLUMNS * STEPS, []
    for place, height, width, rank, left, right in _each(matrices):
        for low in range(0, width, step):
            ends = low, min(low + step, width), rank, left, right
            found += [(place, width, top, min(top + ROWS, height), *ends) for top in range(0, height, ROWS)]
    return _numbers(found, 9, device)


class _Cut:
    """Where results lie, `size` elements in all, and behind them the parts of those that are cut."""

    def __init__(self, size: int) -> None:
        self._size, self._room = size, size
        self._parts: list[tuple[int, ...]] = []

    def places(self, to: int, size: int, parts: int) -> tuple[int, int]:
        """Where the first part of a result of `size` elements goes, and how far from one to the next it is."""
        if parts == 1:
            return to, 0
        first, self._room = self._room, self._room + parts * size
        for at in range(0, size, ADDED):
            self._parts.append((to + at, first + at, size, parts, min(ADDED, size - at)))
        return first, size

    def tiles(self, found: Sequence[tuple[int, ...]], device: torch.device) -> Tiles:
        parts = _numbers(self._parts, 5, device) if self._parts else None
        return Tiles(_numbers(found, 9, device), parts, self._size, self._room)


@lru_cache(maxsize=1024)
def _shifts(matrices: Matrices, spans: Spans, writes: bool, device: torch.device) -> Tensor | None:
    """For each tile, how far its matrix lies from its place in a window of such spans; None: it lies there."""
    if len(spans) == 1 and spans[0][0] == 0:
        return None
    table = _for_write(matrices, device) if writes else _for_times(matrices, spans, device).tiles
    places, ends, at = table[:, 0].contiguous().cpu(), [], 0
    for first, last in spans:
        ends.append((at, first - at))
        at += last - first
    starts, moved = (torch.tensor(numbers) for numbers in zip(*ends, strict=True))
    return moved[torch.searchsorted(starts, places, right=True) - 1].to(device)


def _numbers(found: Sequence[tuple[int, ...]], width: int, device: torch.device) -> Tensor:
    return torch.tensor(found, dtype=torch.int64).reshape(-1, width).to(device)


def _shape(rank: int) -> tuple[int, ...]:
    """What kernels are compiled for: groups of a factor's columns, columns of a group, rows and columns of a tile."""
    wide = int(triton.next_power_of_2(max(1, rank)))
    together = min(wide, 8)
    return wide // together, together, ROWS, COLUMNS


class Tiled:
    """The matrices of a gradient, where they lie."""

    def __init__(self, source: Window, feedback: Feedback | None, matrices: Matrices) -> None:
        self._source, self._feedback, self._matrices = source, feedback, matrices
        self._device = source.buffer.device
        self._shape = _shape(max(matrices.ranks, default=1))
        self._memory: Memory | None = None  # until `x` is there
        if feedback is not None:
            self.x, self._memory = feedback.out, memory_of(feedback)
        elif len(source.spans) == 1 and source.buffer.dtype == torch.float32:
            self.x = source.read()
        else:
            self.x = torch.empty((source.rows, source.numel), device=self._device)
            self._memory = Memory(None, 0, None, None, None, self.x, self.x.stride(0))

    def times(self, right: Tensor) -> Tensor:
        spans = self._source.spans
        if self._memory is None:
            table = _for_times(self._matrices, None, self._device)
            given, memory = _lies(self.x), memory_of(None)
        else:
            table = _for_times(self._matrices, spans, self._device)
            shifts = _shifts(self._matrices, spans, False, self._device)
            given, memory, self._memory = _lies(self._source.buffer, shifts), self._memory, None
        left = torch.empty((len(self.x), table.room), device=self._device)
        args = table.tiles, len(table.tiles), given, memory, _dense(right), _lies(left)
        self._launch(_times, table.tiles, self._shape[0] * len(self.x), *args)
        return self._whole(left, table)

    def transposed(self, left: Tensor) -> Tensor:
        table = _for_transposed(self._matrices, self._device)
        right = torch.empty((len(self.x), table.room), device=self._device)
        args = table.tiles, len(table.tiles), _lies(self.x), _dense(left), _lies(right)
        self._launch(_transposed, table.tiles, self._shape[0] * len(self.x), *args)
        return self._whole(right, table)

    def write(self, left: Tensor, right: Tensor, target: Window) -> None:
        assert target.buffer.stride(1) == 1, "elements of a row are neighbours"
        self._write(left, right, target.buffer, target.spans, kept=False)

    def keep(self, left: Tensor, right: Tensor) -> None:
        assert self._feedback is not None
        out = self._feedback.out
        self._write(left, right, out, ((0, out.shape[1]),), kept=True)

    def _write(self, left: Tensor, right: Tensor, target: Tensor, spans: Spans, kept: bool) -> None:
        table = _for_write(self._matrices, self._device)
        shifts = _shifts(self._matrices, spans, True, self._device)
        args = table, len(table), _dense(left), _lies(_dense(right)), _lies(target, shifts)
        self._launch(_write, table, len(target), *args, kept=kept)

    def _whole(self, room: Tensor, table: Tiles) -> Tensor:
        """The results, with those whole that were cut."""
        if table.parts is not None:
            args = table.parts, len(table.parts), _lies(room)
            launch(_added, len(table.parts) * len(room), self._device, *args, size=ADDED, together=8)
        return room[:, : table.size]

    def _launch(self, kernel: Any, table: Tensor, times: int, *args: Any, **constants: Any) -> None:
        launch(kernel, len(table) * times, self._device, *args, **constants, shape=self._shape)


def _lies(x: Tensor, shifts: Tensor | None = None) -> Lies:
    return Lies(x, x.stride(0), shifts)


def _dense(factors: Tensor) -> Tensor:
    return factors if factors.stride(1) == 1 else factors.contiguous()


def _accepts(source: Window, feedback: Feedback | None, matrices: Matrices) -> bool:
    """Ranks that a program can hold; matrices of one run each, which windows of whole tensors have."""
    kept = feedback is None or feedback.out.stride(1) == 1
    return fits(source) and kept and max(matrices.ranks, default=1) <= MOST_RANK


@only(_accepts)
def see(source: Window, feedback: Feedback | None, matrices: Matrices) -> Tiled:
    return Tiled(source, feedback, matrices)
