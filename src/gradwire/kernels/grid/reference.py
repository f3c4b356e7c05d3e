"""The uniform quantiser in plain torch."""

from __future__ import annotations

import torch
from torch import Tensor

from gradwire.core.random import Stream
from gradwire.kernels import rows
from gradwire.kernels.bitpack import reference as bitpack
from gradwire.kernels.random import halves


def encode(x: Tensor, inverse: Tensor, block: int, low: int, high: int, noise: Stream | None) -> Tensor:
    y = _by_block(x, inverse, block)
    u = 0.5 if noise is None else halves(noise, x.shape, x.device)
    codes = (y.abs() + u).floor_().copysign_(y).clamp_(-low, high).add_(low).nan_to_num_(0)
    return bitpack.pack(codes.to(torch.int32), max(1, (low + high).bit_length()))


def decode(data: Tensor, step: Tensor, block: int, low: int, high: int, numel: int) -> Tensor:
    codes = bitpack.unpack(data, max(1, (low + high).bit_length()), numel)
    return _by_block(codes.float().sub_(low), step, block)


def decode_sum(data: Tensor, step: Tensor, block: int, low: int, high: int, numel: int) -> Tensor:
    total = step.new_zeros((1, numel))
    for i in range(data.shape[0]):
        total += decode(data[i : i + 1], step[i : i + 1], block, low, high, numel)
    return total


def _by_block(x: Tensor, factors: Tensor, block: int) -> Tensor:
    """Every element times its block's factor."""
    return (rows.blocks(x, block) * factors.unsqueeze(2)).flatten(1)[:, : x.shape[1]]
