"""Tiles of a window on a GPU.

A window's elements are counted through its spans: element p of a row lies at ``p + shifts[k]`` of the buffer, for the
span k that it falls into. A program treats one tile of neighbours and is told the first span that the tile meets, so a
buffer of many tensors is one launch.

Kernels take their arguments in groups, as tuples: a `Place`, a `Memory`. What is None is compiled away.
"""

from __future__ import annotations

from bisect import bisect_right
from functools import lru_cache
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from gradwire.core.window import Feedback, Spans, Window
from gradwire.kernels.launch import launch

MOST = 2**31 - 2**24  # elements of a window: kernels count in 32 bits, padding included
TILE = 2048  # elements of a program that only moves them
DTYPES = (torch.float32, torch.float16, torch.bfloat16)


class Place(NamedTuple):
    """Where the elements of a window lie, for kernels that treat them tile by tile."""

    x: Tensor
    stride: int  # from one worker's row to the next
    numel: int
    shards: int  # of each worker, and elements of one
    shard: int
    tiles: int  # of a shard
    shifts: Tensor  # of each span
    firsts: Tensor | None  # first element of each span, and the number of all; None: there is one span
    spans: Tensor | None  # first span of each tile


class Memory(NamedTuple):
    """What a memory adds, and where it keeps what is lost."""

    error: Tensor | None
    error_stride: int
    decay: float | None  # what is kept is multiplied by this, or by what is known on the device only
    decay_at: Tensor | None
    gain: float | None
    out: Tensor | None
    out_stride: int


@triton.jit
def tile_of(place):
    """Worker, shard and tile that this program treats; and the number of the shard among all."""
    program, tiles, shards = tl.program_id(0), place[5], place[3]
    row = program // tiles
    return row // shards, row % shards, program % tiles, row


@triton.jit
def places(place, worker, shard, tile, element, size: tl.constexpr):
    """Where the elements `element` of a shard lie, tile `tile` of `size` elements; and which there are."""
    x, stride, numel, _, length, tiles, shifts, firsts, spans = place
    position = shard * length + element
    to = x + worker.to(tl.int64) * stride
    if firsts is None:
        return to + (position.to(tl.int64) + tl.load(shifts)), position < numel
    else:
        end = tl.minimum(shard * length + tl.minimum((tile + 1) * size, length), numel)
        shift = tl.zeros_like(position).to(tl.int64)
        span = tl.load(spans + shard * tiles + tile)
        first = tl.load(firsts + span)
        while first < end:
            shift = tl.where(position >= first, tl.load(shifts + span), shift)
            span += 1
            first = tl.load(firsts + span)
        return to + (position + shift), position < numel


@triton.jit
def anywhere(place, worker, position):
    """Where any elements of a worker's vector lie."""
    x, stride, numel, _, _, _, shifts, firsts, _ = place
    to = x + worker.to(tl.int64) * stride
    if firsts is None:
        return to + (position.to(tl.int64) + tl.load(shifts))
    else:
        shift = tl.zeros_like(position).to(tl.int64)
        span = 0
        first = tl.load(firsts)
        while first < numel:
            shift = tl.where(position >= first, tl.load(shifts + span), shift)
            span += 1
            first = tl.load(firsts + span)
        return to + (position + shift)


@triton.jit
def compensated(a, memory, worker, position, inside):
    """``gain·a + decay·error`` of a tile, in float32."""
    error, stride, decay, decay_at, gain, _, _ = memory
    if gain is not None:
        a = a * gain
    if error is not None:
        e = tl.load(error + worker.to(tl.int64) * stride + position, mask=inside, other=0.0)
        if decay is not None:
            e = e * decay
        if decay_at is not None:
            e = e * tl.load(decay_at)
        a = a + e
    return a


@triton.jit
def keep(lost, memory, worker, position, inside):
    """What is lost becomes the new error, where there is a memory."""
    _, _, _, _, _, out, stride = memory
    if out is not None:
        tl.store(out + worker.to(tl.int64) * stride + position, lost, mask=inside)


@triton.jit
def write(values, at, inside, flag):
    """Values, in float32, to where they belong; `flag` becomes NaN if one is not finite."""
    bad = tl.sum(tl.sum(tl.where(inside, values * 0, 0.0), 1), 0)
    tl.store(flag, bad, mask=bad != bad)  # all programs that find one write the same
    tl.store(at, values.to(at.dtype.element_ty), mask=inside)


@triton.jit
def _read(place, out, stride, size: tl.constexpr):
    worker, shard, tile, _ = tile_of(place)
    element = tile * size + tl.arange(0, size)
    at, inside = places(place, worker, shard, tile, element, size)
    x = tl.load(at, mask=inside)
    tl.store(out + worker.to(tl.int64) * stride + element, x.to(out.dtype.element_ty), mask=inside)


@triton.jit
def _write(values, stride, place, size: tl.constexpr):
    worker, shard, tile, _ = tile_of(place)
    element = tile * size + tl.arange(0, size)
    at, inside = places(place, worker, shard, tile, element, size)
    x = tl.load(values + worker.to(tl.int64) * stride + element, mask=inside)
    tl.store(at, x.to(at.dtype.element_ty), mask=inside)


def fits(window: Window) -> bool:
    """Whether kernels can treat a window."""
    return 0 < window.numel < MOST and window.buffer.dtype in DTYPES and window.buffer.stride(1) == 1


def read_spans(window: Window, dtype: torch.dtype) -> Tensor:
    """The elements as one tensor, (rows, numel)."""
    out = torch.empty((window.rows, window.numel), dtype=dtype, device=window.buffer.device)
    place = place_of(window, 1, window.numel, TILE)
    launch(_read, window.rows * place.tiles, out.device, place, out, out.stride(0), size=TILE)
    return out


def write_spans(window: Window, values: Tensor) -> None:
    """Put `values`, (rows, numel) or (1, numel), where the elements lie."""
    place, stride = place_of(window, 1, window.numel, TILE), values.stride(0) if values.shape[0] > 1 else 0
    launch(_write, window.rows * place.tiles, values.device, values, stride, place, size=TILE)


def place_of(window: Window, shards: int, shard: int, tile: int) -> Place:
    """Of the tiles of `shards` shards of each worker's elements, one shard after the other."""
    tiles = -(-shard // tile)
    table = _table(window.spans, shards, shard, tile, window.buffer.device)
    return Place(window.buffer, window.buffer.stride(0), window.numel, shards, shard, tiles, *table)


@lru_cache(maxsize=1024)
def _table(
    spans: Spans, shards: int, shard: int, tile: int, device: torch.device
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    firsts, shifts, at = [], [], 0
    for first, last in spans:
        if first < last:
            firsts.append(at)
            shifts.append(first - at)
            at += last - first
    if len(firsts) == 1:
        return torch.tensor(shifts, device=device), None, None
    starts = [row * shard + start for row in range(shards) for start in range(0, shard, tile)]
    found = [bisect_right(firsts, min(start, at - 1)) - 1 for start in starts]
    ends = torch.tensor([*firsts, at, 1 << 62], device=device)  # nothing lies behind the end
    return torch.tensor([*shifts, 0], device=device), ends, torch.tensor(found, dtype=torch.int32, device=device)


def memory_of(feedback: Feedback | None) -> Memory:
    """A feedback, as kernels take it."""
    if feedback is None:
        return Memory(None, 0, None, None, None, None, 0)
    known = not isinstance(feedback.decay, Tensor)
    decay = feedback.decay if known and feedback.decay != 1 else None
    at = None if known else feedback.decay.float()  # type: ignore[union-attr]
    stride = 0 if feedback.error is None else feedback.error.stride(0)
    gain = None if feedback.gain == 1 else feedback.gain
    return Memory(feedback.error, stride, decay, at, gain, feedback.out, feedback.out.stride(0))  # type: ignore[arg-type]
