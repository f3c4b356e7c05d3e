"""The end of a step on a GPU: a finite one, and nearly all are, costs a launch and touches nothing that was written."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

from gradwire.kernels.backend import only
from gradwire.kernels.commit.reference import Written
from gradwire.kernels.launch import launch

TILE = 4096
PROGRAMS = 264  # at most: two for each of an H200's multiprocessors, which take tiles in turn
TOGETHER = 32  # pairs of one launch


@triton.jit
def _settle(flags, written, counters, finite, scale, programs, size: tl.constexpr):
    total = 0.0
    for i in tl.static_range(len(flags)):
        total += tl.load(flags[i]).to(tl.float32)
    if total != 0:  # NaN, too
        first = tl.program_id(0).to(tl.int64) * size
        for i in tl.static_range(len(written)):
            for start in range(first, written[i][2], programs * size):
                place = start + tl.arange(0, size)
                inside = place < written[i][2]
                tl.store(written[i][0] + place, tl.load(written[i][1] + place, mask=inside), mask=inside)
    if counters is not None:  # noqa: SIM102 - decided when this is compiled
        if tl.program_id(0) == 0:
            skipped, kept = counters
            tl.store(finite, tl.where(total == 0, 1, 0).to(tl.uint8))
            tl.store(skipped, tl.load(skipped) + tl.where(total == 0, 0, 1))
            tl.store(kept, scale, mask=total == 0)


def _alike(flags: Sequence[Tensor], written: Sequence[Written], *rest: object) -> bool:
    """First steps, before which there was nothing, are not for here."""
    return all(old is not None and _same(new, old) for new, old in written)


def _same(new: Tensor, old: Tensor) -> bool:
    return (old.shape, old.dtype) == (new.shape, new.dtype) and old.is_contiguous() and new.is_contiguous()


@only(_alike)
def settle(flags: Sequence[Tensor], written: Sequence[Written], skipped: Tensor, kept: Tensor, scale: float) -> Tensor:
    finite = torch.empty((), dtype=torch.bool, device=kept.device)
    pairs = [(new, old, new.numel()) for new, old in written]
    for first in range(0, max(len(pairs), 1), TOGETHER):
        some = tuple(pairs[first : first + TOGETHER])
        programs = min(PROGRAMS, max(1, *(triton.cdiv(numel, TILE) for _, _, numel in some), 1))
        counters = None if first else (skipped, kept)
        args = tuple(flags), some, counters, finite.view(torch.uint8), scale, programs
        launch(_settle, programs, kept.device, *args, size=TILE)
    return finite
