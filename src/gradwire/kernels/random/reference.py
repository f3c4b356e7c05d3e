"""Philox-4x32-10 in int64 arithmetic, on any device."""

from __future__ import annotations

import torch
from torch import Tensor

_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_WEYL = (0x9E3779B9, 0xBB67AE85)
_MASK = 0xFFFFFFFF
_CHUNK = 1 << 16  # blocks at a time on the CPU: the working set stays in the cache


def words(key: int, first: int, blocks: int, device: torch.device) -> Tensor:
    """The 4·`blocks` words of the blocks `first`, `first`+1, …"""
    out = torch.empty((blocks, 4), dtype=torch.int64, device=device)
    step = _CHUNK if device.type == "cpu" else max(blocks, 1)
    for start in range(0, blocks, step):
        stop = min(start + step, blocks)
        counter = torch.arange(first + start, first + stop, dtype=torch.int64, device=device)
        out[start:stop] = torch.stack(_philox(key, counter), dim=1)
    return out.view(-1)


def _philox(key: int, counter: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    x0, x1 = counter & _MASK, (counter >> 32) & _MASK
    x2 = x3 = torch.zeros_like(counter)
    k0, k1 = key & _MASK, key >> 32
    for _ in range(10):
        high0, low0 = _multiply(_MULTIPLIERS[0], x0)
        high1, low1 = _multiply(_MULTIPLIERS[1], x2)
        x0, x1, x2, x3 = high1 ^ x1 ^ k0, low1, high0 ^ x3 ^ k1, low0
        k0, k1 = (k0 + _WEYL[0]) & _MASK, (k1 + _WEYL[1]) & _MASK
    return x0, x1, x2, x3


def _multiply(constant: int, x: Tensor) -> tuple[Tensor, Tensor]:
    """High and low 32 bits of a 32 × 32 bit product; int64 wraps around, which keeps the bits right."""
    product = x * constant
    return (product >> 32) & _MASK, product & _MASK
