"""Nearest entries in plain torch, by binary search."""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor

from gradwire.kernels import rows


class Shares(NamedTuple):
    """Elements that share a scale, their largest magnitude; and the tables of what they are shares of it."""

    block: int
    midpoints: tuple[float, ...]
    table: tuple[float, ...]


def encode(x: Tensor, scale: Tensor, block: int, midpoints: tuple[float, ...]) -> Tensor:
    blocks = rows.blocks(x, block)
    shares = blocks.abs().div_(scale.unsqueeze(2))
    index = torch.bucketize(shares, _on(midpoints, x.device), out_int32=True)
    codes = torch.where((blocks < 0) & (index > 0), index.clamp(max=127) + 128, index)
    return codes.to(torch.uint8).flatten(1)[:, : x.shape[1]]


def decode(codes: Tensor, scale: Tensor, block: int, table: tuple[float, ...]) -> Tensor:
    shares = _on(table, codes.device)[rows.blocks(codes, block).int()]
    return shares.mul_(scale.unsqueeze(2)).flatten(1)[:, : codes.shape[1]]


def decode_sum(codes: Tensor, scale: Tensor, block: int, table: tuple[float, ...], groups: int) -> Tensor:
    return rows.added(decode(codes, scale, block, table), groups)


@lru_cache
def _on(numbers: tuple[float, ...], device: torch.device) -> Tensor:
    return torch.tensor(numbers, device=device)
