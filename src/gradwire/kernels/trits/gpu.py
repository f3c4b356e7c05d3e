"""Trits on a GPU: five to a byte, the first one the most significant."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from gradwire.kernels.bitpack.gpu import bytes_at, words_of
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
def _pack(codes, codes_stride, numel, fours, data, stride, start, size, words, tiles, tile: tl.constexpr):
    row = (tl.program_id(0) // tiles).to(tl.int64)
    byte = tl.program_id(0) % tiles * tile + tl.arange(0, tile)
    codes += row * codes_stride
    if fours is None:
        packed = tl.zeros((tile,), tl.int32)
        for i in tl.static_range(5):
            element = 5 * byte + i
            packed = 3 * packed + tl.load(codes + element, mask=element < numel, other=1).to(tl.int32)
    else:
        packed = _packed_words(codes, numel, tl.program_id(0) % tiles * (tile // 4), tile)
    at, there = bytes_at(data + row * stride + start, byte, byte < size, words)
    tl.store(at, packed.to(tl.uint8), mask=there)


@triton.jit
def _packed_words(codes, numel, first, tile: tl.constexpr):
    """Bytes from 4·`first` on: four are made of five words of codes, in which they begin one byte later each."""
    place = 20 * (first + tl.arange(0, tile // 4))
    a, b, c = _four(codes, place, numel), _four(codes, place + 4, numel), _four(codes, place + 8, numel)
    d, e = _four(codes, place + 12, numel), _four(codes, place + 16, numel)
    one = _weighted(a, 81, 27, 9, 3) + (b & 255)
    two = _weighted(b, 0, 81, 27, 9) + _weighted(c, 3, 1, 0, 0)
    three = _weighted(c, 0, 0, 81, 27) + _weighted(d, 9, 3, 1, 0)
    four = _weighted(d, 0, 0, 0, 81) + _weighted(e, 27, 9, 3, 1)
    return tl.reshape(tl.join(tl.join(one, three), tl.join(two, four)), (tile,))


@triton.jit
def _four(codes, place, numel):
    """Four neighbours as the bytes of a word; 1 where there is none."""
    word = tl.load((codes + place).to(tl.pointer_type(tl.uint32)), mask=place < numel, other=0)
    live = tl.minimum(tl.maximum(numel - place, 0), 4)
    there = tl.where(live == 4, -1, (1 << (8 * (live & 3))) - 1).to(tl.uint32, bitcast=True)
    return (word & there) | (0x01010101 & ~there)


@triton.jit
def _weighted(word, a: tl.constexpr, b: tl.constexpr, c: tl.constexpr, d: tl.constexpr):
    """The sum of the bytes times these weights: the last byte of a product, to which the others carry nothing."""
    return (word * ((a << 24) + (b << 16) + (c << 8) + d)) >> 24


def pack_to(codes: Tensor, numel: int, data: Tensor, start: int) -> None:
    """`pack` of the first `numel` codes of each row, uint8, into the rows of `data` from byte `start` on."""
    size = -(-numel // 5)
    tiles = triton.cdiv(size, TILE)
    given = codes, codes.stride(0), numel, words_of(codes, codes.shape[1])
    args = *given, data, data.stride(0), start, size, words_of(data, start, size), tiles
    launch(_pack, codes.shape[0] * tiles, data.device, *args, tile=TILE)


def pack(codes: Tensor) -> Tensor:
    data = torch.empty((codes.shape[0], -(-codes.shape[1] // 5)), dtype=torch.uint8, device=codes.device)
    pack_to(codes.to(torch.uint8).contiguous(), codes.shape[1], data, 0)
    return data
