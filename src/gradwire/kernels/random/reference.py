"""Philox-4x32-10 in int64 arithmetic, on any device."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from gradwire.core.random import Stream

_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_WEYL = (0x9E3779B9, 0xBB67AE85)
_MASK = 0xFFFFFFFF
_CHUNK = 1 << 16  # blocks at a time on the CPU: the working set stays in the cache


def stream_words(stream: Stream, shape: Sequence[int], device: torch.device) -> Tensor:
    numel = math.prod(shape)
    if device.type == "meta":
        return torch.empty(tuple(shape), dtype=torch.int64, device=device)
    first, skip = divmod(stream.offset, 4)
    blocks = -(-(skip + numel) // 4)
    return words(stream.key, first, blocks, device)[skip : skip + numel].view(tuple(shape))


def uniform(stream: Stream, shape: Sequence[int], device: torch.device) -> Tensor:
    return (stream_words(stream, shape, device) >> 8).float() * 2.0**-24


def halves(stream: Stream, shape: Sequence[int], device: torch.device) -> Tensor:
    first, skip = divmod(stream.offset, 2)
    numel = math.prod(shape)
    draws = stream_words(Stream(stream.key, first), (-(-(skip + numel) // 2), 1), device)
    parts = torch.cat((draws & 0xFFFF, draws >> 16), dim=1).view(-1)[skip : skip + numel]
    return ((parts.float() + 0.5) * 2.0**-16).view(tuple(shape))


def coins(stream: Stream, shape: Sequence[int], device: torch.device) -> Tensor:
    first, skip = divmod(stream.offset, 32)
    numel = math.prod(shape)
    draws = stream_words(Stream(stream.key, first), (-(-(skip + numel) // 32), 1), device)
    bits = (draws >> torch.arange(32, device=device)) & 1
    return bits.view(-1)[skip : skip + numel].view(tuple(shape)) != 0


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
