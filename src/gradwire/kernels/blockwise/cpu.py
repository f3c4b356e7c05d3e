"""Statistics of blocks, compiled."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from gradwire.core.window import Feedback, Window
from gradwire.kernels.bitpack.cpu import flat
from gradwire.kernels.jit import jit
from gradwire.kernels.parallel import split_rows
from gradwire.kernels.window.cpu import Memory, Spans, each_worker, load

WIDTH = 4096  # a longer block is folded to this length as its parts come from memory


@jit
def largest(bits: np.ndarray) -> Any:
    """The largest magnitude, all as the bits of a float32: without the sign they are ordered, NaN above all."""
    best = np.uint32(0)
    for i in range(bits.size):
        best = max(best, bits[i] & np.uint32(0x7FFFFFFF))
    return best


@jit
def fold_room(block: int) -> np.ndarray:
    """Room for `folded` of blocks of up to `block` elements."""
    depth, length = 1, WIDTH
    while length < block:
        depth, length = depth + 1, 2 * length
    return np.empty((depth, WIDTH), np.float32)


@jit
def folded(x: np.ndarray, power: int, room: np.ndarray) -> Any:
    """The sum of the magnitudes to the power 1 or 2, by halves; zeros behind the end change nothing.

    The parts of a long block come in the order that lets each pair of halves be added as soon as both are there.
    """
    width, depth, parts, top = 1, 0, 1, 0
    while width < min(x.size, WIDTH):
        width *= 2
    while width * parts < x.size:
        depth, parts = depth + 1, 2 * parts
    for i in range(parts):
        part, rest = 0, i
        for _ in range(depth):
            part, rest = 2 * part + rest % 2, rest // 2
        _magnitudes(x[width * part : width * (part + 1)], power, room[top, :width])
        rest = i
        while rest % 2:
            top, rest = top - 1, rest // 2
            _add(room[top, :width], room[top + 1, :width])
        top += 1
    while width > 1:
        width //= 2
        _add(room[0, :width], room[0, width : 2 * width])
    return room[0, 0]


@jit
def _magnitudes(x: np.ndarray, power: int, out: np.ndarray) -> None:
    if power == 1:
        for i in range(x.size):
            out[i] = abs(x[i])
    else:
        for i in range(x.size):
            out[i] = x[i] * x[i]
    out[x.size :] = np.float32(0)


@jit
def _add(x: np.ndarray, y: np.ndarray) -> None:
    for i in range(x.size):
        x[i] += y[i]


@jit
def average(x: np.ndarray, count: int, factor: Any, carry: np.ndarray, decay: Any) -> None:
    """factor·x/count + decay·carry, in place; an empty carry is none."""
    if count & (count - 1):
        for i in range(x.size):
            x[i] /= np.float32(count)
    else:
        for i in range(x.size):
            x[i] *= np.float32(1) / np.float32(count)  # as exact as the division, and far faster
    if factor != np.float32(1):
        for i in range(x.size):
            x[i] *= factor
    if decay == np.float32(1):
        for i in range(carry.size):
            x[i] += carry[i]
    else:
        for i in range(carry.size):
            x[i] += carry[i] * decay


@jit
def _abs_max(bits: np.ndarray, stride: int, numel: int, block: int, out: np.ndarray, first: int, last: int) -> None:
    blocks = out.shape[1]
    for i in range(first, last):
        row, start = i // blocks, i % blocks * block
        out[row, i % blocks] = largest(bits[row * stride + start : row * stride + min(start + block, numel)])


@jit
def _sums(
    x: np.ndarray, stride: int, numel: int, block: int, power: int, out: np.ndarray, first: int, last: int
) -> None:
    blocks, room = out.shape[1], fold_room(min(block, numel))
    for i in range(first, last):
        row, start = i // blocks, i % blocks * block
        out[row, i % blocks] = folded(x[row * stride + start : row * stride + min(start + block, numel)], power, room)


def abs_max(x: Tensor, block: int) -> Tensor:
    rows, numel = x.shape
    block = min(block, max(numel, 1))
    out = torch.empty((rows, -(-numel // block)), dtype=torch.float32)
    source, stride = flat(x)
    bits, best = source.view(np.uint32), out.numpy().view(np.uint32)
    split_rows(lambda first, last: _abs_max(bits, stride, numel, block, best, first, last), rows, numel, block)
    return out


def abs_sum(x: Tensor, block: int) -> Tensor:
    return _summed(x, block, 1)


def square_sum(x: Tensor, block: int) -> Tensor:
    return _summed(x, block, 2)


def _summed(x: Tensor, block: int, power: int) -> Tensor:
    rows, numel = x.shape
    block = min(block, max(numel, 1))
    out = torch.empty((rows, -(-numel // block)), dtype=torch.float32)
    source, stride = flat(x)
    sums = out.numpy()
    split_rows(lambda first, last: _sums(source, stride, numel, block, power, sums, first, last), rows, numel, block)
    return out


@jit
def _square_sums_from(
    x: np.ndarray,
    spans: Spans,
    memory: Memory,
    out: np.ndarray,
    block: int,
    sums: np.ndarray,
    size: int,
    first: int,
    last: int,
) -> None:
    tile, room, numel = np.empty(size, np.float32), fold_room(block), spans[0][spans[0].size - 1]
    for start in range(first * size, min(last * size, numel), size):
        a = tile[: min(size, numel - start)]
        load(x, spans, memory, start, a)
        if out.size:
            target = out[start : start + a.size]
            for i in range(a.size):
                target[i] = a[i]
        for i in range(0, a.size, block):
            sums[(start + i) // block] = folded(a[i : i + block], 2, room)


def square_sum_from(source: Window, feedback: Feedback | None, block: int) -> Tensor:
    sums = torch.empty((source.rows, -(-source.numel // block)), dtype=torch.float32)
    size = block * max(1, WIDTH // block)

    def work(row: int, *worker: Any) -> Any:
        common = *worker, block, sums[row].numpy(), size
        return lambda first, last: _square_sums_from(*common, first, last)

    each_worker(source, feedback, 1, source.numel, size, work)
    return sums
