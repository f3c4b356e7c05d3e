"""An element in 32 bits: 28 of index, one of sign, 3 of exponent below the largest of its parameter.

A value becomes the nearest power of two, which is off by no more than a third of it. What lies more than `STEPS` powers
below the largest of its parameter is left out.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from gradwire.core.exchange import Payload
from gradwire.kernels import rows
from gradwire.kernels.indices import inside

LARGEST = 1 << 28  # elements that an index reaches
NOT_FINITE = 255  # in the place of an exponent
STEPS = 7  # that an exponent may lie below the largest


def encode(x: Tensor, where: Tensor, starts: Tensor) -> tuple[Tensor, Tensor]:
    """The largest exponent of each parameter, beginning at `starts`, and a word for each element `where` in reach."""
    bits = x[where].view(torch.int32).long()
    exponent = (((bits & 0x7FFFFFFF) + 0x400000) >> 23).clamp_(max=254)  # of the nearest power of two
    group = _groups(where, starts)
    largest = torch.zeros_like(starts).scatter_reduce_(0, group, exponent, "amax")
    steps = largest[group] - exponent
    words = where | (bits < 0).long() << 28 | steps << 29
    return largest, words[(steps <= STEPS) & (exponent > 0)].to(torch.int32)


def decode(largest: Tensor, words: Tensor, starts: Tensor) -> tuple[Tensor, Tensor]:
    """Where the words' elements are, and their values."""
    bits = words.long() & 0xFFFFFFFF
    where = bits & (LARGEST - 1)
    exponent = largest[_groups(where, starts)] - (bits >> 29)
    sign = (bits >> 28 & 1) << 31
    return where, (exponent << 23 | sign).to(torch.int32).view(torch.float32)


def _groups(where: Tensor, starts: Tensor) -> Tensor:
    """Which parameter each index lies in."""
    return torch.bucketize(where, starts, right=True) - 1


def written(largest: Tensor, words: Tensor) -> Tensor:
    """A worker's row: a byte of largest exponent for each parameter, then the words."""
    return rows.join(largest.byte()[None], words[None])


def added(payload: Payload, starts: Tensor, numel: int) -> Tensor:
    """The sum of what the rows hold, in their order: (1, numel)."""
    assert payload.lengths is not None
    total = torch.zeros((1, numel), device=starts.device)
    for row, length in zip(payload.data, payload.lengths.tolist(), strict=True):
        exponents, start = rows.take(row[None], 0, starts.numel(), torch.uint8)
        words, _ = rows.take(row[None], start, (length - start) // 4, torch.int32)
        where, values = decode(exponents[0].long(), words[0], starts)
        total[0].index_add_(0, inside(where[None], numel)[0], values)
        total += torch.where((exponents == NOT_FINITE).any(), math.nan, 0.0)
    return total
