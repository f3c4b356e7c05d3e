"""Tiles of a window on a GPU.

A window's elements are counted through its spans: element p of a row lies at ``p + shifts[k]`` of the buffer, for the
span k that it falls into. A program treats one tile of neighbours and is told the first span that the tile meets, so a
buffer of many tensors is one launch.
"""

from __future__ import annotations

from bisect import bisect_right
from functools import lru_cache
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from gradwire.core.window import Feedback, Spans, Window

PLAIN, KNOWN, ON_DEVICE = 0, 1, 2  # what is known of a memory's factor: it is one, a number, or a tensor's
MOST = 2**31 - 2**24  # elements of a window: kernels count in 32 bits, padding included
DTYPES = (torch.float32, torch.float16, torch.bfloat16)


class Places(NamedTuple):
    """Where the elements of a window lie, for kernels that count in tiles."""

    firsts: Tensor  # first element of each span, and the number of all
    shifts: Tensor  # of each span
    spans: Tensor  # first span of each tile


class Memory(NamedTuple):
    """What a memory adds, for kernels."""

    error: Tensor
    error_stride: int
    out: Tensor
    out_stride: int
    decay: float
    decay_at: Tensor
    gain: float


@triton.jit
def places(position, end, firsts, shifts, spans, one: tl.constexpr):
    """Where the elements at `position`, up to `end`, lie in a row of the buffer. `spans` has the first they meet."""
    if one:
        return position.to(tl.int64) + tl.load(shifts)
    shift = tl.zeros_like(position).to(tl.int64)
    span = tl.load(spans)
    first = tl.load(firsts + span)
    while first < end:
        shift = tl.where(position >= first, tl.load(shifts + span), shift)
        span += 1
        first = tl.load(firsts + span)
    return position + shift


@triton.jit
def compensated(
    a, error, position, inside, decay, decay_at, gain, factor: tl.constexpr, kept: tl.constexpr, gains: tl.constexpr
):
    """``gain·a + decay·error`` of a tile, in float32."""
    if gains:
        a = a * gain
    if kept:
        e = tl.load(error + position, mask=inside, other=0.0)
        if factor == 1:
            e = e * decay
        if factor == 2:
            e = e * tl.load(decay_at)
        a = a + e
    return a


def places_of(window: Window, shards: int, shard: int, tile: int) -> tuple[Places, bool]:
    """Of the tiles of `shards` shards of a window's elements, one shard after the other; whether there is one span."""
    device = window.buffer.device
    return _places(window.spans, shards, shard, tile, device), len(window.spans) == 1


@lru_cache(maxsize=1024)
def _places(spans: Spans, shards: int, shard: int, tile: int, device: torch.device) -> Places:
    firsts, shifts, at = [], [], 0
    for first, last in spans:
        if first < last:
            firsts.append(at)
            shifts.append(first - at)
            at += last - first
    starts = (
        [row * shard + start for row in range(shards) for start in range(0, shard, tile)] if len(spans) > 1 else [0]
    )
    found = [bisect_right(firsts, min(start, at - 1)) - 1 for start in starts]
    numbers = (
        torch.tensor([*firsts, at, 1 << 62]),  # nothing lies behind the end
        torch.tensor([*shifts, 0]),
        torch.tensor(found, dtype=torch.int32),
    )
    return Places(*(t.to(device) for t in numbers))


def memory_of(feedback: Feedback | None, device: torch.device) -> tuple[Memory, dict[str, Any]]:
    """A memory's tensors and numbers, and what kernels are compiled for by them."""
    if feedback is None:
        nothing = _nothing(device)
        return Memory(nothing, 0, nothing, 0, 1.0, nothing, 1.0), {"factor": PLAIN, "kept": False, "gains": False}
    error = feedback.out if feedback.error is None else feedback.error
    decay, told = (1.0, feedback.decay) if isinstance(feedback.decay, Tensor) else (feedback.decay, feedback.out)
    factor = ON_DEVICE if isinstance(feedback.decay, Tensor) else PLAIN if decay == 1 else KNOWN
    memory = Memory(error, error.stride(0), feedback.out, feedback.out.stride(0), decay, told.float(), feedback.gain)
    return memory, {"factor": factor, "kept": feedback.error is not None, "gains": feedback.gain != 1}


@lru_cache(maxsize=16)
def _nothing(device: torch.device) -> Tensor:
    return torch.zeros(1, device=device)
