"""Momentum on a GPU: one launch, which reads the gradient where it lies."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from gradwire.core.window import Window
from gradwire.kernels.launch import launch
from gradwire.kernels.window.gpu import position_of, take, tile_of
from gradwire.kernels.window.places import fits, place_of

TILE = 1024


@triton.jit
def _accumulate(place, old_u, old_v, u, v, scale, scale_at, momentum, nesterov: tl.constexpr, size: tl.constexpr):
    worker, shard, tile, _ = tile_of(place)
    element = tile * size + tl.arange(0, size)
    x, inside = take(place, worker, shard, tile, element, element < place[4], size)
    x = x.to(tl.float32)
    row = worker.to(tl.int64) * place[2] + position_of(place, shard, element)
    if scale_at is not None:
        scale = tl.load(scale_at)
    a = x
    if old_u is not None:
        kept = tl.load(old_u + row, mask=inside, other=0.0) * scale
        if nesterov:
            a = kept + x
        else:
            a = kept * momentum + x
    if nesterov:
        a = a * momentum
    b = a
    if old_v is not None:
        b = tl.load(old_v + row, mask=inside, other=0.0) * scale + a
    if nesterov:
        b = b + x
    tl.store(u + row, a, mask=inside)
    tl.store(v + row, b, mask=inside)


def serves(source: Window, tensors: list[Tensor]) -> bool:
    """Whether the kernel can treat these: what is kept lies together, a row for each worker."""
    return fits(source) and all(t.is_contiguous() for t in tensors)


def accumulate(
    source: Window,
    old: tuple[Tensor | None, Tensor | None],
    new: tuple[Tensor, Tensor],
    scale: float | Tensor,
    momentum: float,
    nesterov: bool,
) -> None:
    place = place_of(source, 1, source.numel, TILE)
    told = (1.0, scale.float()) if isinstance(scale, Tensor) else (float(scale), None)
    args = place, *old, *new, *told, momentum
    launch(_accumulate, source.rows * place.tiles, source.buffer.device, *args, nesterov=nesterov, size=TILE)
