"""Signs in plain torch."""

from __future__ import annotations

import torch
from torch import Tensor

from gradwire.kernels import rows
from gradwire.kernels.bitpack import reference as bitpack


def encode(x: Tensor) -> Tensor:
    return bitpack.pack(x >= 0, 1)


def decode(data: Tensor, minus: Tensor, plus: Tensor, block: int, numel: int) -> Tensor:
    bits = rows.blocks(bitpack.unpack(data, 1, numel), block) != 0
    return torch.where(bits, plus.unsqueeze(2), minus.unsqueeze(2)).flatten(1)[:, :numel]


def decode_sum(data: Tensor, minus: Tensor, plus: Tensor, block: int, numel: int) -> Tensor:
    total = plus.new_zeros((1, numel))
    for i in range(data.shape[0]):
        row = slice(i, i + 1)
        total += decode(data[row], minus[row], plus[row], block, numel)
    return total


def vote(data: Tensor, ties: Tensor) -> Tensor:
    numel = 8 * data.shape[1]
    votes = bitpack.unpack(data, 1, numel).sum(0, keepdim=True, dtype=torch.int64) * 2 - data.shape[0]
    return bitpack.pack(torch.where(votes == 0, bitpack.unpack(ties, 1, numel) != 0, votes > 0), 1)
