"""Casts in plain torch."""

from __future__ import annotations

import torch
from torch import Tensor


def to_half(x: Tensor) -> Tensor:
    return x.to(torch.float16)


def from_half(x: Tensor) -> Tensor:
    return x.to(torch.float32)
