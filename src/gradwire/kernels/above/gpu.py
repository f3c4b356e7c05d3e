"""Elements beyond a threshold on a GPU: `_count` counts those of each tile, `_collect` writes them one after the other.

Running sums say where those of a tile begin. The host waits for the last of each row.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from gradwire.core.window import Feedback, Window
from gradwire.kernels.backend import only
from gradwire.kernels.launch import launch
from gradwire.kernels.window.gpu import compensated, fits, keep, memory_of, place_of, position_of, take, tile_of

TILE = 1024  # elements of a program


class Sent(NamedTuple):
    """What is taken off the new error, and the momentum that becomes zero there."""

    factor: float
    momentum: Tensor | None
    momentum_stride: int


@triton.jit
def _count(place, memory, threshold, counts, size: tl.constexpr):
    """Compensate, keep that, and count what exceeds the threshold."""
    worker, shard, tile, _ = tile_of(place)
    element = tile * size + tl.arange(0, size)
    a, inside = take(place, worker, shard, tile, element, element < place[4], size)
    position = position_of(place, shard, element)
    a = compensated(a, memory, worker, position, inside)
    keep(a, memory, worker, position, inside)
    tl.store(counts + tl.program_id(0), tl.sum((inside & ((tl.abs(a) <= threshold) == 0)).to(tl.int32), 0))


@triton.jit
def _collect(place, memory, threshold, sums, values, where, sent, bits: tl.constexpr, size: tl.constexpr):
    """Values and places of what exceeds the threshold; it is taken off the new error."""
    program = tl.program_id(0)
    start = tl.load(sums + program - 1, mask=program > 0, other=0)
    if tl.load(sums + program) > start:
        worker, shard, tile, _ = tile_of(place)
        element = tile * size + tl.arange(0, size)
        a, inside = take(place, worker, shard, tile, element, element < place[4], size)
        a = a.to(tl.float32)
        chosen = inside & ((tl.abs(a) <= threshold) == 0)
        one = chosen.to(tl.int32)
        slot = start.to(tl.int64) + tl.cumsum(one, 0) - one
        tl.store(values + slot, a, mask=chosen)
        tl.store(where + slot, element.to(tl.int64), mask=chosen)
        own = a
        if bits == 16:
            own = own.to(tl.float16).to(tl.float32)
        own = own * sent[0]
        position = position_of(place, shard, element)
        keep(a - own, memory, worker, position, chosen)
        if sent[1] is not None:
            at = sent[1] + worker.to(tl.int64) * sent[2] + position
            tl.store(at, tl.zeros_like(a), mask=chosen & (own != 0))


def _takes(source: Window, *rest: object) -> bool:
    return fits(source)


@only(_takes)
def take_from(
    source: Window,
    feedback: Feedback | None,
    shards: int,
    shard: int,
    threshold: float,
    value_bits: int,
    factor: float,
) -> list[tuple[Tensor, Tensor]]:
    device, rows, memory = source.buffer.device, source.rows * shards, memory_of(feedback)
    place = place_of(source, shards, shard, TILE)
    counts = torch.empty(rows * place.tiles, dtype=torch.int32, device=device)
    launch(_count, counts.numel(), device, place, memory, threshold, counts, size=TILE)
    sums = counts.cumsum(0, dtype=torch.int32)
    ends = sums[place.tiles - 1 :: place.tiles].tolist()
    values, where = torch.empty(ends[-1], device=device), torch.empty(ends[-1], dtype=torch.int64, device=device)
    held = place if feedback is None else place_of(Window.whole(feedback.out), shards, shard, TILE)
    momentum = None if feedback is None else feedback.momentum
    sent = Sent(factor, momentum, 0 if momentum is None else momentum.stride(0))
    args = held, memory, threshold, sums, values, where, sent
    launch(_collect, counts.numel(), device, *args, bits=value_bits, size=TILE)
    starts = [0, *ends[:-1]]
    return [(values[None, a:b], where[None, a:b]) for a, b in zip(starts, ends, strict=True)]
