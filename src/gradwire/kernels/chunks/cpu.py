"""Chunks by the compiled kernels for single elements."""

from __future__ import annotations

import torch
from torch import Tensor

from gradwire.core.window import Feedback, Flag, Window, nonfinite_flag
from gradwire.kernels import scatter, select
from gradwire.kernels.backend import only
from gradwire.kernels.cast import from_half, to_half
from gradwire.kernels.chunks import Agreed


def _plain(window: Window, *rest: object) -> bool:
    return window.buffer.dtype == torch.float32 and window.numel > 0


def _targets_plain(values: Tensor, agreed: Agreed, chunk: int, target: Window) -> bool:
    return _plain(target)


@only(_plain)
def take_from(source: Window, feedback: Feedback | None, agreed: Agreed, chunk: int) -> Tensor:
    numel, x = source.numel, source.read() if feedback is None else feedback.out
    where, inside = _elements(agreed.kept, chunk, numel)
    picked = torch.where(inside, x[:, where.clamp(max=numel - 1)], 0.0).view(len(x), -1, chunk)
    mine = to_half(picked * agreed.scale)
    if feedback is not None:
        for row, own in enumerate((from_half(mine) / agreed.scale).view(len(x), -1)[:, inside]):
            select.settle(feedback, row, 0, where[inside], own)
    return mine


@only(_targets_plain)
def put_to(values: Tensor, agreed: Agreed, chunk: int, target: Window) -> Flag:
    where, inside = _elements(agreed.kept, chunk, target.numel)
    found = (from_half(values) / agreed.total).view(-1)[inside]
    scatter.put_to([(found, where[inside])], target.numel, target, 1.0)
    return nonfinite_flag(found)


def _elements(kept: Tensor, chunk: int, numel: int) -> tuple[Tensor, Tensor]:
    """The elements of the chunks, and which of them there are."""
    where = (kept[:, None] * chunk + torch.arange(chunk)).view(-1)
    return where, where < numel
