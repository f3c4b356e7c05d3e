"""Index sets in plain torch, without waiting for the host."""

from __future__ import annotations

import torch
from torch import Tensor

from gradwire.kernels import rows
from gradwire.kernels.bitpack import packed_bytes
from gradwire.kernels.bitpack import reference as bitpack

BLOCK = 1 << 16


def index_bytes(numel: int, count: int, coding: str) -> int:
    if coding == "bitmap":
        return packed_bytes(numel, 1)
    if coding == "packed":
        return packed_bytes(count, index_width(numel))
    if coding == "blocks":
        return 4 * block_count(numel) + 2 * count
    low, length = parts(numel, count)
    return packed_bytes(count, low) + packed_bytes(length, 1)


def encode(indices: Tensor, numel: int, coding: str) -> Tensor:
    if coding == "bitmap":
        return bitpack.pack(_marks(indices, numel), 1)
    if coding == "packed":
        return bitpack.pack(indices, index_width(numel))
    if coding == "blocks":
        return rows.join(block_counts(indices, numel), indices.to(torch.int16))
    low, length = parts(numel, indices.shape[1])
    upper = (indices >> low) + torch.arange(indices.shape[1], device=indices.device)
    lower = bitpack.pack(indices & ((1 << low) - 1), low) if low else indices.new_empty((indices.shape[0], 0)).byte()
    return rows.join(lower, bitpack.pack(_marks(upper, length), 1))


def decode(data: Tensor, numel: int, count: int, coding: str) -> Tensor:
    if coding == "bitmap":
        return _positions(bitpack.unpack(data, 1, numel), count)
    if coding == "packed":
        return bitpack.unpack(data, index_width(numel), count).long()
    if coding == "blocks":
        counts, start = rows.take(data, 0, block_count(numel), torch.int32)
        offsets, _ = rows.take(data, start, count, torch.int16)
        block = torch.searchsorted(counts.cumsum(1), _ranks(offsets), right=True)
        return block * BLOCK + (offsets.long() & (BLOCK - 1))
    low, length = parts(numel, count)
    start = packed_bytes(count, low)
    upper = _positions(bitpack.unpack(data[:, start:], 1, length), count) - torch.arange(count, device=data.device)
    return (upper << low) + bitpack.unpack(data[:, :start], low, count) if low else upper


def index_width(numel: int) -> int:
    """Bits of one index."""
    return max(1, (numel - 1).bit_length())


def parts(numel: int, count: int) -> tuple[int, int]:
    """Elias-Fano: lower bits of an index, and the length of the string of upper parts."""
    low = max(0, (numel // max(count, 1)).bit_length() - 1)
    return low, count + ((numel - 1) >> low) if numel else 0


def block_count(numel: int) -> int:
    return -(-numel // BLOCK)


def block_counts(indices: Tensor, numel: int) -> Tensor:
    """How many indices each block has: (rows, blocks) int32."""
    edges = torch.arange(block_count(numel) + 1, device=indices.device) * BLOCK
    edges = edges.expand(indices.shape[0], -1).contiguous()
    return torch.searchsorted(indices.contiguous(), edges).diff(dim=1).to(torch.int32)


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


def _ranks(like: Tensor) -> Tensor:
    return torch.arange(like.shape[1], device=like.device).expand(like.shape).contiguous()
