"""Trits in plain torch."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

_WEIGHTS = (81, 27, 9, 3, 1)


def pack(codes: Tensor) -> Tensor:
    rows, numel = codes.shape
    groups = F.pad(codes.to(torch.uint8), (0, -numel % 5), value=1).view(rows, -(-numel // 5), 5)
    packed = groups[..., 4].clone()
    for i, weight in enumerate(_WEIGHTS[:4]):
        packed += groups[..., i] * weight
    return packed


def unpack(data: Tensor, numel: int) -> Tensor:
    codes = torch.stack([data // weight % 3 for weight in _WEIGHTS], dim=2)
    return codes.flatten(1)[:, :numel]
