"""Products with thin factors on a GPU: all matrices of a unit in one launch, two where a sum is cut into parts.

A program is told by one row of a table which elements of which matrix it treats. M Q is found by programs that own some
rows and go through the columns; Pᵀ M is found, and P Qᵀ written, by programs that own some columns and go through the
rows. A long way is cut into parts, whose results a second launch adds; all sums have an order that the shapes alone
decide. Products and sums are fused here: products agree with plain torch to rounding only, and so they cost half.

The first `times` also compensates the gradient: it reads what the window and the memory hold, multiplies it, and leaves
it in `x`, vectors between the matrices included. That spares a read of all elements. Before it, `x` holds nothing.

Matrices whose width and place are multiples of four, and most are, are read and written four elements at a time.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from gradwire.core.window import Feedback, Flag, Window
from gradwire.kernels.backend import only
from gradwire.kernels.launch import launch
from gradwire.kernels.products import tiles
from gradwire.kernels.products.matrices import Matrices
from gradwire.kernels.products.tiles import Tiles
from gradwire.kernels.window.gpu import compensated, keep
from gradwire.kernels.window.places import Memory, fits, memory_of

MOST_RANK = 32


class Rows(NamedTuple):
    """Elements, a row for each worker."""

    x: Tensor | None
    stride: int  # 0 for one row: kernels know that it is a multiple of four


@triton.jit
def _tile(table, tile, by: tl.constexpr):
    """Place of a matrix, among all and in the window; its width, rows from-to, columns from-to, rank, and the places of
    its factors P and Qᵀ. The compiler gets to know that places in the gradient are multiples of `by`."""
    at = table + tile * 11
    place, there = tl.load(at + 1) // by * by, tl.load(at + 2) // by * by
    width = tl.load(at + 3).to(tl.int32) // by * by
    top = tl.load(at + 4).to(tl.int32)
    bottom = tl.load(at + 5).to(tl.int32)
    low = tl.load(at + 6).to(tl.int32) // by * by
    high = tl.load(at + 7).to(tl.int32) // by * by
    rank = tl.load(at + 8).to(tl.int32)
    return place, there, width, top, bottom, low, high, rank, tl.load(at + 9), tl.load(at + 10)


@triton.jit
def _by_fours(table, tile):
    """Whether the matrix of a tile can be treated by fours."""
    return tl.load(table + tile * 11) != 0


@triton.jit
def _mine(tiles, groups: tl.constexpr):
    """Tile, worker and group of the factors' columns that this program treats."""
    program = tl.program_id(0)
    rest = program // tiles
    return program % tiles, (rest // groups).to(tl.int64), rest % groups


@triton.jit
def _place(width, columns: tl.constexpr):
    """Rows and columns of a tile, a row for each warp, and how far its elements lie from the first."""
    row, column = tl.arange(0, 4)[:, None], tl.arange(0, columns)[None, :]
    return row, column, row * width + column


@triton.jit
def _of_q(at, width, count, first, rank, number: tl.constexpr, columns: tl.constexpr):
    """`count` elements of `number` rows of Qᵀ from `first` on, each as a tile; zeros where there are none."""
    column, found = tl.zeros((4, 1), tl.int32) + tl.arange(0, columns)[None, :], ()
    for k in tl.static_range(number):
        r = first + k
        row = tl.load(at + r * width + column, mask=column < tl.where(r < rank, count, 0), other=0.0)
        found += (row,)  # type: ignore[assignment]
    return found


@triton.jit
def _zeros(number: tl.constexpr, columns: tl.constexpr):
    found = ()
    for _ in tl.static_range(number):
        found += (tl.zeros((4, columns), tl.float32),)  # type: ignore[assignment]
    return found


@triton.jit
def _times(table, tiles, given, memory, right, left, shape: tl.constexpr):
    """Some rows of M Q."""
    tile, worker, group = _mine(tiles, shape[0])
    if _by_fours(table, tile):
        _times_rows(table, tile, worker, group, given, memory, right, left, shape, True)
    else:
        _times_rows(table, tile, worker, group, given, memory, right, left, shape, False)


@triton.jit
def _times_rows(table, tile, worker, group, given, memory, right, left, shape: tl.constexpr, fours: tl.constexpr):
    groups: tl.constexpr = shape[0]
    together: tl.constexpr = shape[1]
    tall: tl.constexpr = shape[2] if fours else 1  # tiles, one below the other
    columns: tl.constexpr = shape[3]
    by: tl.constexpr = 4 if fours else 1
    even: tl.constexpr = 4 if fours and shape[4] else 1
    place, there, width, top, bottom, low, high, rank, to, start = _tile(table, tile, by)
    row, column, element = _place(width, columns)
    x = given[0] + worker * given[1] + (there + top * width)
    kept = place.to(tl.int32) + top * width
    q_at = right + start // even * even
    total = _zeros(together * tall, columns)
    for begin in range(low, high, columns):
        q = _of_q(q_at + begin, width, high - begin, group * together, rank, together, columns)
        a = ()
        for i in tl.static_range(tall):  # all is read before anything is written
            inside, to_there = (row < bottom - top - 4 * i) & (column < high - begin), 4 * i * width + begin + element
            read = tl.load(x + to_there, mask=inside, other=0.0).to(tl.float32)
            a += (compensated(read, memory, worker, kept + to_there, inside),)  # type: ignore[assignment]
        new = ()
        for i in tl.static_range(tall):
            inside, to_there = (row < bottom - top - 4 * i) & (column < high - begin), 4 * i * width + begin + element
            if groups > 1:  # one program of those that read an element keeps it
                inside = inside & (row < tl.where(group == 0, 4, 0))
            keep(a[i], memory, worker, kept + to_there, inside)
            for k in tl.static_range(together):
                new += (tl.fma(a[i], q[k], total[i * together + k]),)  # type: ignore[assignment]
        total = new
    row = tl.arange(0, 4)
    for i in tl.static_range(tall):
        first = top + 4 * i
        found = left[0] + worker * left[1] + to + first * rank
        for k in tl.static_range(together):
            r = group * together + k
            sums = tl.sum(total[i * together + k], 1)
            tl.store(found + row * rank + r, sums, mask=row < tl.where(r < rank, bottom - first, 0))


@triton.jit
def _transposed(table, tiles, given, left, right, shape: tl.constexpr):
    """Some columns of Pᵀ M."""
    tile, worker, group = _mine(tiles, shape[0])
    if _by_fours(table, tile):
        _transposed_columns(table, tile, worker, group, given, left, right, shape, True)
    else:
        _transposed_columns(table, tile, worker, group, given, left, right, shape, False)


@triton.jit
def _transposed_columns(table, tile, worker, group, given, left, right, shape: tl.constexpr, fours: tl.constexpr):
    together: tl.constexpr = shape[1]
    tall: tl.constexpr = 4 if fours else 1
    columns: tl.constexpr = shape[3]
    by: tl.constexpr = 4 if fours else 1
    even: tl.constexpr = 4 if fours and shape[4] else 1
    place, _, width, top, bottom, low, high, rank, start, to = _tile(table, tile, by)
    row, column, element = _place(width, columns)
    x = given[0] + worker * given[1] + (place + low)
    total = _zeros(together, columns)
    for begin in range(top, bottom, 4 * tall):
        for i in tl.static_range(tall):
            first = begin + 4 * i
            inside = (row < bottom - first) & (column < high - low)
            a = tl.load(x + first * width + element, mask=inside, other=0.0)
            new = ()
            for k in tl.static_range(together):
                r = group * together + k
                present = row < tl.where(r < rank, bottom - first, 0)
                p = tl.load(left + start + first * rank + row * rank + r, mask=present, other=0.0)
                new += (tl.fma(a, tl.broadcast_to(p, (4, columns)), total[k]),)  # type: ignore[assignment]
            total = new
    found = right[0] + worker * right[1] + (to // even * even + low)
    column = tl.arange(0, columns)
    for k in tl.static_range(together):
        r = group * together + k
        tl.store(found + r * width + column, tl.sum(total[k], 0), mask=column < tl.where(r < rank, high - low, 0))


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
def _write(table, tiles, left, right, target, own, kept, flag, shape: tl.constexpr):
    """P Qᵀ to where the matrices lie in `target`; and P `own`, if there is that, off what is kept."""
    tile, worker, _ = _mine(tiles, 1)
    if _by_fours(table, tile):
        _write_columns(table, tile, worker, left, right, target, own, kept, flag, shape, True)
    else:
        _write_columns(table, tile, worker, left, right, target, own, kept, flag, shape, False)


@triton.jit
def _write_columns(table, tile, worker, left, right, target, own, kept, flag, shape: tl.constexpr, fours: tl.constexpr):
    """`flag` becomes NaN if a product is not finite."""
    wide: tl.constexpr = shape[0] * shape[1]
    held: tl.constexpr = wide <= 8  # rows of Qᵀ, in registers
    tall: tl.constexpr = shape[2] if fours else 1  # tiles, one below the other
    columns: tl.constexpr = shape[3]
    by: tl.constexpr = 4 if fours else 1
    even: tl.constexpr = 4 if fours and shape[4] else 1
    place, there, width, top, bottom, low, high, rank, of_left, of_right = _tile(table, tile, by)
    row, column, element = _place(width, columns)
    count, start = high - low, of_right // even * even + low
    q_at = right[0] + worker * right[1] + start
    out = target[0] + worker * target[1] + (there + low)
    o_at, error = own[0], kept[0]
    if own[0] is not None:
        o_at += worker * own[1] + start
        error += worker * kept[1] + (place + low)
    q = _of_q(q_at, width, count, 0, rank, wide if held else 1, columns)
    o = q
    if own[0] is not None:
        o = _of_q(o_at, width, count, 0, rank, wide if held else 1, columns)
    bad = tl.zeros((4, columns), tl.float32)
    for begin in range(top, bottom, 4 * tall):
        rest = ()
        for i in tl.static_range(tall):  # all is read before anything is written
            if own[0] is not None:
                inside, first = (row < bottom - begin - 4 * i) & (column < count), (begin + 4 * i) * width
                rest += (tl.load(error + first + element, mask=inside, other=0.0),)  # type: ignore[assignment]
        for i in tl.static_range(tall):
            inside, first = (row < bottom - begin - 4 * i) & (column < count), (begin + 4 * i) * width
            product, less = tl.zeros((4, columns), tl.float32), tl.zeros((4, columns), tl.float32)
            if own[0] is not None:
                less = rest[i]
            for r in tl.static_range(wide):
                present = row < tl.where(r < rank, bottom - begin - 4 * i, 0)
                p = tl.load(left + of_left + (begin + 4 * i) * rank + row * rank + r, mask=present, other=0.0)
                if not held:
                    q = _of_q(q_at, width, count, r, rank, 1, columns)
                product = tl.fma(tl.broadcast_to(p, (4, columns)), q[r if held else 0], product)
                if own[0] is not None:
                    if not held:
                        o = _of_q(o_at, width, count, r, rank, 1, columns)
                    less = tl.fma(tl.broadcast_to(p * -1.0, (4, columns)), o[r if held else 0], less)
            bad = tl.fma(product, tl.zeros((4, columns), tl.float32), bad)
            if own[0] is not None:
                tl.store(error + first + element, less, mask=inside)
                inside = inside & (row < tl.where(worker == 0, 4, 0))  # all workers have the same mean
            tl.store(out + first + element, product.to(out.dtype.element_ty), mask=inside)
    spoilt = tl.sum(bad)
    tl.store(flag, spoilt, mask=spoilt != spoilt)  # all programs that find one write the same


class Tiled:
    """The matrices of a gradient, where they lie."""

    def __init__(self, source: Window, feedback: Feedback | None, matrices: Matrices) -> None:
        self._source, self._feedback, self._matrices = source, feedback, matrices
        self._device = source.buffer.device
        self._shape = _shape(matrices)
        self._memory: Memory | None = None  # until `x` is there
        if feedback is not None:
            self.x, self._memory = feedback.out, memory_of(feedback)
        elif len(source.spans) == 1 and source.buffer.dtype == torch.float32:
            self.x = source.read()
        else:
            self.x = torch.empty((source.rows, source.numel), device=self._device)
            self._memory = Memory(None, 0, None, None, None, self.x, self.x.stride(0))

    def times(self, right: Tensor) -> Tensor:
        memory, self._memory = self._memory, None
        spans, given = (None, self.x) if memory is None else (self._source.spans, self._source.buffer)
        memory = memory_of(None) if memory is None else memory
        if len(self.x) == 1:
            memory = memory._replace(error_stride=0, out_stride=0)
        table = tiles.for_times(self._matrices, spans, tiles.ROWS * self._shape[2], self._device)
        left = torch.empty((len(self.x), table.room), device=self._device)
        args = _rows(given), memory, _dense(right), _rows(left)
        self._launch(_times, table, self._shape[0] * len(left), *args)
        return self._whole(left, table)

    def transposed(self, left: Tensor) -> Tensor:
        table = tiles.for_transposed(self._matrices, self._device)
        right = torch.empty((len(self.x), table.room), device=self._device)
        args = _rows(self.x), _dense(left), _rows(right)
        self._launch(_transposed, table, self._shape[0] * len(right), *args)
        return self._whole(right, table)

    def write(self, left: Tensor, right: Tensor, target: Window, own: Tensor | None = None) -> Flag:
        assert target.buffer.stride(1) == 1, "elements of a row are neighbours"
        table, flag = tiles.for_write(self._matrices, target.spans, self._device), torch.zeros((), device=self._device)
        mine = kept = Rows(None, 0)
        if own is not None:
            assert self._feedback is not None
            assert target.rows == 1, "all workers have the same mean"
            mine, kept = _rows(_dense(own)), _rows(self._feedback.out)
        args = _dense(left), _rows(_dense(right)), _rows(target.buffer), mine, kept, flag
        self._launch(_write, table, target.rows if own is None else len(own), *args)
        return flag

    def _whole(self, room: Tensor, table: Tiles) -> Tensor:
        """The results, with those whole that were cut."""
        if table.parts is not None:
            args = table.parts, len(table.parts), _rows(room)
            launch(_added, len(table.parts) * len(room), self._device, *args, size=tiles.ADDED, together=8)
        return room[:, : table.size]

    def _launch(self, kernel: Any, table: Tiles, times: int, *args: Any) -> None:
        """All tiles, so many times."""
        launch(kernel, len(table.tiles) * times, self._device, table.tiles, len(table.tiles), *args, shape=self._shape)


def _shape(matrices: Matrices) -> tuple[int, ...]:
    """What kernels are compiled for: groups of a factor's columns, columns of a group, rows and columns of a tile; and
    whether Qᵀ can be treated by fours."""
    wide = int(triton.next_power_of_2(max(1, *matrices.ranks, 1)))
    together = min(wide, 8)
    return wide // together, together, 1 if together == 8 else 2, tiles.COLUMNS, tiles.fours(matrices)


def _rows(x: Tensor) -> Rows:
    return Rows(x, x.stride(0) if len(x) > 1 else 0)


def _dense(factors: Tensor) -> Tensor:
    return factors if factors.stride(1) == 1 else factors.contiguous()


def _accepts(source: Window, feedback: Feedback | None, matrices: Matrices) -> bool:
    """Ranks that a program can hold; matrices of one run each, which windows of whole tensors have."""
    kept = feedback is None or feedback.out.stride(1) == 1
    return fits(source) and kept and max(matrices.ranks, default=1) <= MOST_RANK


@only(_accepts)
def see(source: Window, feedback: Feedback | None, matrices: Matrices) -> Tiled:
    return Tiled(source, feedback, matrices)
