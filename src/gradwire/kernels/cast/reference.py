"""Casts in plain torch."""

from __future__ import annotations

import torch
from torch import Tensor

from gradwire.core.window import Window


def to_half(x: Tensor) -> Tensor:
    return x.to(torch.float16)


def from_half(x: Tensor) -> Tensor:
    return x.to(torch.float32)


def half_from(source: Window, share: float, out: Tensor) -> None:
    out.copy_(source.read() * share)


def half_to(half: Tensor, target: Window) -> Tensor:
    target.write_(half)
    return (half.float() * 0).sum()
