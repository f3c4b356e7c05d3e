"""Scattering by loops over the values; sums go through the output piece by piece, so that it stays in the cache."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gradwire.core.errors import CorruptPayload
from gradwire.core.window import Flag, Window, nonfinite_flag
from gradwire.kernels.backend import only
from gradwire.kernels.blockwise.cpu import average
from gradwire.kernels.jit import jit
from gradwire.kernels.parallel import split
from gradwire.kernels.window.cpu import Spans, spans_of, store

_PIECE = 1 << 14  # elements of the output


@only(lambda values, *_: values.dtype == torch.float32)
def scatter(values: Tensor, indices: Tensor, numel: int) -> Tensor:
    out = values.new_zeros((values.shape[0], numel))
    value, index, target = _array(values), _array(indices), out.numpy()
    _check(value, index, numel)
    split(lambda a, b: _put(value, index, target, a, b), values.shape[1])
    return out


@only(lambda values, *_: values.dtype == torch.float32)
def scatter_sum(values: Tensor, indices: Tensor, numel: int, groups: int) -> Tensor:
    out = values.new_zeros((groups, numel))
    for target, value, index in zip(out, values.chunk(groups), indices.chunk(groups), strict=True):
        _sum_group(_array(value), _array(index), target.numpy())
    return out


@only(lambda values, *_: values.dtype == torch.float32)
def mean(values: Tensor, indices: Tensor, numel: int, groups: int) -> Tensor:
    return scatter_sum(values, indices, numel, groups).div_(values.shape[0] // groups)


def _sum_group(value: np.ndarray, index: np.ndarray, target: np.ndarray) -> None:
    if _check(value, index, target.size):
        split(lambda a, b: _add_ascending(value, index, target, a, b), target.size)
    else:
        _add(value, index, target)


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


@jit
def _put_to(
    values: np.ndarray, indices: np.ndarray, position: int, size: int, factor: Any, x: np.ndarray, spans: Spans
) -> None:
    """Zeros, and the values of one row, to the `size` elements from `position` on; indices ascend."""
    tile, at = np.empty(_PIECE, np.float32), np.uint64(0)
    count = np.uint64(indices.size)
    for start in range(0, size, _PIECE):
        part = tile[: min(_PIECE, size - start)]
        for i in range(part.size):
            part[i] = np.float32(0)
        while at < count and indices[at] < start + part.size:
            part[np.uint64(indices[at] - start)] = values[at]
            at += np.uint64(1)
        store(part, factor, x, spans, position + start)


@jit
def _mean_to(
    values: np.ndarray, indices: np.ndarray, factor: Any, x: np.ndarray, spans: Spans, first: int, last: int
) -> None:
    """The mean of the rows, whose indices ascend, to where it belongs: elements `first` to `last`."""
    rows, k = values.shape[0], np.uint64(values.shape[1])
    tile, done, nothing = np.empty(_PIECE, np.float32), np.zeros(rows, np.uint64), np.empty(0, np.float32)
    for r in range(rows):
        done[r] = _first_from(indices[r], first)
    for start in range(first, last, _PIECE):
        part = tile[: min(_PIECE, last - start)]
        for i in range(part.size):
            part[i] = np.float32(0)
        for r in range(rows):
            i = done[r]
            while i < k and indices[r, i] < start + part.size:
                part[np.uint64(indices[r, i] - start)] += values[r, i]
                i += np.uint64(1)
            done[r] = i
        average(part, rows, np.float32(1), nothing, np.float32(1))
        store(part, factor, x, spans, start)


def put_to(rows: Sequence[tuple[Tensor, Tensor]], shard: int, target: Window, factor: float) -> None:
    x, spans = target.buffer[0].numpy(), spans_of(target)
    for i, (values, indices) in enumerate(rows):
        value, index = _array(values).reshape(1, -1), _array(indices).reshape(1, -1)
        size = max(0, min(shard, target.numel - i * shard))
        if not _check(value, index, shard):
            raise CorruptPayload("its indices do not ascend", i)
        _put_row(value[0], index[0], i * shard, size, np.float32(factor), x, spans)


def _put_row(
    values: np.ndarray, indices: np.ndarray, position: int, size: int, factor: Any, x: np.ndarray, spans: Spans
) -> None:
    """One row, its elements cut over the threads."""

    def work(first: int, last: int) -> None:
        low, high = (_first_from(indices, edge) for edge in (first, last))
        _put_to(values[low:high], indices[low:high] - first, position + first, last - first, factor, x, spans)

    split(work, size)


def put_rows_to(values: Tensor, indices: Tensor, shard: int, target: Window, factor: float) -> Flag:
    put_to(list(zip(values, indices, strict=True)), shard, target, factor)
    return nonfinite_flag(values)


def mean_to(values: Tensor, indices: Tensor, target: Window, factor: float) -> Flag:
    value, index = _array(values), _array(indices)
    if not _check(value, index, target.numel):
        raise CorruptPayload("its indices do not ascend")
    x, spans, whole = target.buffer[0].numpy(), spans_of(target), target.numel
    split(lambda first, last: _mean_to(value, index, np.float32(factor), x, spans, first, last), whole)
    return nonfinite_flag(values)
