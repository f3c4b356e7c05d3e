"""Scattering by loops over the values; sums go through the output piece by piece, so that it stays in the cache."""

from __future__ import annotations

import numpy as np
from torch import Tensor

from gradwire.kernels.jit import jit
from gradwire.kernels.parallel import split

_PIECE = 1 << 14  # elements of the output


def scatter(values: Tensor, indices: Tensor, numel: int) -> Tensor:
    out = values.new_zeros((values.shape[0], numel))
    value, index, target = _array(values), _array(indices), out.numpy()
    _check(value, index, numel)
    split(lambda a, b: _put(value, index, target, a, b), values.shape[1])
    return out


def scatter_sum(values: Tensor, indices: Tensor, numel: int) -> Tensor:
    out = values.new_zeros((1, numel))
    value, index, target = _array(values), _array(indices), out.numpy()[0]
    if _check(value, index, numel):
        split(lambda a, b: _add_ascending(value, index, target, a, b), numel)
    else:
        _add(value, index, target)
    return out


def _array(x: Tensor) -> np.ndarray:
    return x.detach().contiguous().numpy()


def _check(values: np.ndarray, indices: np.ndarray, numel: int) -> bool:
    """Whether all rows ascend; indices outside of a row are an error."""
    if values.shape != indices.shape:
        raise ValueError(f"{values.shape} values at {indices.shape} indices")
    inside, ascending = _survey(indices, numel)
    if not inside:
        raise IndexError(f"an index lies outside a row of {numel} elements")
    return bool(ascending)


@jit
def _survey(indices: np.ndarray, numel: int) -> tuple[bool, bool]:
    """Whether all indices lie in the row, and whether they ascend in each: some difference would be negative."""
    outside, falling = 0, 0
    for r in range(indices.shape[0]):
        row = indices[r]
        for i in range(row.size - 1):
            outside |= row[i] | (numel - 1 - row[i])
            falling |= row[i + 1] - row[i] - 1
        if row.size:
            outside |= row[-1] | (numel - 1 - row[-1])
    return outside >= 0, falling >= 0


@jit
def _put(values: np.ndarray, indices: np.ndarray, out: np.ndarray, start: int, stop: int) -> None:
    """Columns from `start` to `stop` of all rows."""
    for r in range(values.shape[0]):
        for i in range(np.uint64(start), np.uint64(stop)):
            out[r, np.uint64(indices[r, i])] = values[r, i]


@jit
def _add(values: np.ndarray, indices: np.ndarray, out: np.ndarray) -> None:
    for r in range(values.shape[0]):
        for i in range(values.shape[1]):
            out[np.uint64(indices[r, i])] += values[r, i]


@jit
def _add_ascending(values: np.ndarray, indices: np.ndarray, out: np.ndarray, start: int, stop: int) -> None:
    """What falls on elements from `start` to `stop`, row after row within each piece."""
    rows, k = values.shape[0], np.uint64(values.shape[1])
    done = np.empty(rows, np.uint64)
    for r in range(rows):
        done[r] = _first_from(indices[r], start)
    for piece in range(start, stop, _PIECE):
        end = min(piece + _PIECE, stop)
        for r in range(rows):
            i = done[r]
            while i < k and indices[r, i] < end:
                out[np.uint64(indices[r, i])] += values[r, i]
                i += np.uint64(1)
            done[r] = i


@jit
def _first_from(row: np.ndarray, bound: int) -> int:
    """How many of the ascending row lie below `bound`."""
    low, high = 0, row.size
    while low < high:
        middle = (low + high) // 2
        if row[middle] < bound:
            low = middle + 1
        else:
            high = middle
    return low
