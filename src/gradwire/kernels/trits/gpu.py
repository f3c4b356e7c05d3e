"""Trits on a GPU: five to a byte, the first one the most significant."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from gradwire.kernels.launch import launch

TILE = 1024  # bytes of a program


@triton.jit
def load_trits(data, blocks, limit, block: tl.constexpr, rows: tl.constexpr, columns: tl.constexpr):
    """The (rows, columns) trits of the blocks `blocks`, of which the first `block` columns count.

    Four neighbours come from ten trits of two bytes. Behind `limit` bytes there is nothing.
    """
    element = blocks[:, None] * block + 4 * tl.arange(0, columns // 4)[None, :]
    at = element // 5
    place = element - 5 * at
    first = tl.load(data + at, mask=at < limit, other=0).to(tl.int32)
    ten = 243 * first + tl.load(data + at + 1, mask=at + 1 < limit, other=0).to(tl.int32)
    weight = tl.where(place == 4, 81, (0x1B090301 >> (8 * place)) & 255)  # 3 to the power of the place
    four = (ten * weight) // 729 % 81
    return _digits(_digits(four, 9, rows, columns // 2), 3, rows, columns)


@triton.jit
def _digits(x, base: tl.constexpr, rows: tl.constexpr, columns: tl.constexpr):
    """The two digits of each number, side by side; numbers are below 81."""
    high = (x * (512 // base + 1)) >> 9  # the quotient: the factor is hardly too large
    return tl.reshape(tl.join(high, x - base * high), (rows, columns))


@triton.jit
def _pack(codes, codes_stride, numel, data, stride, start, size, tiles, tile: tl.constexpr):
    row = (tl.program_id(0) // tiles).to(tl.int64)
    byte = tl.program_id(0) % tiles * tile + tl.arange(0, tile)
    packed = tl.zeros((tile,), tl.int32)
    for i in tl.static_range(5):
        element = 5 * byte + i
        packed = 3 * packed + tl.load(codes + row * codes_stride + element, mask=element < numel, other=1).to(tl.int32)
    tl.store(data + row * stride + start + byte, packed.to(tl.uint8), mask=byte < size)


def pack_to(codes: Tensor, numel: int, data: Tensor, start: int) -> None:
    """`pack` of the first `numel` codes of each row, uint8, into the rows of `data` from byte `start` on."""
    size = -(-numel // 5)
    tiles = triton.cdiv(size, TILE)
    args = codes, codes.stride(0), numel, data, data.stride(0), start, size, tiles
    launch(_pack, codes.shape[0] * tiles, data.device, *args, tile=TILE)


def pack(codes: Tensor) -> Tensor:
    data = torch.empty((codes.shape[0], -(-codes.shape[1] // 5)), dtype=torch.uint8, device=codes.device)
    pack_to(codes.to(torch.uint8).contiguous(), codes.shape[1], data, 0)
    return data
