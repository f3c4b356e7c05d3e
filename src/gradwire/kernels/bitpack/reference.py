"""Bit packing in plain torch."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


def pack(codes: Tensor, width: int) -> Tensor:
    rows, numel = codes.shape
    if width == 8:
        return codes.to(torch.uint8)
    if 8 % width == 0:  # a whole number of codes in each byte
        per_byte = 8 // width
        groups = F.pad(codes.to(torch.uint8), (0, -numel % per_byte)).view(rows, -(-numel // per_byte), per_byte)
        if codes.device.type != "cpu":  # few launches
            return (groups << _shifts(per_byte, width, codes.device)).sum(-1, dtype=torch.uint8)
        packed = groups[..., 0].clone()
        for i in range(1, per_byte):  # far faster than a reduction over so short a dimension
            packed |= groups[..., i] << (i * width)
        return packed
    bits = (codes.to(torch.int64).unsqueeze(-1) >> torch.arange(width, device=codes.device)) & 1
    return pack(bits.flatten(1), 1)


def unpack(data: Tensor, width: int, numel: int) -> Tensor:
    rows = data.shape[0]
    if width == 8:
        return data[:, :numel]
    if 8 % width == 0:
        per_byte, mask = 8 // width, (1 << width) - 1
        if data.device.type != "cpu":
            shifted = data.unsqueeze(-1) >> _shifts(per_byte, width, data.device)
            return shifted.bitwise_and_(mask).flatten(1)[:, :numel]
        codes = torch.empty((*data.shape, per_byte), dtype=torch.uint8, device=data.device)
        for i in range(per_byte):
            torch.bitwise_and(data >> (i * width), mask, out=codes[..., i])
        return codes.flatten(1)[:, :numel]
    bits = unpack(data, 1, numel * width).view(rows, numel, width).to(torch.int64)
    codes = (bits << torch.arange(width, device=data.device)).sum(-1)
    return codes.to(torch.uint8) if width < 8 else codes


def _shifts(per_byte: int, width: int, device: torch.device) -> Tensor:
    return torch.arange(0, per_byte * width, width, dtype=torch.uint8, device=device)
