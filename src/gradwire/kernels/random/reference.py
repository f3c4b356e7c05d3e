"""Philox-4x32-10 in int64 arithmetic, on any device."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from gradwire.core.random import Stream
from gradwire.kernels.backend import fused
from gradwire.kernels.recording import once

_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_WEYL = (0x9E3779B9, 0xBB67AE85)
_MASK = 0xFFFFFFFF
_ROUNDS = 10
_CHUNK = 1 << 16  # blocks at a time on the CPU: the working set stays in the cache


def words(stream: Stream, shape: Sequence[int], device: torch.device) -> Tensor:
    return _by_part(_words, stream, shape, device)


def uniform(stream: Stream, shape: Sequence[int], device: torch.device) -> Tensor:
    return (words(stream, shape, device) >> 8).float() * 2.0**-24


def quick_words(stream: Stream, shape: Sequence[int], device: torch.device) -> Tensor:
    return _by_part(_quick_words, stream, shape, device)


def halves(stream: Stream, shape: Sequence[int], device: torch.device) -> Tensor:
    return _by_part(_halves, stream, shape, device)


def coins(stream: Stream, shape: Sequence[int], device: torch.device) -> Tensor:
    return _by_part(_coins, stream, shape, device)


def _by_part(
    draw: Callable[[int, int, int, torch.device], Tensor], stream: Stream, shape: Sequence[int], device: torch.device
) -> Tensor:
    """What each key of the stream gives for its part of the elements; what several have alike is drawn once."""
    once("random numbers are drawn by keys that the host knows")
    numel = math.prod(shape)
    known: dict[tuple[int, int], Tensor] = {}
    for part, key, offset in stream.each(numel):
        if (key, offset) not in known:
            known[key, offset] = draw(key, offset, part.stop - part.start, device)
    found = [known[pair] for pair in zip(stream.keys, stream.offsets, strict=True)]
    return (found[0] if len(found) == 1 else torch.cat(found)).view(tuple(shape))


def _words(key: int, offset: int, numel: int, device: torch.device) -> Tensor:
    if device.type == "meta":
        return torch.empty(numel, dtype=torch.int64, device=device)
    first, skip = divmod(offset, 4)
    return block_words(key, first, -(-(skip + numel) // 4), device)[skip : skip + numel]


def _quick_words(key: int, offset: int, numel: int, device: torch.device) -> Tensor:
    place = torch.arange(offset, offset + numel, dtype=torch.int64, device=device)
    x = (place + (key & _MASK) + 0x9E3779B9 * (place >> 32)) & _MASK
    x = x ^ (x >> 16)
    x = (x * 0x7FEB352D ^ (key >> 32)) & _MASK
    x = x ^ (x >> 15)
    x = (x * 0x846CA68B) & _MASK  # int64 wraps around, which keeps the lower bits right
    return x ^ (x >> 16)


def _halves(key: int, offset: int, numel: int, device: torch.device) -> Tensor:
    first, skip = divmod(offset, 2)
    draws = _quick_words(key, first, -(-(skip + numel) // 2), device).view(-1, 1)
    parts = torch.cat((draws & 0xFFFF, draws >> 16), dim=1).view(-1)[skip : skip + numel]
    return (parts.float() + 0.5) * 2.0**-16


def _coins(key: int, offset: int, numel: int, device: torch.device) -> Tensor:
    first, skip = divmod(offset, 32)
    draws = _words(key, first, -(-(skip + numel) // 32), device).view(-1, 1)
    bits = (draws >> torch.arange(32, device=device)) & 1
    return bits.view(-1)[skip : skip + numel] != 0


def block_words(key: int, first: int, blocks: int, device: torch.device) -> Tensor:
    """The 4·`blocks` words of the blocks `first`, `first`+1, …

    A GPU's come from one launch where Triton is there: everything random is made of them, and in plain torch they take
    eighty.
    """
    if fused(device) and first + blocks < 2**31:
        from gradwire.kernels.random import gpu

        return gpu.block_words(key, first, blocks, device)
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
