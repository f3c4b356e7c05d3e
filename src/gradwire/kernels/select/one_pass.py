"""Selection in one pass over memory, compiled: gradients are compensated and searched where they lie."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from gradwire.core.window import Feedback, Window
from gradwire.kernels.cast import from_half, to_half
from gradwire.kernels.jit import jit
from gradwire.kernels.parallel import split
from gradwire.kernels.select.cpu import (
    _CHUNK,
    _LEAST,
    _MAGNITUDE,
    _MOST,
    _NO_VALUES,
    _bound,
    _buffers,
    _collect,
    _finish,
    _guess,
    _rank,
    top,
)
from gradwire.kernels.window.cpu import Memory, Spans, element, load, memory_of, spans_of


@jit
def _sample_from(x: np.ndarray, spans: Spans, memory: Memory, position: int, size: int) -> np.ndarray:
    """`_sample` of the `size` elements from `position` on of a window."""
    count = max(_LEAST, min(_MOST, size // 256))
    stretch = max(1, size // count)
    sample, one = np.empty(size // stretch, np.int32), np.empty(1, np.float32)
    bits = one.view(np.int32)
    for i in range(sample.size):
        place = i if stretch == 1 else i * stretch + (i * 0x9E3779B1 >> 8) % stretch
        one[0] = element(x, spans, memory, position + place)
        sample[i] = bits[0] & _MAGNITUDE
    return sample


@jit
def _collect_from(
    x: np.ndarray,
    spans: Spans,
    memory: Memory,
    out: np.ndarray,
    position: int,
    size: int,
    bound: np.int32,
    index: np.ndarray,
    value: np.ndarray,
) -> int:
    """`_collect` of a window's elements, which are written to `out` on the way, unless that is empty."""
    tile, total = np.empty(_CHUNK, np.float32), 0
    for start in range(0, size, _CHUNK):
        part = tile[: min(_CHUNK, size - start)]
        load(x, spans, memory, position + start, part)
        if out.size:
            target = out[position + start : position + start + part.size]
            for i in range(part.size):
                target[i] = part[i]
        total += _collect(part.view(np.int32), bound, start, index[total:], value[total:])
    return total


@jit
def _take(x: np.ndarray, spans: Spans, memory: Memory, position: int, where: np.ndarray, out: np.ndarray) -> None:
    """The elements at the places `where` behind `position`."""
    for i in range(where.size):
        out[i] = element(x, spans, memory, position + where[i])


@jit
def _settle(out: np.ndarray, momentum: np.ndarray, position: int, where: np.ndarray, sent: np.ndarray) -> None:
    """Take what was sent off the error, and the momentum of these elements to zero."""
    for i in range(where.size):
        place = position + where[i]
        if place < out.size:
            out[place] -= sent[i]
            if momentum.size and sent[i] != 0:
                momentum[place] = np.float32(0)


def top_from(source: Window, feedback: Feedback | None, shards: int, shard: int, k: int) -> tuple[Tensor, Tensor]:
    rows, spans = source.rows * shards, spans_of(source)
    where, values = torch.empty((rows, k), dtype=torch.int64), torch.empty((rows, k))
    places, found = where.numpy(), values.numpy()
    for row in range(source.rows):
        memory, out = memory_of(feedback, row)
        x = source.buffer[row].numpy()

        def work(a: int, b: int) -> None:
            index, value = _buffers(shard)
            for s in range(a // shard, b // shard):
                i = row * shards + s  # noqa: B023
                _top_shard(x, spans, memory, out, s * shard, shard, places[i], found[i], index, value)  # noqa: B023

        split(work, shards * shard, shard)
    return values, where


def _top_shard(
    x: np.ndarray,
    spans: Spans,
    memory: Memory,
    out: np.ndarray,
    position: int,
    shard: int,
    where: np.ndarray,
    found: np.ndarray,
    index: np.ndarray,
    value: np.ndarray,
) -> None:
    """The largest elements of one shard: their places in it, and their values."""
    size, k = max(0, min(shard, int(spans[0][-1]) - position)), where.size
    if size > k:
        sample = _sample_from(x, spans, memory, position, size)
        bound = np.int32(_guess(sample, _rank(sample.size, k, size)))
        count = _collect_from(x, spans, memory, out, position, size, bound, index, value)
        if count >= k:
            _finish(_NO_VALUES, bound, index, value, count, where)
            if out.size:
                found[:] = out[position + where]
            else:
                _take(x, spans, memory, position, where, found)
            return
    # few elements, or many alike: the simple way
    row = np.empty(shard, np.float32)
    _load_all(x, spans, memory, position, row)
    if out.size and size:
        out[position : position + size] = row[:size]
    where[:] = top(torch.from_numpy(row)[None], k)[0].numpy()
    found[:] = row[where]


@jit
def _load_all(x: np.ndarray, spans: Spans, memory: Memory, position: int, out: np.ndarray) -> None:
    load(x, spans, memory, position, out)


def above_from(
    source: Window, feedback: Feedback | None, shards: int, shard: int, threshold: float
) -> list[tuple[Tensor, Tensor]]:
    spans, bound, chosen = spans_of(source), _bound(threshold), []
    for row in range(source.rows):
        memory, out = memory_of(feedback, row)
        x, (index, _) = source.buffer[row].numpy(), _buffers(shard)
        for s in range(shards):
            position = s * shard
            size = max(0, min(shard, source.numel - position))
            count = _collect_from(x, spans, memory, out, position, size, bound, index, _NO_VALUES)
            where = torch.from_numpy(index[:count]).clone()
            values = torch.empty(count)
            if out.size:
                values.numpy()[:] = out[position + where.numpy()]
            else:
                _take(x, spans, memory, position, where.numpy(), values.numpy())
            chosen.append((values[None], where[None]))
    return chosen


def send_from(
    source: Window, feedback: Feedback | None, shards: int, shard: int, k: int, value_bits: int, factor: float
) -> tuple[Tensor, Tensor]:
    values, where = top_from(source, feedback, shards, shard, k)
    for i, (value, place) in enumerate(zip(values, where, strict=True) if feedback is not None else ()):
        assert feedback is not None
        row, number = divmod(i, shards)
        sent = value if value_bits == 32 else from_half(to_half(value))
        settle(feedback, row, number * shard, place, sent if factor == 1 else sent * factor)
    return values, where


def settle(feedback: Feedback, row: int, position: int, where: Tensor, sent: Tensor) -> None:
    momentum = np.empty(0, np.float32) if feedback.momentum is None else feedback.momentum[row].numpy()
    _settle(feedback.out[row].numpy(), momentum, position, where.numpy(), sent.contiguous().numpy())
