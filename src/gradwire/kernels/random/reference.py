"""Philox-4x32-10 in int64 arithmetic, on any device."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from gradwire.core.random import Stream
from gradwire.kernels.backend import fused

_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_WEYL = (0x9E3779B9, 0xBB67AE85)
_MASK = 0xFFFFFFFF
_ROUNDS = 10
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
    """The 4·`blocks` words of the blocks `first`, `first`+1, …

    A GPU's come from one launch where Triton is there: everything random is made of them, and in plain torch they take
    eighty.
    """
    if fused(device) and first + blocks < 2**31:
        from gradwire.kernels.random import gpu

        return gpu.words(key, first, blocks, device)
    return plain_words(key, first, blocks, device)


def plain_words(key: int, first: int, blocks: int, device: torch.device) -> Tensor:
    """The same in torch operations: what the words are."""
    out = torch.empty((blocks, 4), dtype=torch.int64, device=device)
    step = _CHUNK if device.type == "cpu" else max(blocks, 1)
    for start in range(0, blocks, step):
        stop = min(start + step, blocks)
        counter = torch.arange(first + start, first + stop, dtype=torch.int64, device=device)
        out[start:stop] = _philox(key, counter)
    return out.view(-1)


def _philox(key: int, counter: Tensor) -> Tensor:
    """Words 0 to 3 of each block: (blocks, 4). The two multiplications of a round are one operation on two lanes."""
    second = torch.arange(2, device=counter.device)[:, None] != 0
    rounds = torch.arange(_ROUNDS, device=counter.device)[:, None, None]
    multipliers = torch.where(second, *_MULTIPLIERS[::-1])
    keys = (torch.where(second, key >> 32, key & _MASK) + rounds * torch.where(second, *_WEYL[::-1])) & _MASK
    even = torch.stack((counter & _MASK, torch.zeros_like(counter)))  # words 0 and 2
    odd = torch.stack(((counter >> 32) & _MASK, torch.zeros_like(counter)))  # words 1 and 3
    for keyed in keys:
        product = even * multipliers  # int64 wraps around, which keeps the bits right
        even = (product >> 32).bitwise_and_(_MASK).flip(0).bitwise_xor_(odd).bitwise_xor_(keyed)
        odd = product.bitwise_and_(_MASK).flip(0)
    return torch.stack((even[0], odd[0], even[1], odd[1]), dim=1)
