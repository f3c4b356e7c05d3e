"""Small matrices on a GPU: all of a unit in two or three launches, whatever their heights.

A program treats some rows of one matrix, told by a row of a table. What a matrix needs to know of all its rows, its
largest magnitude or its Gram matrix, a launch finds in parts, one for each program; the next launch puts the parts
together in their order, in each program anew.
"""

from __future__ import annotations

from functools import lru_cache

import torch
import triton
import triton.language as tl
from torch import Tensor

from gradwire.kernels.backend import only
from gradwire.kernels.factors.reference import SHIFT
from gradwire.kernels.launch import launch
from gradwire.kernels.window.places import MOST

Shapes = tuple[tuple[int, int], ...]
SIZE = 2048  # elements of a program that knows no rows; and of a product of rows with themselves
ROWS = 128, 512  # of a program that knows rows, of low matrices and of high ones: parts of them are read again
PARTS = 16  # of a matrix that is low
TOGETHER = 16  # parts that are added at a time
MOST_RANK = 32


@triton.jit
def _piece(table, tiles):
    """This program's tile and worker, and of the tile: first and last element, matrix, its first tile and their
    number."""
    tile, worker = tl.program_id(0) % tiles, (tl.program_id(0) // tiles).to(tl.int64)
    at = table + tile * 5
    return tile, worker, tl.load(at), tl.load(at + 1), tl.load(at + 2), tl.load(at + 3), tl.load(at + 4)


@triton.jit
def _largest(table, tiles, x, stride, most, size: tl.constexpr):
    """The largest magnitude of each tile, as bits: NaN is the largest."""
    tile, worker, first, last, _, _, _ = _piece(table, tiles)
    element = first + tl.arange(0, size)
    a = tl.load(x + worker * stride + element, mask=element < last, other=0.0)
    bits = a.to(tl.int32, bitcast=True) & 0x7FFFFFFF
    tl.store(most + worker * tiles + tile, tl.max(bits, 0))


@triton.jit
def _unit(table, tiles, x, stride, most, given, out, out_stride, largest, matrices, size: tl.constexpr):
    """Elements over the largest magnitude of their matrix; what is given instead, where that is zero."""
    _, worker, first, last, matrix, start, count = _piece(table, tiles)
    found = tl.zeros((size,), tl.int32)
    for begin in range(0, count.to(tl.int32), size):
        part = begin + tl.arange(0, size)
        bits = tl.load(most + worker * tiles + start + part, mask=part < count, other=0)
        found = tl.maximum(found, bits)
    top = tl.max(found, 0).to(tl.float32, bitcast=True)
    tl.store(largest + worker * matrices + matrix, top)  # all programs of a matrix write the same
    element = first + tl.arange(0, size)
    inside = element < last
    a = tl.load(x + worker * stride + element, mask=inside, other=0.0)
    a = tl.div_rn(a, tl.zeros_like(a) + tl.where(top == 0, 1.0, top))
    if given[0] is not None:
        instead = tl.load(given[0] + element, mask=inside, other=0.0)
        a = tl.where(tl.zeros_like(a) + top == 0, instead, a)
    tl.store(out + worker * out_stride + element, a, mask=inside)


@triton.jit
def _block(table, tiles):
    """This program's tile and worker; place, columns, rows from-to, distance of rows and of columns, first tile of the
    matrix and their number."""
    tile, worker = tl.program_id(0) % tiles, (tl.program_id(0) // tiles).to(tl.int64)
    at = table + tile * 8
    place, rank, top, bottom = tl.load(at), tl.load(at + 1), tl.load(at + 2), tl.load(at + 3)
    down, across, first, count = tl.load(at + 4), tl.load(at + 5), tl.load(at + 6), tl.load(at + 7)
    return tile, worker, place, rank.to(tl.int32), top.to(tl.int32), bottom.to(tl.int32), down, across, first, count


@triton.jit
def _some(top, bottom, rank, down, across, rows: tl.constexpr, columns: tl.constexpr):
    """Where some rows lie in their matrix, and which of their elements there are: (rows, columns)."""
    row, column = top + tl.arange(0, rows), tl.arange(0, columns)
    return row[:, None] * down + column[None, :] * across, (row < bottom)[:, None] & (column < rank)[None, :]


@triton.jit
def _whole(grams, worker, tiles, first, count, columns: tl.constexpr, together: tl.constexpr):
    """The Gram matrix, from its parts, some at a time."""
    place = tl.arange(0, columns)[:, None] * columns + tl.arange(0, columns)[None, :]
    gram = tl.zeros((together, columns, columns), tl.float64)
    for begin in range(0, count.to(tl.int32), together):
        part = begin + tl.arange(0, together)[:, None, None]
        at = (worker * tiles + first + part) * (columns * columns) + place[None, :, :]
        gram += tl.load(grams + at, mask=(part < count) & (place >= 0)[None, :, :], other=0.0)
    return tl.sum(gram, 0)


@triton.jit
def _inverse(gram, rank, share, columns: tl.constexpr):
    """L⁻¹ for the Cholesky factor L of a Gram matrix, shifted by a share of its trace; behind `rank`, that of 1.

    A trace of zero is taken for one, and its share for all.
    """
    i, j = tl.arange(0, columns)[:, None], tl.arange(0, columns)[None, :]
    one = tl.where(i == j, 1.0, 0.0).to(tl.float64)
    trace = tl.sum(tl.sum(gram * one, 1), 0)
    shift = tl.where(trace == 0, 1.0, share * trace)
    gram = tl.where((i < rank) & (j < rank), gram + one * shift, one)
    found = one
    for k in range(columns):
        row = tl.sum(tl.where(i == k, gram, 0.0), 0)
        column = tl.sum(tl.where(j == k, gram, 0.0), 1)
        root = tl.sqrt(tl.sum(tl.where(j == k, row[None, :], 0.0), 1))  # (1,)
        row, column = row[None, :] / root[:, None], column[:, None] / root[:, None]  # of L
        solved = tl.sum(tl.where(i == k, found, 0.0), 0)[None, :] / root[:, None]
        found = tl.where(i == k, solved, tl.where(i > k, found - column * solved, found))
        gram = gram - column * row
    return found


@triton.jit
def _turned(a, inverse):
    """a L⁻ᵀ."""
    return tl.sum(a[:, None, :] * inverse[None, :, :], 2)


@triton.jit
def _gram(table, tiles, x, stride, before, share, grams, shape: tl.constexpr):
    """A part of the Gram matrix; with `before`, the Gram matrices of all, that of the matrix turned by its own.

    What it was turned by is kept behind `before`, too.
    """
    rows: tl.constexpr = shape[0]
    columns: tl.constexpr = shape[1]
    tile, worker, place, rank, top, bottom, down, across, first, count = _block(table, tiles)
    total = tl.zeros((rows, columns, columns), tl.float64)
    to = tl.arange(0, columns)[:, None] * columns + tl.arange(0, columns)[None, :]
    at = (worker * tiles + tile) * columns * columns + to
    if before[0] is not None:
        gram = _whole(before[0], worker, tiles, first, count, columns, shape[2])
        inverse = _inverse(gram, rank, share, columns)
        tl.store(before[1] + at, inverse)
    for begin in range(top, bottom, rows):
        element, inside = _some(begin, bottom, rank, down, across, rows, columns)
        a = tl.load(x + worker * stride + place + element, mask=inside, other=0.0).to(tl.float64)
        if before[0] is not None:
            a = _turned(a, inverse)
        total += a[:, :, None] * a[:, None, :]
    tl.store(grams + at, tl.sum(total, 0))


@triton.jit
def _turn(table, tiles, x, stride, before, grams, share, out, out_stride, shape: tl.constexpr):
    """Rows turned, by what is kept `before` if there is that, and by their Gram matrix; else also turned back."""
    rows: tl.constexpr = shape[0]
    columns: tl.constexpr = shape[1]
    tile, worker, place, rank, top, bottom, down, across, first, count = _block(table, tiles)
    if before is None:
        share = share / rank  # of the mean eigenvalue
    inverse = _inverse(_whole(grams, worker, tiles, first, count, columns, shape[2]), rank, share, columns)
    if before is not None:
        to = tl.arange(0, columns)[:, None] * columns + tl.arange(0, columns)[None, :]
        earlier = tl.load(before + (worker * tiles + tile) * columns * columns + to)
    for begin in range(top, bottom, rows):
        element, inside = _some(begin, bottom, rank, down, across, rows, columns)
        a = tl.load(x + worker * stride + place + element, mask=inside, other=0.0).to(tl.float64)
        if before is not None:
            a = _turned(_turned(a, earlier), inverse)
        else:
            a = tl.sum(_turned(a, inverse)[:, :, None] * inverse[None, :, :], 1)
        tl.store(out + worker * out_stride + place + element, a.to(tl.float32), mask=inside)


@lru_cache(maxsize=256)
def _pieces(shapes: Shapes, device: torch.device) -> Tensor:
    """For each program of `SIZE` elements of one matrix: see `_piece`."""
    found: list[tuple[int, ...]] = []
    start = 0
    for k, (height, width) in enumerate(shapes):
        stop, first = start + height * width, len(found)
        count = -(-height * width // SIZE)
        found += [(at, min(at + SIZE, stop), k, first, count) for at in range(start, stop, SIZE)]
        start = stop
    return torch.tensor(found, dtype=torch.int64).to(device)


@lru_cache(maxsize=256)
def _blocks(shapes: Shapes, turned: bool, device: torch.device) -> Tensor:
    """For each program of some rows of one matrix: see `_block`."""
    found: list[tuple[int, ...]] = []
    start = 0
    for shape in shapes:
        height, rank = reversed(shape) if turned else shape
        step = ROWS[height > PARTS * ROWS[0]]
        count, first = -(-height // step), len(found)
        far = (1, height) if turned else (rank, 1)
        found += [(start, rank, top, min(top + step, height), *far, first, count) for top in range(0, height, step)]
        start += height * rank
    return torch.tensor(found, dtype=torch.int64).to(device)


def _serves(flat: Tensor, shapes: Shapes, instead: Tensor | None = None) -> bool:
    return flat.dtype == torch.float32 and flat.stride(1) == 1 and 0 < flat.shape[1] < MOST


@only(_serves)
def unit(flat: Tensor, shapes: Shapes, instead: Tensor | None = None) -> tuple[Tensor, Tensor]:
    table, rows, device = _pieces(shapes, flat.device), len(flat), flat.device
    out, largest = torch.empty(flat.shape, device=device), torch.empty((rows, len(shapes)), device=device)
    most = torch.empty((rows, len(table)), dtype=torch.int32, device=device)
    args = table, len(table), flat, flat.stride(0), most
    launch(_largest, len(table) * rows, device, *args, size=SIZE)
    given = (None if instead is None else instead.contiguous(),)
    launch(_unit, len(table) * rows, device, *args, given, out, out.stride(0), largest, len(shapes), size=SIZE)
    return out, largest


def _thin(flat: Tensor, shapes: Shapes) -> bool:
    return _serves(flat, shapes) and max(rank for _, rank in shapes) <= MOST_RANK


@only(_thin)
def orthonormal(flat: Tensor, shapes: Shapes) -> Tensor:
    return _solved(flat, shapes, False, SHIFT, 2)


def _thin_or_turned(flat: Tensor, shapes: Shapes, ridge: float, turned: bool) -> bool:
    return _serves(flat, shapes) and max(shape[not turned] for shape in shapes) <= MOST_RANK


@only(_thin_or_turned)
def regressed(flat: Tensor, shapes: Shapes, ridge: float, turned: bool) -> Tensor:
    return _solved(flat, shapes, turned, ridge, 1)


def _solved(flat: Tensor, shapes: Shapes, turned: bool, share: float, times: int) -> Tensor:
    """Matrices turned by the factors of their Gram matrices, so many times; once: and back."""
    table, rows, device = _blocks(shapes, turned, flat.device), len(flat), flat.device
    columns = int(triton.next_power_of_2(max(shape[not turned] for shape in shapes)))
    shape = max(2, min(ROWS[0], SIZE // columns**2)), columns, max(1, TOGETHER // max(1, columns // 8))
    out = torch.empty(flat.shape, device=device)
    grams = torch.empty((times, rows, len(table), columns, columns), dtype=torch.float64, device=device)
    before, given = None, (table, len(table), flat, flat.stride(0))
    programs = len(table) * rows
    launch(_gram, programs, device, *given, (None, None), share, grams[0], shape=shape)
    if times == 2:
        before = torch.empty_like(grams[0])
        launch(_gram, programs, device, *given, (grams[0], before), share, grams[1], shape=shape)
    launch(_turn, programs, device, *given, before, grams[-1], share, out, out.stride(0), shape=shape)
    return out
