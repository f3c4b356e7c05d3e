"""Bit packing in plain torch."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


def pack(codes: Tensor, width: int) -> Tensor:
    rows = codes.shape[0]
    if width == 8:
        return codes.to(torch.uint8)
    if 8 % width == 0:  # a whole number of codes in each byte
        per_byte = 8 // width
        groups = _padded(codes.to(torch.uint8), per_byte).view(rows, -1, per_byte)
        return (groups << _positions(groups, width)).sum(-1, dtype=torch.uint8)
    bits = (codes.to(torch.int64).unsqueeze(-1) >> torch.arange(width, device=codes.device)) & 1
    return pack(bits.flatten(1), 1)


def unpack(data: Tensor, width: int, numel: int) -> Tensor:
    rows = data.shape[0]
    if width == 8:
        return data[:, :numel]
    if 8 % width == 0:
        codes = (data.unsqueeze(-1) >> _positions(data, width)) & ((1 << width) - 1)
        return codes.flatten(1)[:, :numel]
    bits = unpack(data, 1, numel * width).view(rows, numel, width).to(torch.int64)
    codes = (bits << torch.arange(width, device=data.device)).sum(-1)
    return codes.to(torch.uint8) if width < 8 else codes


def _padded(codes: Tensor, multiple: int) -> Tensor:
    return F.pad(codes, (0, -codes.shape[1] % multiple))


def _positions(like: Tensor, width: int) -> Tensor:
    """Where each code begins in its byte."""
    return torch.arange(0, 8, width, dtype=torch.uint8, device=like.device)
