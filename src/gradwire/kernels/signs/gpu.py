"""Signs on a GPU: gradients are read, and results written, where they lie, in one launch each.

Kernels of scaled signs read and write payloads as they travel: a scale for each block, then the bits.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from gradwire.core.random import Stream
from gradwire.core.window import Feedback, Flag, Window
from gradwire.kernels.backend import only
from gradwire.kernels.bitpack.gpu import load_codes, load_float, store_codes, store_float, words_of
from gradwire.kernels.blockwise.gpu import (
    LARGEST,
    block_tile,
    blocks_in_tile,
    columns_of,
    folded,
    folding_warps,
    warps_of,
)
from gradwire.kernels.launch import launch
from gradwire.kernels.random.gpu import keys_of, word
from gradwire.kernels.window.gpu import (
    compensated,
    divided,
    keep,
    keep_there,
    put,
    put_checked,
    take_compensated,
    tile_of,
)
from gradwire.kernels.window.places import memory_of, place_of

TILE = 2048  # elements of a program that knows no blocks
BYTES = 1024  # of a program that counts votes


class Payload(NamedTuple):
    """Rows of scaled signs as they travel."""

    data: Tensor
    stride: int
    start: int  # of the bits in a row
    size: int  # bytes of the bits
    words: int | None  # see `bitpack.gpu`


@triton.jit
def _encoded(a, live, blocks, numel, payload, row, factor, shape: tl.constexpr):
    """The mean magnitude of each block and the signs of a tile, zero where there is nothing, to a row of the payload.

    Returns what is lost.
    """
    data, stride, start, size, words = payload
    data += row.to(tl.int64) * stride
    count = tl.minimum(numel - blocks * shape[0], shape[0])
    scale = folded(tl.abs(a), shape[1], shape[2], shape[3])
    scale = tl.div_rn(scale, tl.where(count < 1, 1, count).to(tl.float32))
    store_float(data, blocks, scale, count > 0, words)
    bits = (live & (a >= 0)).to(tl.int32)
    store_codes(data + start, bits, blocks, size, words, shape[0], shape[1], shape[2], 1)
    # not by the bits: the compiler would keep a condition for each element all the time
    return a - tl.where(a < 0, (scale * -1.0 * factor)[:, None], (scale * factor)[:, None])


@triton.jit
def _values(data, start, size, words, blocks, numel, shape: tl.constexpr):
    """What a tile of a row stands for."""
    scale = load_float(data, blocks, blocks * shape[0] < numel, words)
    bits = load_codes(data + start, blocks, size, words, shape[0], shape[1], shape[2], 1)
    return tl.where(bits != 0, scale[:, None], scale[:, None] * -1.0)  # older Tritons take -x for 0 - x


@triton.jit
def _mean(payload, first, senders, blocks, numel, shape: tl.constexpr):
    """The mean of a tile over `senders` rows of a payload, first to last; None: one row as it is."""
    data, stride, start, size, words = payload
    rows: tl.constexpr = shape[1]
    columns: tl.constexpr = shape[2]
    if senders is None:
        return _values(data + first.to(tl.int64) * stride, start, size, words, blocks, numel, shape)
    else:
        data += first.to(tl.int64) * senders * stride
        total = tl.zeros((rows, columns), tl.float32)
        for _ in range(senders):
            total += _values(data, start, size, words, blocks, numel, shape)
            data += stride
        return divided(total, senders)


@triton.jit
def _encode_scaled_from(place, memory, payload, factor, shape: tl.constexpr):
    worker, shard, tile, row = tile_of(place)
    blocks, element, live = block_tile(tile, place[4], shape[0], shape[1], shape[2])
    size: tl.constexpr = shape[0] * shape[1]
    a, there = take_compensated(place, memory, worker, shard, tile, element, live, size)
    lost = _encoded(a, live, blocks, place[4], payload, row, factor, shape)
    keep_there(lost, memory, worker, there)


@triton.jit
def _reduce_and_encode(received, senders, memory, payload, numel, tiles, shape: tl.constexpr):
    group = tl.program_id(0) // tiles
    blocks, element, live = block_tile(tl.program_id(0) % tiles, numel, shape[0], shape[1], shape[2])
    mean = _mean(received, group, senders, blocks, numel, shape)
    a = compensated(tl.where(live, mean, 0.0), memory, group, element, live)
    lost = _encoded(a, live, blocks, numel, payload, group, 1.0, shape)
    keep(lost, memory, group, element, live)


@triton.jit
def _mean_to(payload, senders, place, flag, factor, shape: tl.constexpr):
    """The mean of the rows of each group, shards of one vector, to where it belongs."""
    worker, shard, tile, row = tile_of(place)
    blocks, element, live = block_tile(tile, place[4], shape[0], shape[1], shape[2])
    mean = _mean(payload, row, senders, blocks, place[4], shape)
    put_checked(mean * factor, place, worker, shard, tile, element, live, flag, shape[0] * shape[1])


@triton.jit
def _encode_or_toss_from(place, memory, noise, bits, stride, words, bad, size: tl.constexpr):
    """Signs of the compensated gradients, which are kept; by a coin for zeros. `bad` becomes true for rows that are not
    finite.
    """
    keys, offsets = noise
    worker, shard, tile, row = tile_of(place)
    blocks, element, live = block_tile(tile, place[4], size, 1, size)
    a, there = take_compensated(place, memory, worker, shard, tile, element, live, size)
    keep_there(a, memory, worker, there)
    positive = (a > 0).to(tl.int32)
    zero = live & (a == 0)
    found = tl.sum(zero.to(tl.int32) + ((a * 0 != 0).to(tl.int32) << 16))  # both numbers at once
    if (found & 0xFFFF) != 0:  # seldom, and dear
        coin_at = (shard * place[4] + element).to(tl.int64) + tl.load(offsets + worker)
        coin = (word(tl.load(keys + worker), coin_at >> 5) >> (coin_at & 31).to(tl.uint32)) & 1
        positive = tl.where(zero, coin.to(tl.int32), positive)
    to = row.to(tl.int64)
    store_codes(bits + to * stride, tl.where(live, positive, 0), blocks, (place[4] + 7) // 8, words, size, 1, size, 1)
    tl.store(bad + to, 1, mask=(found >> 16) != 0)


@triton.jit
def _decode_to(bits, stride, words, minus, plus, scales, block, place, factor, size: tl.constexpr):
    """Two-valued rows, shards of one vector, to where they belong. Without blocks, two values are those of a row."""
    worker, shard, tile, row = tile_of(place)
    to = row.to(tl.int64)
    blocks, element, live = block_tile(tile, place[4], size, 1, size)
    code = load_codes(bits + to * stride, blocks, (place[4] + 7) // 8, words, size, 1, size, 1)
    if block is None:
        high, low = tl.load(plus + to), tl.load(minus + to)
    else:
        scale = to * scales + element // block
        high, low = tl.load(plus + scale, mask=live, other=0.0), tl.load(minus + scale, mask=live, other=0.0)
    put(tl.where(code != 0, high * factor, low * factor), place, worker, shard, tile, element, live, size)


@triton.jit
def _vote(data, stride, voters, ties, ties_stride, out, numel, tiles, size: tl.constexpr):
    group = (tl.program_id(0) // tiles).to(tl.int64)
    byte = tl.program_id(0) % tiles * size + tl.arange(0, size)
    inside = byte < numel
    bit = tl.arange(0, 8)[None, :]
    votes = tl.zeros((size, 8), tl.int32)
    data += group * voters * stride
    for _ in range(voters):
        votes += (tl.load(data + byte, mask=inside, other=0).to(tl.int32)[:, None] >> bit) & 1
        data += stride
    tie = (tl.load(ties + group * ties_stride + byte, mask=inside, other=0).to(tl.int32)[:, None] >> bit) & 1
    won = tl.where(2 * votes == voters, tie, (2 * votes > voters).to(tl.int32))
    tl.store(out + group * numel + byte, tl.sum(won << bit, 1).to(tl.uint8), mask=inside)


@triton.jit
def _toss(noise, out, numel, tiles, size: tl.constexpr):
    """Bit i of word j is coin 32·j + i; none behind the last."""
    keys, offsets = noise
    row = tl.program_id(0) // tiles
    last = (numel + 7) // 8
    first = tl.program_id(0) % tiles * (size // 4) + tl.arange(0, size // 4)
    drawn = word(tl.load(keys + row), first + tl.load(offsets + row) // 32)
    byte = 4 * first[:, None] + tl.arange(0, 4)[None, :]
    coins = (drawn[:, None] >> (8 * tl.arange(0, 4)[None, :]).to(tl.uint32)) & 255
    left = tl.minimum(tl.maximum(numel - 8 * byte, 0), 8)
    coins = coins & ((1 << left) - 1).to(tl.uint32)
    tl.store(out + row.to(tl.int64) * last + byte, coins.to(tl.uint8), mask=byte < last)


def serves(block: int) -> bool:
    """Whether kernels here can treat such blocks: they fill whole bytes, and fit into a program."""
    return block % 8 == 0 and block <= LARGEST


def encode_scaled_from(
    source: Window, feedback: Feedback | None, shards: int, shard: int, block: int, factor: float, owner: str
) -> Tensor:
    device, shape, rows = source.buffer.device, _shape(block, shard), source.rows * shards
    place, payload = place_of(source, shards, shard, shape[0], shape[1]), _room(rows, block, shard, device)
    launch(
        _encode_scaled_from,
        rows * place.tiles,
        device,
        place,
        memory_of(feedback),
        payload,
        factor,
        shape=shape,
        warps=folding_warps(shape),
    )
    return payload.data


def decode_scaled_to(data: Tensor, block: int, shard: int, target: Window, factor: float) -> Flag:
    return _to(data, None, block, shard, target, factor)


def combine_scaled_to(data: Tensor, block: int, target: Window, factor: float) -> Flag:
    return _to(data, data.shape[0], block, target.numel, target, factor)


def _to(data: Tensor, senders: int | None, block: int, shard: int, target: Window, factor: float) -> Flag:
    device, shape, groups = target.buffer.device, _shape(block, shard), data.shape[0] // (senders or 1)
    place, flag = place_of(target, groups, shard, shape[0], shape[1]), torch.zeros((), device=device)
    args = _given(data, block, shard), senders, place, flag, factor
    launch(_mean_to, groups * place.tiles, device, *args, warps=warps_of(shape), shape=shape)
    return flag


def _serves_rows(data: Tensor, block: int, numel: int, *rest: object) -> bool:
    return serves(block) and 0 < numel < 2**31


@only(_serves_rows)
def reduce_and_encode(
    data: Tensor, block: int, numel: int, feedback: Feedback | None, groups: int, owner: str
) -> Tensor:
    device, shape = data.device, _shape(block, numel)
    tiles, payload = triton.cdiv(numel, shape[0] * shape[1]), _room(groups, block, numel, device)
    args = _given(data, block, numel), data.shape[0] // groups, memory_of(feedback), payload, numel, tiles
    launch(_reduce_and_encode, groups * tiles, device, *args, warps=folding_warps(shape), shape=shape)
    return payload.data


def encode_or_toss_from(
    source: Window, feedback: Feedback | None, shards: int, shard: int, stream: Stream, owner: str
) -> tuple[Tensor, Tensor]:
    device, rows, place = source.buffer.device, source.rows * shards, place_of(source, shards, shard, TILE)
    bits = torch.empty((rows, -(-shard // 8)), dtype=torch.uint8, device=device)
    bad = torch.zeros((rows, 1), dtype=torch.uint8, device=device)
    sent = bits, bits.stride(0), words_of(bits, bits.shape[1]), bad
    args = place, memory_of(feedback), keys_of(stream, source.rows, device), *sent
    launch(_encode_or_toss_from, rows * place.tiles, device, *args, size=TILE)
    return bits, bad.view(torch.bool)


def decode_to(bits: Tensor, minus: Tensor, plus: Tensor, block: int, shard: int, target: Window, factor: float) -> None:
    place = place_of(target, bits.shape[0], shard, TILE)
    values = minus.contiguous(), plus.contiguous(), plus.shape[1], None if plus.shape[1] == 1 else block
    args = bits, bits.stride(0), words_of(bits, bits.shape[1]), *values, place, factor
    launch(_decode_to, bits.shape[0] * place.tiles, target.buffer.device, *args, size=TILE)


def vote(data: Tensor, ties: Tensor, groups: int) -> Tensor:
    size = data.shape[1]
    out, tiles = torch.empty((groups, size), dtype=torch.uint8, device=data.device), triton.cdiv(size, BYTES)
    args = data, data.stride(0), data.shape[0] // groups, ties, ties.stride(0), out, size, tiles
    launch(_vote, groups * tiles, data.device, *args, size=BYTES)
    return out


def _whole_words(stream: Stream, numel: int, device: torch.device) -> bool:
    return all(offset % 128 == 0 and offset + numel < 2**38 for offset in stream.offsets)


@only(_whole_words)
def tosses(stream: Stream, numel: int, device: torch.device) -> Tensor:
    rows, size = stream.parts, -(-numel // 8)
    out, tiles = torch.empty((rows, size), dtype=torch.uint8, device=device), triton.cdiv(size, BYTES)
    launch(_toss, rows * tiles, device, keys_of(stream, rows, device), out, numel, tiles, size=BYTES)
    return out


def _room(rows: int, block: int, numel: int, device: torch.device) -> Payload:
    size = 4 * -(-numel // block) + -(-numel // 8)
    return _given(torch.empty((rows, size), dtype=torch.uint8, device=device), block, numel)


def _given(data: Tensor, block: int, numel: int) -> Payload:
    size = -(-numel // 8)
    return Payload(data, data.stride(0), 4 * -(-numel // block), size, words_of(data, size))


def _shape(block: int, numel: int) -> tuple[int, ...]:
    """What kernels are compiled for: block, rows, columns and their logarithm."""
    columns = columns_of(block)
    return block, blocks_in_tile(block, numel), columns, columns.bit_length() - 1
