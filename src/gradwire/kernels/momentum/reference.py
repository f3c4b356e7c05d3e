"""Momentum in plain torch."""

from __future__ import annotations

import torch
from torch import Tensor

from gradwire.core.window import Window


def accumulate(
    source: Window,
    old: tuple[Tensor | None, Tensor | None],
    new: tuple[Tensor, Tensor],
    scale: float | Tensor,
    momentum: float,
    nesterov: bool,
) -> None:
    x, (u, v) = source.read(), new
    if old[0] is None:
        u.copy_(x)
    elif nesterov:
        torch.mul(old[0], scale, out=u).add_(x)
    else:
        torch.mul(old[0], scale, out=u).mul_(momentum).add_(x)
    if nesterov:
        u.mul_(momentum)
    if old[1] is None:
        v.copy_(u)
    else:
        torch.mul(old[1], scale, out=v).add_(u)
    if nesterov:
        v.add_(x)
