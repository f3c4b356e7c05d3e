"""The Hadamard rotation in plain torch."""

from __future__ import annotations

from functools import lru_cache

import torch
from torch import Tensor

from gradwire.core.random import Stream
from gradwire.kernels.random.reference import coins


def rotate(x: Tensor, size: int, signs: Stream | None) -> Tensor:
    return _transform(x if signs is None else _flipped(x, signs), size)


def unrotate(y: Tensor, size: int, signs: Stream | None) -> Tensor:
    x = _transform(y, size)
    return x if signs is None else _flipped(x, signs)


def _flipped(x: Tensor, signs: Stream) -> Tensor:
    return torch.where(coins(signs, x.shape, x.device), -x, x)


def _transform(x: Tensor, size: int) -> Tensor:
    runs, half = x.reshape(-1, size), 1
    while half < size:
        pairs = runs.view(-1, size // (2 * half), 2, half)
        low, high = pairs[:, :, 0], pairs[:, :, 1]
        runs = torch.stack((low + high, low - high), dim=2).view(-1, size)
        half *= 2
    return (runs * root_of(size)).view(x.shape)


@lru_cache(maxsize=64)
def root_of(size: int) -> float:
    """What keeps the length: one over the root of `size`, in float32."""
    return float(torch.tensor(size, dtype=torch.float32).rsqrt())
