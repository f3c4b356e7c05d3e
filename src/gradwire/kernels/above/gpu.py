"""Elements beyond a threshold on a GPU: `_count` counts those of each tile, `_collect` writes them one after the other.

Running sums say where those of a tile begin. The host waits for the last of each row: they say how long the payload is.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from gradwire.core.window import Feedback, Window
from gradwire.kernels.counted.gpu import HEAD, empty, write_indices
from gradwire.kernels.launch import launch
from gradwire.kernels.window.gpu import compensated, keep, memory_of, place_of, position_of, take, tile_of

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
def _collect(place, memory, threshold, sums, data, stride, where, sent, bits: tl.constexpr, size: tl.constexpr):
    """What exceeds the threshold: values to their row, places to one list; they are taken off the new error."""
    program = tl.program_id(0)
    start = tl.load(sums + program - 1, mask=program > 0, other=0)
    if tl.load(sums + program) > start:
        worker, shard, tile, row = tile_of(place)
        element = tile * size + tl.arange(0, size)
        a, inside = take(place, worker, shard, tile, element, element < place[4], size)
        a = a.to(tl.float32)
        chosen = inside & ((tl.abs(a) <= threshold) == 0)
        one = chosen.to(tl.int32)
        rank = tl.cumsum(one, 0) - one
        tl.store(where + start + rank, element, mask=chosen)
        own = a
        begin = tl.load(sums + (program - tile) - 1, mask=program > tile, other=0)  # of the row
        at = data + row.to(tl.int64) * stride + HEAD
        slot = (start - begin).to(tl.int32) + rank
        if bits == 16:
            half = a.to(tl.float16)
            own = half.to(tl.float32)
            tl.store(at.to(tl.pointer_type(tl.float16)) + slot, half, mask=chosen)
        else:
            tl.store(at.to(tl.pointer_type(tl.float32)) + slot, a, mask=chosen)
        own = own * sent[0]
        position = position_of(place, shard, element)
        keep(a - own, memory, worker, position, chosen)
        if sent[1] is not None:
            at = sent[1] + worker.to(tl.int64) * sent[2] + position
            tl.store(at, tl.zeros_like(a), mask=chosen & (own != 0))


def send_from(
    source: Window,
    feedback: Feedback | None,
    shards: int,
    shard: int,
    threshold: float,
    value_bits: int,
    factor: float,
) -> tuple[Tensor, Tensor]:
    device, rows, memory = source.buffer.device, source.rows * shards, memory_of(feedback)
    place = place_of(source, shards, shard, TILE)
    tally = torch.empty(rows * place.tiles, dtype=torch.int32, device=device)
    launch(_count, tally.numel(), device, place, memory, threshold, tally, size=TILE)
    sums = tally.cumsum(0)
    ends = sums[place.tiles - 1 :: place.tiles].tolist()
    counts = [end - start for start, end in zip([0, *ends], ends, strict=False)]
    data, lengths = empty(counts, shard, value_bits, device)
    where = torch.empty(ends[-1], dtype=torch.int32, device=device)
    held = place if feedback is None else place_of(Window.whole(feedback.out), shards, shard, TILE)
    momentum = None if feedback is None else feedback.momentum
    sent = Sent(factor, momentum, 0 if momentum is None else momentum.stride(0))
    args = held, memory, threshold, sums, data, data.stride(0), where, sent
    launch(_collect, tally.numel(), device, *args, bits=value_bits, size=TILE)
    write_indices(where, sums, place.tiles, max(counts), data, shard, value_bits)
    return data, lengths
