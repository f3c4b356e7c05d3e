"""Tiles of a window, compiled.

A window's elements are counted through its spans: element p of a row lies at ``places[k] + p - firsts[k]`` of the
buffer, for the span k that it falls into. Behind the last element there are zeros.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor

from gradwire.core.window import Feedback, Window
from gradwire.kernels.jit import jit
from gradwire.kernels.parallel import split_rows

Spans: TypeAlias = tuple[np.ndarray, np.ndarray]  # first elements, with the number of all at the end; places
Memory: TypeAlias = tuple[np.ndarray, Any, Any]  # the error, what it and the gradient are multiplied by
TILE = 1 << 13  # elements, in the first cache
_NOTHING = np.empty(0, np.float32)


def spans_of(window: Window) -> Spans:
    """The spans as arrays."""
    return _arrays(window.spans)


@lru_cache(maxsize=4096)
def _arrays(spans: tuple[tuple[int, int], ...]) -> Spans:
    firsts, places, at = [], [], 0
    for first, last in spans:
        firsts.append(at)
        places.append(first)
        at += last - first
    return np.array([*firsts, at], np.int64), np.array(places, np.int64)


def memory_of(feedback: Feedback | None, row: int) -> tuple[Memory, np.ndarray]:
    """What one worker's memory adds, and where its new error goes; empty where there is none."""
    if feedback is None:
        return (_NOTHING, np.float32(1), np.float32(1)), _NOTHING
    assert not isinstance(feedback.decay, Tensor)
    error = _NOTHING if feedback.error is None else feedback.error[row].numpy()
    return (error, np.float32(feedback.decay), np.float32(feedback.gain)), feedback.out[row].numpy()


def each_worker(
    source: Window,
    feedback: Feedback | None,
    shards: int,
    shard: int,
    tile: int,
    work: Callable[..., Callable[..., None]],
) -> None:
    """For each worker: `work(row, x, spans, memory, out)` gives what treats tiles `first` to `last` of its shards."""
    spans = spans_of(source)
    for row in range(source.rows):
        memory, out = memory_of(feedback, row)
        split_rows(work(row, source.buffer[row].numpy(), spans, memory, out), shards, shard, tile)


@jit
def find(firsts: np.ndarray, position: int) -> int:
    """The span that an element falls into."""
    low, high = 0, firsts.size - 1
    while high - low > 1:
        middle = (low + high) // 2
        if firsts[middle] <= position:
            low = middle
        else:
            high = middle
    return low


@jit
def load(x: np.ndarray, spans: Spans, memory: Memory, position: int, tile: np.ndarray) -> None:
    """``gain·x + decay·error`` of the elements from `position` on; zeros behind the last one."""
    firsts, places = spans
    error, decay, gain = memory
    numel = firsts[firsts.size - 1]
    k, at, size = find(firsts, position), 0, max(0, min(tile.size, numel - position))
    while at < size:
        end = min(size, firsts[k + 1] - position)
        start = places[k] + position + at - firsts[k]
        part, source = tile[at:end], x[start : start + end - at]
        if gain == np.float32(1):
            for i in range(part.size):
                part[i] = source[i]
        else:
            for i in range(part.size):
                part[i] = source[i] * gain
        at, k = end, k + 1
    if error.size:
        kept = error[position : position + size]
        if decay == np.float32(1):
            for i in range(kept.size):
                tile[i] += kept[i]
        else:
            for i in range(kept.size):
                tile[i] += kept[i] * decay
    for i in range(size, tile.size):
        tile[i] = np.float32(0)


@jit
def element(x: np.ndarray, spans: Spans, memory: Memory, position: int) -> np.float32:
    """One of the elements that `load` gives, without setting up a tile for it."""
    firsts, places = spans
    error, decay, gain = memory
    k = find(firsts, position)
    value = x[places[k] + position - firsts[k]] * gain
    if error.size:
        value += error[position] * decay
    return np.float32(value)


@jit
def store(tile: np.ndarray, factor: Any, x: np.ndarray, spans: Spans, position: int) -> None:
    """``factor·tile`` to the elements from `position` on; what lies behind the last one is left out."""
    firsts, places = spans
    k, at = find(firsts, position), 0
    size = min(tile.size, firsts[firsts.size - 1] - position)
    while at < size:
        end = min(size, firsts[k + 1] - position)
        start = places[k] + position + at - firsts[k]
        part, target = tile[at:end], x[start : start + end - at]
        if factor == np.float32(1):
            for i in range(part.size):
                target[i] = part[i]
        else:
            for i in range(part.size):
                target[i] = part[i] * factor
        at, k = end, k + 1


def read(window: Window) -> Tensor:
    """The elements as one tensor."""
    out, spans = torch.empty((window.rows, window.numel)), spans_of(window)
    for row in range(window.rows):
        load(window.buffer[row].numpy(), spans, memory_of(None, row)[0], 0, out[row].numpy())
    return out


def write(window: Window, values: Tensor) -> None:
    """Put `values`, (rows, numel) or (1, numel), where the elements lie."""
    spans, all_rows = spans_of(window), values.expand(window.rows, -1).contiguous()
    for row in range(window.rows):
        store(all_rows[row].numpy(), np.float32(1), window.buffer[row].numpy(), spans, 0)
