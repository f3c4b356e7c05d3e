"""Signs in plain torch."""

from __future__ import annotations

import torch
from torch import Tensor

from gradwire.core.random import Stream
from gradwire.core.window import Feedback, Window
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
    return bitpack.pack(coins(stream, (stream.parts, numel), device), 1)


def encode_scaled(x: Tensor, block: int, keep_own: bool) -> tuple[Tensor, Tensor, Tensor | None]:
    numel = x.shape[1]
    lengths = (numel - torch.arange(0, numel, block, device=x.device)).clamp(max=block)
    scales, bits = blockwise.abs_sum(x, block) / lengths, encode(x)
    return scales, bits, decode(bits, -scales, scales, block, numel) if keep_own else None


def decode(data: Tensor, minus: Tensor, plus: Tensor, block: int, numel: int) -> Tensor:
    bits = rows.blocks(bitpack.unpack(data, 1, numel), block) != 0
    return torch.where(bits, plus.unsqueeze(2), minus.unsqueeze(2)).flatten(1)[:, :numel]


def decode_sum(data: Tensor, minus: Tensor, plus: Tensor, block: int, numel: int, groups: int) -> Tensor:
    return rows.added(decode(data, minus, plus, block, numel), groups)


def split(data: Tensor, block: int, numel: int) -> tuple[Tensor, Tensor]:
    scales, start = rows.take(data, 0, -(-numel // block), torch.float32)
    return scales, data[:, start:]


def reduce_and_encode(
    data: Tensor, block: int, numel: int, feedback: Feedback | None, groups: int, owner: str
) -> Tensor:
    worth, received = split(data, block, numel)
    total = decode_sum(received, -worth, worth, block, numel, groups)
    mean = rows.divided(total, data.shape[0] // groups)
    if feedback is not None:
        mean = feedback.compensated(Window.whole(mean))
    scales, bits, own = encode_scaled(mean, block, feedback is not None)
    if feedback is not None and own is not None:
        feedback.keep(own)
    return rows.join(scales, bits, owner=owner)


def vote(data: Tensor, ties: Tensor, groups: int) -> Tensor:
    numel, voters = 8 * data.shape[1], data.shape[0] // groups
    votes = bitpack.unpack(data, 1, numel).view(groups, voters, numel).sum(1, dtype=torch.int64) * 2 - voters
    return bitpack.pack(torch.where(votes == 0, bitpack.unpack(ties, 1, numel) != 0, votes > 0), 1)
