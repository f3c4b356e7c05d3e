"""Trits on a GPU: five to a byte, the first one the most significant."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from gradwire.kernels.launch import launch

TILE = 1024  # bytes of a program


@triton.jit
def load_trits(data, element, inside):
    """The trits `element` of a row of bytes; zero outside."""
    at = element // 5
    byte = tl.load(data + at, mask=inside, other=0).to(tl.int32)
    place = element - 5 * at
    # 2¹⁴ over the weight, rounded up: products with bytes, cut, are quotients
    inverse = tl.where(place == 0, 203, tl.where(place == 1, 607, tl.where(place == 2, 1821, 5462)))
    left = (byte * tl.where(place == 4, 16384, inverse)) >> 14
    return left - 3 * ((left * 171) >> 9)


@triton.jit
def _pack(codes, numel, data, stride, start, size, tiles, tile: tl.constexpr):
    row = (tl.program_id(0) // tiles).to(tl.int64)
    byte = tl.program_id(0) % tiles * tile + tl.arange(0, tile)
    packed = tl.zeros((tile,), tl.int32)
    for i in tl.static_range(5):
        element = 5 * byte + i
        packed = 3 * packed + tl.load(codes + row * numel + element, mask=element < numel, other=1).to(tl.int32)
    tl.store(data + row * stride + start + byte, packed.to(tl.uint8), mask=byte < size)


def pack_to(codes: Tensor, data: Tensor, start: int) -> None:
    """`pack` of (rows, numel) codes, uint8, into the rows of `data` from byte `start` on."""
    rows, numel = codes.shape
    size = -(-numel // 5)
    tiles = triton.cdiv(size, TILE)
    launch(_pack, rows * tiles, data.device, codes, numel, data, data.stride(0), start, size, tiles, tile=TILE)


def pack(codes: Tensor) -> Tensor:
    data = torch.empty((codes.shape[0], -(-codes.shape[1] // 5)), dtype=torch.uint8, device=codes.device)
    pack_to(codes.to(torch.uint8).contiguous(), data, 0)
    return data
