"""Fields in plain torch."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


def pack(codes: Tensor, width: int) -> Tensor:
    (rows, numel), count = codes.shape, 32 // width
    groups = F.pad(codes.to(torch.int32), (0, -numel % count)).view(rows, -(-numel // count), count)
    words = groups[..., 0].clone()
    for i in range(1, count):
        words |= groups[..., i] << (i * width)
    return words


def unpack(words: Tensor, width: int, numel: int) -> Tensor:
    shifts = torch.arange(32 // width, device=words.device) * width
    codes = ((words.long() & 0xFFFFFFFF).unsqueeze(2) >> shifts) & ((1 << width) - 1)
    return codes.flatten(1)[:, :numel]
