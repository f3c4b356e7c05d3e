"""Random rounding to powers of two on a GPU, in one launch each way. A program treats a tile of neighbours.

Payloads are as they travel: a byte an element and, of 9 bits, the signs. They are read and written row by row.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from gradwire.core.random import Stream
from gradwire.core.window import Feedback, Flag, Window
from gradwire.kernels.bitpack.gpu import bytes_at, load_codes, store_codes
from gradwire.kernels.blockwise.gpu import block_tile
from gradwire.kernels.fused import Rows, rows_of
from gradwire.kernels.launch import launch
from gradwire.kernels.powers import reference
from gradwire.kernels.random.gpu import keys_of, quick_word
from gradwire.kernels.window.gpu import compensated, divided, keep, position_of, put_checked, take, tile_of
from gradwire.kernels.window.places import memory_of, place_of

TILE = 1024  # elements of a program
MANTISSA = tl.constexpr(reference.MANTISSA)
INFINITE = tl.constexpr(reference.INFINITE)
NAN = tl.constexpr(reference.NAN)
LOWEST = tl.constexpr(reference.LOWEST)
BELOW = tl.constexpr(reference.LOWEST << reference.MANTISSA)  # what 8 bits take off
LEAST = tl.constexpr(1 << reference.MANTISSA)  # of what is left


@triton.jit
def _value(code, negative, bits: tl.constexpr):
    """What a code, less its sign, stands for."""
    if bits == 9:
        magnitude = tl.where(code < 255, code << MANTISSA, NAN)
    else:
        magnitude = tl.where(code < 127, tl.where(code > 0, code + LOWEST, 0) << MANTISSA, NAN)
    return (magnitude | (negative << 31)).to(tl.float32, bitcast=True)


@triton.jit
def _encoded(a, live, blocks, element, numel, noise, worker, position, out, row, factor, shape: tl.constexpr):
    """The tile `a`, rounded, to a row of the payload; returns what is lost."""
    size: tl.constexpr = shape[0]
    keys, offsets = noise
    data, words = out[0] + row.to(tl.int64) * out[1], out[3]
    at, there = bytes_at(data, element, live, words)
    pattern = a.to(tl.int32, bitcast=True)
    magnitude, negative = pattern & 0x7FFFFFFF, (pattern < 0).to(tl.int32)
    word = quick_word(tl.load(keys + worker), position.to(tl.int64) + tl.load(offsets + worker))
    drawn = (word >> (32 - MANTISSA)).to(tl.int32)
    if shape[1] == 9:
        code = tl.minimum((magnitude + drawn) >> MANTISSA, 254)
        code = tl.where(magnitude < INFINITE, code, 255)
        tl.store(at, code.to(tl.uint8), mask=there)
        signs = tl.where(live, negative, 0)
        store_codes(data + numel, signs, blocks, (numel + 7) // 8, words, size, 1, size, 1)
    else:
        shifted = magnitude - BELOW
        code = tl.minimum((shifted + drawn) >> MANTISSA, 126)
        code = tl.where(shifted < LEAST, 0, code)
        code = tl.where(magnitude < INFINITE, code, 127)
        tl.store(at, (code + 128 * negative).to(tl.uint8), mask=there)
    return a - _value(code, negative, shape[1]) * factor


@triton.jit
def _row(data, words, blocks, element, live, numel, shape: tl.constexpr):
    """The values of a tile of a row."""
    size: tl.constexpr = shape[0]
    at, there = bytes_at(data, element, live, words)
    code = tl.load(at, mask=there, other=0).to(tl.int32)
    if shape[1] == 9:
        negative = load_codes(data + numel, blocks, (numel + 7) // 8, words, size, 1, size, 1)
        return _value(code, negative, 9)
    else:
        return _value(code & 127, code >> 7, 8)


@triton.jit
def _mean(received, group, blocks, element, live, numel, shape: tl.constexpr):
    """The mean of a tile over the rows of a group, first to last; or a row as it is."""
    data, stride, senders, words = received
    if senders is None:
        data += group.to(tl.int64) * stride
        return _row(data, words, blocks, element, live, numel, shape)
    else:
        data += group.to(tl.int64) * senders * stride
        total = tl.zeros_like(element).to(tl.float32)
        for _ in range(senders):
            total += _row(data, words, blocks, element, live, numel, shape)
            data += stride
        return divided(total, senders)


@triton.jit
def _encode_from(place, memory, noise, out, factor, shape: tl.constexpr):
    worker, shard, tile, row = tile_of(place)
    blocks, element, live = block_tile(tile, place[4], shape[0], 1, shape[0])
    a, inside = take(place, worker, shard, tile, element, live, shape[0])
    position = position_of(place, shard, element)
    a = compensated(a, memory, worker, position, inside)
    lost = _encoded(a, live, blocks, element, place[4], noise, worker, position, out, row, factor, shape)
    keep(lost, memory, worker, position, inside)


@triton.jit
def _reduce_and_encode(received, memory, noise, out, numel, tiles, factor, shape: tl.constexpr):
    group = tl.program_id(0) // tiles
    blocks, element, live = block_tile(tl.program_id(0) % tiles, numel, shape[0], 1, shape[0])
    mean = _mean(received, group, blocks, element, live, numel, shape)
    a = compensated(mean * factor, memory, group, element, live)
    lost = _encoded(a, live, blocks, element, numel, noise, group, element, out, group, factor, shape)
    keep(lost, memory, group, element, live)


@triton.jit
def _mean_to(received, place, flag, factor, shape: tl.constexpr):
    """The means of the groups, shards of one vector, to where they belong."""
    worker, shard, tile, row = tile_of(place)
    blocks, element, live = block_tile(tile, place[4], shape[0], 1, shape[0])
    mean = _mean(received, row, blocks, element, live, place[4], shape)
    put_checked(mean * factor, place, worker, shard, tile, element, live, flag, shape[0])


def serves(bits: int) -> bool:
    return True


def encode_from(
    bits: int, source: Window, feedback: Feedback | None, shards: int, shard: int, noise: Stream, factor: float
) -> Tensor:
    device, rows = source.buffer.device, source.rows * shards
    place, data = place_of(source, shards, shard, TILE), _room(bits, rows, shard, device)
    args = place, memory_of(feedback), keys_of(noise, source.rows, device), _rows(data, None, bits, shard), factor
    launch(_encode_from, rows * place.tiles, device, *args, shape=(TILE, bits))
    return data


def mean_to(bits: int, data: Tensor, senders: int | None, shard: int, target: Window, factor: float) -> Flag:
    device, groups = target.buffer.device, data.shape[0] // (senders or 1)
    place, flag = place_of(target, groups, shard, TILE), torch.zeros((), device=device)
    args = _rows(data, senders, bits, shard), place, flag, factor
    launch(_mean_to, groups * place.tiles, device, *args, shape=(TILE, bits))
    return flag


def reduce_and_encode(
    bits: int, data: Tensor, numel: int, feedback: Feedback | None, noise: Stream, groups: int, factor: float
) -> Tensor:
    device, tiles, out = data.device, triton.cdiv(numel, TILE), _room(bits, groups, numel, data.device)
    memory, keys = memory_of(feedback), keys_of(noise, groups, device)
    args = (
        _rows(data, data.shape[0] // groups, bits, numel),
        memory,
        keys,
        _rows(out, None, bits, numel),
        numel,
        tiles,
        factor,
    )
    launch(_reduce_and_encode, groups * tiles, device, *args, shape=(TILE, bits))
    return out


def _rows(data: Tensor, senders: int | None, bits: int, numel: int) -> Rows:
    return rows_of(data, senders, numel, *([-(-numel // 8)] if bits == 9 else []))


def _room(bits: int, rows: int, numel: int, device: torch.device) -> Tensor:
    size = numel + (-(-numel // 8) if bits == 9 else 0)
    return torch.empty((rows, size), dtype=torch.uint8, device=device)
