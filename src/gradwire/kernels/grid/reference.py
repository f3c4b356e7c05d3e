"""The uniform quantiser in plain torch."""

from __future__ import annotations

import torch
from torch import Tensor

from gradwire.core.random import Stream
from gradwire.kernels import rows
from gradwire.kernels.bitpack import reference as bitpack
from gradwire.kernels.blockwise import reference as blockwise
from gradwire.kernels.random.reference import halves

SMALLEST = 2.0**-126  # step: its inverse must be finite, and smaller ones are flushed to zero on some devices


def code_width(low: int, high: int) -> int:
    return max(1, (low + high).bit_length())


def usable(scales: Tensor, high: int) -> Tensor:
    return scales.clamp(min=high * SMALLEST)


def encode(x: Tensor, inverse: Tensor, block: int, low: int, high: int, noise: Stream | None) -> Tensor:
    y = _by_block(x, inverse, block)
    u = 0.5 if noise is None else halves(noise, x.shape, x.device)
    codes = (y.abs() + u).floor_().copysign_(y).clamp_(-low, high).add_(low).nan_to_num_(0)
    return bitpack.pack(codes.to(torch.int32), code_width(low, high))


def encode_own(
    x: Tensor, inverse: Tensor, step: Tensor, block: int, low: int, high: int, noise: Stream | None
) -> tuple[Tensor, Tensor]:
    packed = encode(x, inverse, block, low, high, noise)
    return packed, decode(packed, step, block, low, high, x.shape[1])


def decode(data: Tensor, step: Tensor, block: int, low: int, high: int, numel: int) -> Tensor:
    codes = bitpack.unpack(data, code_width(low, high), numel)
    return _by_block(codes.float().sub_(low), step, block)


def decode_sum(data: Tensor, step: Tensor, block: int, low: int, high: int, numel: int) -> Tensor:
    return rows.added(decode(data, step, block, low, high, numel))


def reduce_and_encode(
    data: Tensor,
    step: Tensor,
    block: int,
    low: int,
    high: int,
    numel: int,
    carry: Tensor | None,
    noise: Stream | None,
    keep_lost: bool,
) -> tuple[Tensor, Tensor, Tensor | None]:
    mean = decode_sum(data, step, block, low, high, numel) / data.shape[0]
    if carry is not None:
        mean += carry
    scales = usable(blockwise.abs_max(mean, block), high)
    packed, own = encode_own(mean, scales.reciprocal() * high, scales / high, block, low, high, noise)
    return packed, scales, mean - own if keep_lost else None


def _by_block(x: Tensor, factors: Tensor, block: int) -> Tensor:
    """Every element times its block's factor."""
    return (rows.blocks(x, block) * factors.unsqueeze(2)).flatten(1)[:, : x.shape[1]]
