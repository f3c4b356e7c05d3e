"""Chunks in plain torch."""

from __future__ import annotations

import torch
from torch import Tensor

from gradwire.core.window import Feedback, Flag, Window, nonfinite_flag
from gradwire.kernels import rows


def take_from(source: Window, feedback: Feedback | None, kept: Tensor, chunk: int, scale: Tensor) -> Tensor:
    x = source.read() if feedback is None else feedback.out
    mine = (rows.blocks(x, chunk)[:, kept] * scale).to(torch.float16)
    if feedback is not None:
        feedback.keep(_placed(mine.float() / scale, kept, source.numel))
    return mine


def put_to(values: Tensor, kept: Tensor, chunk: int, scale: Tensor, target: Window) -> Flag:
    found = values.float() / scale
    target.write_(_placed(found, kept, target.numel))
    return nonfinite_flag(found)


def _placed(values: Tensor, kept: Tensor, numel: int) -> Tensor:
    """The chunks `kept` hold `values`, (rows, chunks, chunk), all others zero."""
    out = values.new_zeros((len(values), -(-numel // values.shape[2]), values.shape[2]))
    out[:, kept] = values
    return out.view(len(values), -1)[:, :numel]
