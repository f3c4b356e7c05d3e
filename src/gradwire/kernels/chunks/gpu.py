"""Chunks on a GPU, a launch each way."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from gradwire.core.window import Feedback, Flag, Window
from gradwire.kernels.backend import only
from gradwire.kernels.blockwise.gpu import LARGEST, block_tile, blocks_in_tile, columns_of
from gradwire.kernels.launch import launch
from gradwire.kernels.window.gpu import anywhere, fits, place_of, places, tile_of, write


@triton.jit
def _take(
    place, held, kept, chunks, scale, mine, tiles, block: tl.constexpr, rows: tl.constexpr, columns: tl.constexpr
):
    out, momentum = held
    worker, tile = tl.program_id(0) // tiles, tl.program_id(0) % tiles
    slot = tile * rows + tl.arange(0, rows)
    column = tl.arange(0, columns)
    live = (slot < chunks)[:, None] & (column < block)[None, :]
    number = tl.load(kept + slot, mask=slot < chunks, other=0)
    element = number[:, None] * block + column[None, :]
    inside = live & (element < place[2])
    row = worker.to(tl.int64) * place[2]
    if out is None:
        x = tl.load(anywhere(place, worker, element), mask=inside, other=0.0).to(tl.float32)
    else:
        x = tl.load(out + row + element, mask=inside, other=0.0)
    factor = tl.load(scale)
    half = (x * factor).to(tl.float16)
    to = worker.to(tl.int64) * chunks * block + slot[:, None] * block + column[None, :]
    tl.store(mine + to, half, mask=live)
    if out is not None:
        own = tl.div_rn(half.to(tl.float32), tl.zeros_like(x) + factor)
        tl.store(out + row + element, x - own, mask=inside)
        if momentum is not None:
            tl.store(momentum + row + element, tl.zeros_like(x), mask=inside & (own != 0))


@triton.jit
def _put(values, slots, scale, place, flag, block: tl.constexpr, rows: tl.constexpr, columns: tl.constexpr):
    worker, shard, tile, _ = tile_of(place)
    blocks, element, live = block_tile(tile, place[4], block, rows, columns)
    slot = tl.load(slots + blocks, mask=blocks * block < place[4], other=-1)
    sent = live & (slot >= 0)[:, None]
    half = tl.load(values + slot[:, None].to(tl.int64) * block + tl.arange(0, columns)[None, :], mask=sent, other=0.0)
    x = half.to(tl.float32)
    x = tl.where(sent, tl.div_rn(x, tl.zeros_like(x) + tl.load(scale)), 0.0)
    at, inside = places(place, worker, shard, tile, element, block * rows)
    write(x, at, inside & live, flag)


def _takes(source: Window, feedback: Feedback | None, kept: Tensor, chunk: int, scale: Tensor) -> bool:
    held = [] if feedback is None else [feedback.out, *([] if feedback.momentum is None else [feedback.momentum])]
    return fits(source) and chunk <= LARGEST and all(t.is_contiguous() for t in held)


@only(_takes)
def take_from(source: Window, feedback: Feedback | None, kept: Tensor, chunk: int, scale: Tensor) -> Tensor:
    device, chunks, rows = kept.device, kept.numel(), blocks_in_tile(chunk, kept.numel() * chunk)
    mine = torch.empty((source.rows, chunks, chunk), dtype=torch.float16, device=device)
    held = (None, None) if feedback is None else (feedback.out, feedback.momentum)
    place, tiles = place_of(source, 1, source.numel, chunk), triton.cdiv(chunks, rows)
    args = place, held, kept.to(torch.int32), chunks, scale.float(), mine, tiles
    launch(_take, source.rows * tiles, device, *args, block=chunk, rows=rows, columns=columns_of(chunk))
    return mine


def _puts(values: Tensor, kept: Tensor, chunk: int, scale: Tensor, target: Window) -> bool:
    return fits(target) and chunk <= LARGEST and values.is_contiguous()


@only(_puts)
def put_to(values: Tensor, kept: Tensor, chunk: int, scale: Tensor, target: Window) -> Flag:
    device, numel, rows = kept.device, target.numel, blocks_in_tile(chunk, target.numel)
    slots = torch.full((-(-numel // chunk),), -1, dtype=torch.int32, device=device)
    slots[kept] = torch.arange(kept.numel(), dtype=torch.int32, device=device)
    place, flag = place_of(target, 1, numel, chunk, rows), torch.zeros((), device=device)
    args = values, slots, scale.float(), place, flag
    launch(_put, place.tiles, device, *args, block=chunk, rows=rows, columns=columns_of(chunk))
    return flag
