"""Count-Sketch, compiled. Each row of a table is filled by one thread, in the order of the elements.

The median is taken on integers that are ordered as the floats are, −0 below +0, on which minima and maxima are cheap.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from gradwire.core.random import Stream
from gradwire.kernels.backend import only
from gradwire.kernels.bitpack.cpu import array
from gradwire.kernels.jit import jit
from gradwire.kernels.parallel import split, split_rows
from gradwire.kernels.random.cpu import GROUP, draw

TILE = 2048  # elements at a time

_W = np.uint32
_REST = np.int32(0x7FFFFFFF)  # all but the sign
_INFINITE = np.int32(0x7F800000)


@jit
def _places(key: Any, offset: int, columns: int, out: np.ndarray, first: int, last: int) -> None:
    numel, words = out.shape[1], np.empty(TILE + 2 * GROUP, np.uint32)
    tiles = (numel + TILE - 1) // TILE
    for tile in range(first, last):
        row, start = tile // tiles, tile % tiles * TILE
        part = out[row, start : start + TILE]
        skip = draw(key, offset + row * numel + start, part.size, words)
        source = words[skip:]
        for i in range(part.size):
            column = np.uint64(source[i] >> _W(1)) * np.uint64(columns) >> np.uint64(31)
            part[i] = _W(column) << _W(1) | source[i] & _W(1)


@jit
def _largest(places: np.ndarray) -> Any:
    best = _W(0)
    for i in range(places.size):
        best = max(best, places[i])
    return best


@jit
def _fold(x: np.ndarray, where: np.ndarray, table: np.ndarray, out: np.ndarray, first: int, last: int) -> bool:
    """Rows from `first` to `last`; False, with the row unfinished, if a place lies outside."""
    for row in range(first, last):
        sums, places, y = table[row], where[row], out[row]
        size = np.uint32(sums.size)
        for i in range(x.size):
            if places[i] >= size:
                return False
            sums[places[i]] += x[i]
        for i in range(y.size):
            y[i] = sums[2 * i] - sums[2 * i + 1]
    return True


@jit
def _middle(keys: np.ndarray, count: int) -> None:
    """The median of the rows into the middle one: the largest and the smallest go. Rows have `count` elements."""
    low, high = 0, keys.shape[0] - 1
    while low < high:
        for row in range(low, high):
            _order(keys[row, :count], keys[row + 1, :count])
        high -= 1
        for row in range(high, low, -1):
            _order(keys[row - 1, :count], keys[row, :count])
        low += 1


@jit
def _order(x: np.ndarray, y: np.ndarray) -> None:
    for i in range(x.size):
        x[i], y[i] = min(x[i], y[i]), max(x[i], y[i])


@jit
def _estimate(table: np.ndarray, where: np.ndarray, out: np.ndarray, first: int, last: int) -> bool:
    """`table` and `out` as patterns. False if a place lies outside."""
    rows, numel = where.shape
    room, worst, size = np.empty((rows, TILE), np.int32), np.empty(TILE, np.int32), np.uint32(2 * table.shape[1])
    for start in range(first * TILE, min(last * TILE, numel), TILE):
        part = out[start : start + TILE]
        worst[:] = 0
        for row in range(rows):
            places, sums, line = where[row, start : start + part.size], table[row], room[row, : part.size]
            if _largest(places) >= size:
                return False
            for i in range(part.size):
                line[i] = sums[places[i] >> _W(1)] ^ np.int32(places[i] << _W(31))
            for i in range(part.size):
                worst[i] = max(worst[i], line[i] & _REST)
                line[i] ^= (line[i] >> np.int32(31)) & _REST
        _middle(room, part.size)
        middle = room[rows // 2, : part.size]
        for i in range(part.size):
            value = middle[i] ^ ((middle[i] >> np.int32(31)) & _REST)
            part[i] = value if worst[i] <= _INFINITE else worst[i]
    return True


def places(stream: Stream, numel: int, rows: int, columns: int, device: torch.device) -> Tensor:
    out = torch.empty((rows, numel), dtype=torch.int32)
    common = np.uint64(stream.keys[0]), stream.offsets[0], columns, out.numpy().view(np.uint32)
    split_rows(lambda first, last: _places(*common, first, last), rows, numel, TILE)
    return out


@only(lambda x, *_: x.dtype in (torch.float32, torch.float64))
def fold(x: Tensor, where: Tensor, columns: int) -> Tensor:
    rows, numel = where.shape
    if x.shape != (numel,):
        raise ValueError(f"places of {numel} elements do not fit a tensor of shape {tuple(x.shape)}")
    table, out = x.new_zeros((rows, 2 * columns)), x.new_zeros((rows, columns))
    common = array(x), array(where).view(np.uint32), table.numpy(), out.numpy()

    def work(start: int, stop: int) -> None:
        _inside(_fold(*common, start // numel, stop // numel), columns)

    if numel:
        split(work, rows * numel, numel)
    return out


@only(lambda table, _: table.dtype == torch.float32)
def estimate(table: Tensor, where: Tensor) -> Tensor:
    numel, columns = where.shape[1], table.shape[1]
    if len(table) != len(where):
        raise ValueError(f"places in {len(where)} rows do not fit a table of {len(table)}")
    out = torch.empty(numel, dtype=torch.float32)
    common = array(table).view(np.int32), array(where).view(np.uint32), out.numpy().view(np.int32)
    split_rows(lambda first, last: _inside(_estimate(*common, first, last), columns), 1, numel, TILE)
    return out


def _inside(good: bool, columns: int) -> None:
    if not good:
        raise IndexError(f"a place lies outside of {columns} columns")
