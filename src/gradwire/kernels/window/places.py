"""Where the elements of a window lie, and what a memory adds to them, as launches on a GPU are told.

A window's elements are counted through its spans: element p of a row lies at ``p + shifts[k]`` of the buffer, for the
span k that it falls into. A program treats one tile of neighbours and is told the first span that the tile meets, so a
buffer of many tensors is one launch.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor

from gradwire.core.window import Feedback, Spans, Window

MOST = 2**31 - 2**24  # elements of a row of a buffer: kernels count in 32 bits, padding included
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
    wide: int | None  # None unless every four neighbours, counted from the first, lie together and aligned


class Memory(NamedTuple):
    """What a memory adds, and where it keeps what is lost."""

    error: Tensor | None
    error_stride: int
    decay: float | None  # what is kept is multiplied by this, or by what is known on the device only
    decay_at: Tensor | None
    gain: float | None
    out: Tensor | None
    out_stride: int


def fits(window: Window) -> bool:
    """Whether kernels can treat a window."""
    x = window.buffer
    return window.numel > 0 and x.shape[1] < MOST and x.dtype in DTYPES and x.stride(1) == 1


def place_of(window: Window, shards: int, shard: int, run: int, rows: int = 1) -> Place:
    """Of the tiles of `shards` shards of each worker's elements, one shard after the other.

    A tile is `rows` runs of `run` neighbours.
    """
    tile = run * rows
    tiles = -(-shard // tile)
    table = _table(window.spans, shards, shard, tile, window.buffer.device)
    wide = 1 if run % 4 == 0 and _by_four(window, shards, shard) else None
    return Place(window.buffer, stride_of(window.buffer), window.numel, shards, shard, tiles, *table, wide)


def _by_four(window: Window, shards: int, shard: int) -> bool:
    """Whether four neighbours, from a multiple of four on, lie together in one shard, and aligned."""
    x = window.buffer
    rows = x.stride(0) % 4 == 0 or len(x) == 1
    return rows and x.data_ptr() % (4 * x.element_size()) == 0 and _cut_by_four(window.spans, shards, shard)


@lru_cache(maxsize=1024)
def _cut_by_four(spans: Spans, shards: int, shard: int) -> bool:
    ends = (end for span in spans for end in span)
    return all(end % 4 == 0 for end in ends) and (shards == 1 or shard % 4 == 0)


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
        return _int32(shifts, device), None, None
    starts = [row * shard + start for row in range(shards) for start in range(0, shard, tile)]
    found = [bisect_right(firsts, min(start, at - 1)) - 1 for start in starts]
    ends = [*firsts, at, 2**31 - 1]  # nothing lies behind the end
    return _int32([*shifts, 0], device), _int32(ends, device), _int32(found, device)


def _int32(numbers: Sequence[int], device: torch.device) -> Tensor:
    return torch.tensor(numbers, dtype=torch.int32, device=device)


def memory_of(feedback: Feedback | None) -> Memory:
    """A feedback, as kernels take it."""
    if feedback is None:
        return Memory(None, 0, None, None, None, None, 0)
    known = not isinstance(feedback.decay, Tensor)
    decay = feedback.decay if known and feedback.decay != 1 else None
    at = None if known else feedback.decay.float()  # type: ignore[union-attr]
    gain = None if feedback.gain == 1 else feedback.gain
    strides = [0 if t is None else stride_of(t) for t in (feedback.error, feedback.out)]
    return Memory(feedback.error, strides[0], decay, at, gain, feedback.out, strides[1])  # type: ignore[arg-type]


def stride_of(x: Tensor) -> int:
    """From one row to the next; 0 of a single row, which the compiler knows to be aligned."""
    return x.stride(0) if len(x) > 1 else 0
