"""Index sets in plain torch, without waiting for the host."""

from __future__ import annotations

import torch
from torch import Tensor

from gradwire.kernels import rows
from gradwire.kernels.bitpack import packed_bytes
from gradwire.kernels.bitpack import reference as bitpack


def index_bytes(numel: int, count: int, coding: str) -> int:
    if coding == "bitmap":
        return packed_bytes(numel, 1)
    if coding == "packed":
        return packed_bytes(count, _width(numel))
    low, length = _split(numel, count)
    return packed_bytes(count, low) + packed_bytes(length, 1)


def encode(indices: Tensor, numel: int, coding: str) -> Tensor:
    if coding == "bitmap":
        return bitpack.pack(_marks(indices, numel), 1)
    if coding == "packed":
        return bitpack.pack(indices, _width(numel))
    low, length = _split(numel, indices.shape[1])
    upper = (indices >> low) + torch.arange(indices.shape[1], device=indices.device)
    lower = bitpack.pack(indices & ((1 << low) - 1), low) if low else indices.new_empty((indices.shape[0], 0)).byte()
    return rows.join(lower, bitpack.pack(_marks(upper, length), 1))


def decode(data: Tensor, numel: int, count: int, coding: str) -> Tensor:
    if coding == "bitmap":
        return _positions(bitpack.unpack(data, 1, numel), count)
    if coding == "packed":
        return bitpack.unpack(data, _width(numel), count).long()
    low, length = _split(numel, count)
    start = packed_bytes(count, low)
    upper = _positions(bitpack.unpack(data[:, start:], 1, length), count) - torch.arange(count, device=data.device)
    return (upper << low) + bitpack.unpack(data[:, :start], low, count) if low else upper


def _split(numel: int, count: int) -> tuple[int, int]:
    """Lower bits of an index, and the length of the string of upper parts."""
    low = max(0, (numel // max(count, 1)).bit_length() - 1)
    return low, count + ((numel - 1) >> low) if numel else 0


def _width(numel: int) -> int:
    return max(1, (numel - 1).bit_length())


def _marks(positions: Tensor, length: int) -> Tensor:
    """Ones at the positions."""
    return torch.zeros((positions.shape[0], length), dtype=torch.uint8, device=positions.device).scatter_(
        1, positions, 1
    )


def _positions(marks: Tensor, count: int) -> Tensor:
    """Where the first `count` ones of each row are."""
    ranks = marks.cumsum(1, dtype=torch.int64)
    wanted = torch.arange(1, count + 1, device=marks.device).expand(marks.shape[0], count).contiguous()
    return torch.searchsorted(ranks, wanted)
