"""Chunks in plain torch."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from gradwire.core.window import Feedback, Flag, Window, nonfinite_flag
from gradwire.kernels import rows
from gradwire.kernels.select import top

if TYPE_CHECKING:
    from gradwire.kernels.chunks import Agreed


def agree(energies: Tensor, count: int, workers: int) -> Agreed:
    from gradwire.kernels.chunks import Agreed

    energy = energies.float()
    scale = _power_of_two(energy.amax()) / workers
    return Agreed(top(energy, count)[0], scale, scale * workers)


def take_from(source: Window, feedback: Feedback | None, agreed: Agreed, chunk: int) -> Tensor:
    x = source.read() if feedback is None else feedback.out
    mine = (rows.blocks(x, chunk)[:, agreed.kept] * agreed.scale).to(torch.float16)
    if feedback is not None:
        feedback.keep(_placed(mine.float() / agreed.scale, agreed.kept, source.numel))
    return mine


def put_to(values: Tensor, agreed: Agreed, chunk: int, target: Window) -> Flag:
    found = values.float() / agreed.total
    target.write_(_placed(found, agreed.kept, target.numel))
    return nonfinite_flag(found)


def _power_of_two(energy: Tensor) -> Tensor:
    """2^e such that sqrt(energy)·2^e lies in [2¹², 2¹⁴): any element of such a chunk fits half precision."""
    exponent = 13 - torch.where(energy > 0, energy, 1.0).log2().mul(0.5).floor()
    return torch.exp2(exponent.clamp(-100, 100))


def _placed(values: Tensor, kept: Tensor, numel: int) -> Tensor:
    """The chunks `kept` hold `values`, (rows, chunks, chunk), all others zero."""
    out = values.new_zeros((len(values), -(-numel // values.shape[2]), values.shape[2]))
    out[:, kept] = values
    return out.view(len(values), -1)[:, :numel]
