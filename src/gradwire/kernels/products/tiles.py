"""Which elements the programs of a GPU treat, as tables: a row of numbers for each program, long ways first."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor

from gradwire.core.window import Spans
from gradwire.kernels.products.matrices import Matrices

ROWS, COLUMNS = 4, 128  # of a tile
STEPS = 16  # tiles that a program goes through to find M Q
PART = 64  # least rows that a program goes through to find Pᵀ M
WRITTEN = 64  # most rows that a program goes through to write P Qᵀ
PARTS = 128  # most parts of a sum over the rows
ADDED = 128  # elements of a program that adds parts


class Tiles(NamedTuple):
    """What the programs of a launch treat.

    Numbers of a tile: whether all of its places and its width are multiples of four; the matrix's place among all
    elements and in the buffer, its width, rows from-to, columns from-to, rank, and the places of its factors P and Qᵀ.

    Numbers of a sum that was cut: its place, that of the first part, how far it is to the next, how many there are, and
    elements of each.
    """

    tiles: Tensor
    parts: Tensor | None  # None: no sum is cut
    size: int  # elements of the results
    room: int  # elements of the results and of the parts behind them


@lru_cache(maxsize=256)
def for_times(matrices: Matrices, spans: Spans | None, rows: int, device: torch.device) -> Tiles:
    """Programs that own `rows` rows and up to `STEPS` tiles of columns; with `spans`, of what lies beside, too.

    Those that do not go by fours own `ROWS`.
    """
    step, found, cut, there = COLUMNS * STEPS, [], _Cut(sum(h * r for h, r in matrices.left)), _there(spans)
    for place, height, width, rank, left, right in _each(matrices):
        to, size = cut.places(left, height * rank, -(-width // step))
        matrix = _matrix(place, there, width)
        for k, columns in enumerate(_steps(width, step)):
            ends = *columns, rank, to + k * size, right
            found += [(*matrix, *some, *ends) for some in _steps(height, rows if matrix[0] else ROWS)]
    for place, height, width in _between(matrices, spans) if spans is not None else ():
        matrix, ends = _matrix(place, there, width), (0, width, 0, 0, 0)
        found += [(*matrix, *some, *ends) for some in _steps(height, rows if matrix[0] else ROWS) if width]
    return cut.tiles(found, device)


@lru_cache(maxsize=256)
def for_transposed(matrices: Matrices, device: torch.device) -> Tiles:
    """Programs that own a tile of columns and a part of the rows."""
    found, cut, there = [], _Cut(sum(r * w for r, w in matrices.right)), _there(None)
    for place, height, width, rank, left, right in _each(matrices):
        step = max(PART, -(-height // (PARTS * ROWS)) * ROWS)
        to, size = cut.places(right, rank * width, -(-height // step))
        matrix = _matrix(place, there, width)
        for k, some in enumerate(_steps(height, step)):
            found += [(*matrix, *some, *columns, rank, left, to + k * size) for columns in _steps(width, COLUMNS)]
    return cut.tiles(found, device)


@lru_cache(maxsize=256)
def for_write(matrices: Matrices, spans: Spans, device: torch.device) -> Tiles:
    """Programs that own a tile of columns and some rows."""
    found, there = [], _there(spans)
    for place, height, width, *factors in _each(matrices):
        matrix = _matrix(place, there, width)
        for some in _steps(height, WRITTEN):
            found += [(*matrix, *some, *columns, *factors) for columns in _steps(width, COLUMNS)]
    return _Cut(0).tiles(found, device)


@lru_cache(maxsize=256)
def fours(matrices: Matrices) -> bool:
    """Whether the Qᵀ of all matrices whose width is a multiple of four have such a place."""
    return all(right % 4 == 0 for _, _, width, _, _, right in _each(matrices) if width % 4 == 0)


def _each(matrices: Matrices) -> Iterator[tuple[int, int, int, int, int, int]]:
    """Place, height, width, rank, and the places of the factors, of each matrix."""
    left = right = 0
    for place, (height, width), rank in zip(matrices.places, matrices.shapes, matrices.ranks, strict=True):
        yield place, height, width, rank, left, right
        left, right = left + height * rank, right + rank * width


def _steps(count: int, step: int) -> Iterator[tuple[int, int]]:
    """From-to, so many rows or columns at a time."""
    return ((first, min(first + step, count)) for first in range(0, count, step))


def _matrix(place: int, there: Callable[[int], int], width: int) -> tuple[int, int, int, int]:
    """The first numbers of a tile."""
    at = there(place)
    return int(not any(n % 4 for n in (place, at, width))), place, at, width


def _there(spans: Spans | None) -> Callable[[int], int]:
    """Where an element of a window of such spans lies in its buffer; None: where it is counted."""
    if spans is None:
        return lambda place: place
    starts, at = [], 0
    for first, last in spans:
        starts.append((at, first - at))
        at += last - first
    firsts = [start for start, _ in starts]
    return lambda place: place + starts[bisect_right(firsts, place) - 1][1]


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


class _Cut:
    """Where results lie, `size` elements in all, and behind them the parts of those that are cut."""

    def __init__(self, size: int) -> None:
        self._size, self._room = size, size
        self._parts: list[tuple[int, ...]] = []

    def places(self, to: int, size: int, parts: int) -> tuple[int, int]:
        """Where the first part of a result of `size` elements goes, and how far from one to the next it is."""
        if parts == 1:
            return to, 0
        first = -(-self._room // 4) * 4
        self._room = first + parts * size
        for at in range(0, size, ADDED):
            self._parts.append((to + at, first + at, size, parts, min(ADDED, size - at)))
        return first, size

    def tiles(self, found: Sequence[tuple[int, ...]], device: torch.device) -> Tiles:
        longest = sorted(found, key=lambda n: (n[4] - n[5]) * (n[7] - n[6]))
        parts = _numbers(self._parts, 5, device) if self._parts else None
        return Tiles(_numbers(longest, 11, device), parts, self._size, self._room)


def _numbers(found: Sequence[tuple[int, ...]], width: int, device: torch.device) -> Tensor:
    return torch.tensor(found, dtype=torch.int64).reshape(-1, width).to(device)
