"""Taking back on a GPU: a finite step, and nearly all are, costs a launch and touches nothing."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from gradwire.kernels.backend import only
from gradwire.kernels.launch import launch

TILE = 4096


@triton.jit
def _take_back(new, old, finite, numel, size: tl.constexpr):
    if tl.load(finite) == 0:
        place = tl.program_id(0).to(tl.int64) * size + tl.arange(0, size)
        inside = place < numel
        if old is None:
            tl.store(new + place, tl.zeros((size,), new.dtype.element_ty), mask=inside)
        else:
            tl.store(new + place, tl.load(old + place, mask=inside), mask=inside)


def _alike(new: Tensor, old: Tensor | None, finite: Tensor) -> bool:
    same = old is None or (old.shape == new.shape and old.dtype == new.dtype and old.is_contiguous())
    return same and new.is_contiguous()


@only(_alike)
def take_back(new: Tensor, old: Tensor | None, finite: Tensor) -> None:
    args = new, old, finite.view(torch.uint8), new.numel()
    launch(_take_back, triton.cdiv(new.numel(), TILE), new.device, *args, size=TILE)
