"""Signs, compiled."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from gradwire.core.random import Stream
from gradwire.core.window import Feedback, Window
from gradwire.kernels.bitpack.cpu import TILE, array, flat, pack, pack_codes, unit, unpack_codes
from gradwire.kernels.blockwise.cpu import fold_room, folded
from gradwire.kernels.jit import jit
from gradwire.kernels.parallel import split_rows
from gradwire.kernels.random.cpu import GROUP, coins, draw, draw_words
from gradwire.kernels.window.cpu import Memory, Spans, each_worker, load
from gradwire.kernels.workspace import room

LARGEST = np.finfo(np.float32).max


@jit
def _pack_signs(x: np.ndarray, bits: np.ndarray, out: np.ndarray) -> None:
    for start in range(0, x.size, TILE):
        part = x[start : start + TILE]
        for i in range(part.size):
            bits[i] = np.uint8(part[i] >= 0)
        pack_codes(bits[: part.size], 1, out[start // 8 :])


@jit
def _choose(bits: np.ndarray, minus: np.ndarray, plus: np.ndarray, start: int, block: int, out: np.ndarray) -> None:
    """The values of the bits of elements from `start` on of a row."""
    at = 0
    while at < bits.size:
        i = (start + at) // block
        part = slice(at, min((i + 1) * block - start, bits.size))
        b, y, low, high = bits[part], out[part], minus[i], plus[i]
        for j in range(b.size):
            y[j] = high if b[j] else low
        at = part.stop


@jit
def _add_rows(
    data: np.ndarray,
    stride: int,
    minus: np.ndarray,
    plus: np.ndarray,
    start: int,
    block: int,
    bits: np.ndarray,
    out: np.ndarray,
) -> None:
    """The sum over the rows of the values from element `start` on."""
    for j in range(out.size):
        out[j] = np.float32(0)
    for row in range(plus.shape[0]):
        unpack_codes(data[row * stride + start // 8 :], 1, bits[: out.size])
        at = 0
        while at < out.size:
            i = (start + at) // block
            part = slice(at, min((i + 1) * block - start, out.size))
            b, y, low, high = bits[part], out[part], minus[row, i], plus[row, i]
            for j in range(b.size):
                y[j] += high if b[j] else low
            at = part.stop


@jit
def _encode(x: np.ndarray, stride: int, numel: int, out: np.ndarray, bits: np.ndarray, first: int, last: int) -> None:
    tiles = (numel + TILE - 1) // TILE
    for tile in range(first, last):
        row, start = tile // tiles, tile % tiles * TILE
        _pack_signs(x[row * stride + start : row * stride + min(start + TILE, numel)], bits, out[row, start // 8 :])


@jit
def _toss(a: np.ndarray, key: Any, coin: int, bits: np.ndarray, words: np.ndarray) -> Any:
    """Bit 1 where a > 0, its coin where a is zero; returns how many are not finite. `coin` is the first one's."""
    zeros = wrong = np.int32(0)
    for i in range(a.size):
        bits[i] = np.uint8(a[i] > 0)
        zeros += np.int32(a[i] == 0)
        wrong += np.int32(not (abs(a[i]) <= LARGEST))
    if zeros:
        skip = draw(key, coin // 32, (coin % 32 + a.size + 31) // 32, words)
        for i in range(a.size):
            if a[i] == 0:
                at = coin % 32 + i
                bits[i] = np.uint8((words[skip + at // 32] >> np.uint32(at % 32)) & np.uint32(1))
    return wrong


@jit
def _encode_or_toss(
    x: np.ndarray,
    spans: Spans,
    memory: Memory,
    shard: int,
    key: Any,
    first_coin: int,
    packed: np.ndarray,
    bad: np.ndarray,
    first: int,
    last: int,
) -> None:
    """One read of the numbers; coins are drawn for the tiles that have a zero, and `bad` counts per tile."""
    tiles = (shard + TILE - 1) // TILE
    bits, words = np.empty(TILE, np.uint8), np.empty(TILE // 32 + 2 + 2 * GROUP, np.uint32)
    room = np.empty(TILE, np.float32)
    for tile in range(first, last):
        row, start = tile // tiles, tile % tiles * TILE
        a = room[: min(TILE, shard - start)]
        load(x, spans, memory, row * shard + start, a)
        bad[row, tile % tiles] = _toss(a, key, first_coin + row * shard + start, bits, words)
        pack_codes(bits[: a.size], 1, packed[row, start // 8 :])


@jit
def _decode(
    data: np.ndarray,
    stride: int,
    minus: np.ndarray,
    plus: np.ndarray,
    block: int,
    out: np.ndarray,
    bits: np.ndarray,
    first: int,
    last: int,
) -> None:
    numel = out.shape[1]
    tiles = (numel + TILE - 1) // TILE
    for tile in range(first, last):
        row, start = tile // tiles, tile % tiles * TILE
        part = out[row, start : min(start + TILE, numel)]
        unpack_codes(data[row * stride + start // 8 :], 1, bits[: part.size])
        _choose(bits[: part.size], minus[row], plus[row], start, block, part)


@jit
def _decode_sum(
    data: np.ndarray,
    stride: int,
    minus: np.ndarray,
    plus: np.ndarray,
    block: int,
    out: np.ndarray,
    bits: np.ndarray,
    first: int,
    last: int,
) -> None:
    for tile in range(first, last):
        start = tile * TILE
        _add_rows(data, stride, minus, plus, start, block, bits, out[start : start + TILE])


@jit
def _scale(x: np.ndarray, block: int, room: np.ndarray, scales: np.ndarray) -> None:
    """The mean magnitude of each block."""
    for i in range(scales.size):
        part = x[i * block : (i + 1) * block]
        scales[i] = folded(part, 1, room) / np.float32(part.size)


@jit
def _encode_scaled(
    x: np.ndarray,
    stride: int,
    numel: int,
    block: int,
    scales: np.ndarray,
    out: np.ndarray,
    own: np.ndarray,
    size: int,
    first: int,
    last: int,
) -> None:
    """`size` elements at a time: whole blocks, and whole bytes."""
    parts = (numel + size - 1) // size
    bits, room = np.empty(TILE, np.uint8), fold_room(min(block, numel))
    for i in range(first, last):
        row, start = i // parts, i % parts * size
        part = x[row * stride + start : row * stride + min(start + size, numel)]
        scale = scales[row, start // block : (start + part.size + block - 1) // block]
        _scale(part, block, room, scale)
        _pack_signs(part, bits, out[row, start // 8 :])
        if own.size:
            mine = own[row, start : start + part.size]
            for j in range(scale.size):
                run, y, high = part[j * block : (j + 1) * block], mine[j * block : (j + 1) * block], scale[j]
                for k in range(run.size):
                    y[k] = high if run[k] >= 0 else -high


@jit
def _vote(
    data: np.ndarray,
    stride: int,
    rows: int,
    ties: np.ndarray,
    out: np.ndarray,
    planes: np.ndarray,
    first: int,
    last: int,
) -> None:
    """Counts in binary, digit k of all counts in plane k; the last plane holds what is carried, then who has half."""
    tile, digits = planes.shape[1], planes.shape[0] - 1
    for start in range(first * tile, min(last * tile, out.size), tile):
        won, tie = out[start : start + tile], ties[start : start + tile]
        carried = planes[-1, : won.size]
        for k in range(digits):
            for i in range(won.size):
                planes[k, i] = 0
        for row in range(rows):
            source = data[row * stride + start : row * stride + start + won.size]
            for i in range(won.size):
                carried[i] = source[i]
            for k in range(digits):
                digit = planes[k, : won.size]
                for i in range(won.size):
                    both = digit[i] & carried[i]
                    digit[i] ^= carried[i]
                    carried[i] = both
        for i in range(won.size):
            won[i], carried[i] = 0, 255
        for k in range(digits - 1, -1, -1):
            digit, half = planes[k, : won.size], np.uint8(255 * (rows // 2 >> k & 1))
            for i in range(won.size):
                won[i] |= carried[i] & digit[i] & ~half
                carried[i] &= ~(digit[i] ^ half)
        if rows % 2 == 0:
            for i in range(won.size):
                won[i] |= carried[i] & tie[i]


def encode(x: Tensor) -> Tensor:
    rows, numel = x.shape
    out = torch.empty((rows, -(-numel // 8)), dtype=torch.uint8)
    common = *flat(x), numel, out.numpy()
    split_rows(lambda first, last: _encode(*common, _bits(), first, last), rows, numel, TILE)
    return out


def encode_or_toss(x: Tensor, stream: Stream) -> tuple[Tensor, Tensor]:
    rows, numel = x.shape
    flat_rows = Window.whole(x.reshape(stream.parts, -1))
    return encode_or_toss_from(flat_rows, None, rows // stream.parts, numel, stream, "")


def encode_or_toss_from(
    source: Window, feedback: Feedback | None, shards: int, shard: int, stream: Stream, owner: str
) -> tuple[Tensor, Tensor]:
    rows = source.rows * shards
    shape = (rows, -(-shard // 8))
    packed = room(owner, "signs", shape, torch.uint8) if owner else torch.empty(shape, dtype=torch.uint8)
    bad = torch.zeros((rows, max(1, -(-shard // TILE))), dtype=torch.int32)

    def work(row: int, x: Any, spans: Any, memory: Any, out: Any) -> Any:
        mine = slice(row * shards, (row + 1) * shards)
        drawn = np.uint64(stream.keys[row]), stream.offsets[row]
        common = x, spans, memory, shard, *drawn, packed[mine].numpy(), bad[mine].numpy()
        return lambda first, last: _encode_or_toss(*common, first, last)

    each_worker(source, feedback, shards, shard, TILE, work)
    return packed, bad.any(1, keepdim=True)


def tosses(stream: Stream, numel: int, device: torch.device) -> Tensor:
    if any(offset % 32 for offset in stream.offsets):
        return pack(coins(stream, (stream.parts, numel), device), 1)
    words = torch.empty((stream.parts, -(-numel // 32)), dtype=torch.int32)
    for row, key, offset in zip(words, stream.keys, stream.offsets, strict=True):
        draw_words(np.uint64(key), offset // 32, row.numpy().view(np.uint32))
    packed = words.view(torch.uint8)[:, : -(-numel // 8)]  # bit i of word w is coin 32 w + i, as in `bitpack`
    if numel % 8:
        packed[:, -1] &= (1 << numel % 8) - 1
    return packed


def encode_scaled(x: Tensor, block: int, keep_own: bool) -> tuple[Tensor, Tensor, Tensor | None]:
    rows, numel = x.shape
    scales = torch.empty((rows, -(-numel // block)), dtype=torch.float32)
    out = torch.empty((rows, -(-numel // 8)), dtype=torch.uint8)
    own = torch.empty((rows, numel if keep_own else 0), dtype=torch.float32)
    common, size = (*flat(x), numel, block, scales.numpy(), out.numpy(), own.numpy()), unit(block, numel)
    split_rows(lambda first, last: _encode_scaled(*common, size, first, last), rows, numel, size)
    return scales, out, own if keep_own else None


def decode(data: Tensor, minus: Tensor, plus: Tensor, block: int, numel: int) -> Tensor:
    out = torch.empty((data.shape[0], numel), dtype=torch.float32)
    common = *flat(data), array(minus), array(plus), block, out.numpy()
    split_rows(lambda first, last: _decode(*common, _bits(), first, last), data.shape[0], numel, TILE)
    return out


def decode_sum(data: Tensor, minus: Tensor, plus: Tensor, block: int, numel: int, groups: int) -> Tensor:
    out = torch.empty((groups, numel), dtype=torch.float32)
    for total, *parts in zip(out, *(t.chunk(groups) for t in (data, minus, plus)), strict=True):
        _sum_group((*flat(parts[0]), array(parts[1]), array(parts[2]), block, total.numpy()), numel)
    return out


def _sum_group(common: Any, numel: int) -> None:
    split_rows(lambda first, last: _decode_sum(*common, _bits(), first, last), 1, numel, TILE)


def vote(data: Tensor, ties: Tensor, groups: int) -> Tensor:
    out = torch.empty((groups, data.shape[1]), dtype=torch.uint8)
    for won, part, tie in zip(out, data.chunk(groups), ties.expand(groups, -1), strict=True):
        _vote_group(part, array(tie), won.numpy())
    return out


def _vote_group(data: Tensor, chosen: np.ndarray, result: np.ndarray) -> None:
    rows, size = data.shape
    source, stride = flat(data)

    def work(first: int, last: int) -> None:
        planes = np.empty((rows.bit_length() + 1, TILE // 8), np.uint8)
        _vote(source, stride, rows, chosen, result, planes, first, last)

    split_rows(work, 1, 8 * size, TILE)


def _bits() -> np.ndarray:
    return np.empty(TILE, np.uint8)
