"""Half precision on a GPU, in one launch each way: gradients are read, and results written, where they lie."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from gradwire.core.window import Window
from gradwire.kernels.backend import only
from gradwire.kernels.blockwise.gpu import block_tile
from gradwire.kernels.launch import launch
from gradwire.kernels.window.gpu import both, position_of, put_checked, take, tile_of
from gradwire.kernels.window.places import fits, place_of, stride_of

TILE = 1024


@triton.jit
def _half_from(place, share, out, stride, size: tl.constexpr):
    worker, shard, tile, _ = tile_of(place)
    _, element, live = block_tile(tile, place[4], size, 1, size)
    x, inside = take(place, worker, shard, tile, element, live, size)
    at = out + worker.to(tl.int64) * stride + position_of(place, shard, element)
    tl.store(at, (x.to(tl.float32) * share).to(tl.float16), mask=inside)


@triton.jit
def _half_to(half, place, flag, size: tl.constexpr):
    worker, shard, tile, _ = tile_of(place)
    _, element, live = block_tile(tile, place[4], size, 1, size)
    position = position_of(place, shard, element)
    live = both(position < place[2], live, place)
    x = tl.load(half + position, mask=live, other=0.0).to(tl.float32)
    put_checked(x, place, worker, shard, tile, element, live, flag, size)


def _rows_lie_together(source: Window, share: float, out: Tensor) -> bool:
    return fits(source) and out.stride(1) == 1


@only(_rows_lie_together)
def half_from(source: Window, share: float, out: Tensor) -> None:
    place = place_of(source, 1, source.numel, TILE)
    args = place, share, out, stride_of(out)
    launch(_half_from, source.rows * place.tiles, out.device, *args, size=TILE)


def _row_lies_together(half: Tensor, target: Window) -> bool:
    return fits(target) and half.stride(1) == 1


@only(_row_lies_together)
def half_to(half: Tensor, target: Window) -> Tensor:
    place, flag = place_of(target, 1, target.numel, TILE), torch.zeros((), device=half.device)
    launch(_half_to, place.tiles, half.device, half, place, flag, size=TILE)
    return flag
