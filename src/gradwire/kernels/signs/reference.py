"""Signs in plain torch."""

from __future__ import annotations

import torch
from torch import Tensor

from gradwire.core.random import Stream
from gradwire.kernels import rows
from gradwire.kernels.bitpack import reference as bitpack
from gradwire.kernels.blockwise import reference as blockwise
from gradwire.kernels.random.reference import coins


def encode(x: Tensor) -> Tensor:
    return bitpack.pack(x >= 0, 1)


def encode_or_toss(x: Tensor, stream: Stream) -> tuple[Tensor, Tensor]:
    bits = torch.where(x == 0, coins(stream, x.shape, x.device), x > 0)
    bad = (x * 0 != 0).any(1, keepdim=True)
    return bitpack.pack(bits, 1), bad


def tosses(stream: Stream, numel: int, device: torch.device) -> Tensor:
    return bitpack.pack(coins(stream, (1, numel), device), 1)


def encode_scaled(x: Tensor, block: int, keep_own: bool) -> tuple[Tensor, Tensor, Tensor | None]:
    numel = x.shape[1]
    lengths = (numel - torch.arange(0, numel, block, device=x.device)).clamp(max=block)
    scales, bits = blockwise.abs_sum(x, block) / lengths, encode(x)
    return scales, bits, decode(bits, -scales, scales, block, numel) if keep_own else None


def decode(data: Tensor, minus: Tensor, plus: Tensor, block: int, numel: int) -> Tensor:
    bits = rows.blocks(bitpack.unpack(data, 1, numel), block) != 0
    return torch.where(bits, plus.unsqueeze(2), minus.unsqueeze(2)).flatten(1)[:, :numel]


def decode_sum(data: Tensor, minus: Tensor, plus: Tensor, block: int, numel: int) -> Tensor:
    return rows.added(decode(data, minus, plus, block, numel))


def reduce_and_encode(
    data: Tensor, minus: Tensor, plus: Tensor, block: int, numel: int, carry: Tensor | None, keep_lost: bool
) -> tuple[Tensor, Tensor, Tensor | None]:
    mean = decode_sum(data, minus, plus, block, numel) / data.shape[0]
    if carry is not None:
        mean += carry
    scales, bits, own = encode_scaled(mean, block, keep_lost)
    return bits, scales, None if own is None else mean - own


def vote(data: Tensor, ties: Tensor) -> Tensor:
    numel = 8 * data.shape[1]
    votes = bitpack.unpack(data, 1, numel).sum(0, keepdim=True, dtype=torch.int64) * 2 - data.shape[0]
    return bitpack.pack(torch.where(votes == 0, bitpack.unpack(ties, 1, numel) != 0, votes > 0), 1)
