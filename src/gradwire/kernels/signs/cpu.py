"""Signs, compiled."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from gradwire.core.random import Stream
from gradwire.kernels.bitpack.cpu import TILE, array, flat, pack, pack_codes, unit, unpack_codes
from gradwire.kernels.blockwise.cpu import average, fold_room, folded
from gradwire.kernels.jit import jit
from gradwire.kernels.parallel import split_rows
from gradwire.kernels.random.cpu import GROUP, coins, draw, draw_words

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
def _encode_or_toss(
    x: np.ndarray,
    stride: int,
    numel: int,
    key: Any,
    first_coin: int,
    out: np.ndarray,
    bad: np.ndarray,
    first: int,
    last: int,
) -> None:
    """One read of the numbers; coins are drawn for the tiles that have a zero, and `bad` counts per tile."""
    tiles = (numel + TILE - 1) // TILE
    bits, scratch = np.empty(TILE, np.uint8), np.empty(TILE // 32 + 2 + 2 * GROUP, np.uint32)
    for tile in range(first, last):
        row, start = tile // tiles, tile % tiles * TILE
        part = x[row * stride + start : row * stride + min(start + TILE, numel)]
        zeros = wrong = np.int32(0)
        for i in range(part.size):
            bits[i] = np.uint8(part[i] > 0)
            zeros += np.int32(part[i] == 0)
            wrong += np.int32(not (abs(part[i]) <= LARGEST))
        bad[tile] = wrong
        if zeros:
            coin = first_coin + row * numel + start
            skip = draw(key, coin // 32, (coin % 32 + part.size + 31) // 32, scratch)
            for i in range(part.size):
                if part[i] == 0:
                    at = coin % 32 + i
                    bits[i] = np.uint8((scratch[skip + at // 32] >> np.uint32(at % 32)) & np.uint32(1))
        pack_codes(bits[: part.size], 1, out[row, start // 8 :])


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
def _reduce_and_encode(
    data: np.ndarray,
    stride: int,
    minus: np.ndarray,
    plus: np.ndarray,
    block: int,
    carry: np.ndarray,
    out: np.ndarray,
    scales: np.ndarray,
    lost: np.ndarray,
    numel: int,
    size: int,
    first: int,
    last: int,
) -> None:
    count = plus.shape[0]
    bits, fold, room = (
        np.empty(TILE, np.uint8),
        fold_room(min(block, numel)),
        np.empty(0 if lost.size else size, np.float32),
    )
    for begin in range(first * size, min(last * size, numel), size):
        end = min(begin + size, numel)
        mean = lost[begin:end] if lost.size else room[: end - begin]
        for start in range(0, mean.size, TILE):
            part = mean[start : start + TILE]
            _add_rows(data, stride, minus, plus, begin + start, block, bits, part)
            average(part, count, carry[begin + start : begin + start + part.size])
        scale = scales[begin // block : (end + block - 1) // block]
        _scale(mean, block, fold, scale)
        _pack_signs(mean, bits, out[begin // 8 :])
        if lost.size:
            for j in range(scale.size):
                run, high = mean[j * block : (j + 1) * block], scale[j]
                for k in range(run.size):
                    run[k] -= high if run[k] >= 0 else -high


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
    out = torch.empty((rows, -(-numel // 8)), dtype=torch.uint8)
    bad = torch.zeros((rows, -(-numel // TILE)), dtype=torch.int32)
    common = *flat(x), numel, np.uint64(stream.key), stream.offset, out.numpy(), bad.view(-1).numpy()
    split_rows(lambda first, last: _encode_or_toss(*common, first, last), rows, numel, TILE)
    return out, bad.any(1, keepdim=True)


def tosses(stream: Stream, numel: int) -> Tensor:
    if stream.offset % 32:
        return pack(coins(stream, numel).view(1, -1), 1)
    words = torch.empty(-(-numel // 32), dtype=torch.int32)
    draw_words(np.uint64(stream.key), stream.offset // 32, words.numpy().view(np.uint32))
    packed = words.view(torch.uint8)[: -(-numel // 8)]  # bit i of word w is coin 32 w + i, as in `bitpack`
    if numel % 8:
        packed[-1] &= (1 << numel % 8) - 1
    return packed.view(1, -1)


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


def decode_sum(data: Tensor, minus: Tensor, plus: Tensor, block: int, numel: int) -> Tensor:
    out = torch.empty((1, numel), dtype=torch.float32)
    common = *flat(data), array(minus), array(plus), block, out.view(-1).numpy()
    split_rows(lambda first, last: _decode_sum(*common, _bits(), first, last), 1, numel, TILE)
    return out


def reduce_and_encode(
    data: Tensor, minus: Tensor, plus: Tensor, block: int, numel: int, carry: Tensor | None, keep_lost: bool
) -> tuple[Tensor, Tensor, Tensor | None]:
    out = torch.empty((1, -(-numel // 8)), dtype=torch.uint8)
    scales, lost = (torch.empty((1, n), dtype=torch.float32) for n in (-(-numel // block), numel if keep_lost else 0))
    added = np.empty(0, np.float32) if carry is None else array(carry).reshape(-1)
    results = out.view(-1).numpy(), scales.view(-1).numpy(), lost.view(-1).numpy()
    common = *flat(data), array(minus), array(plus), block, added, *results, numel
    size = unit(block, numel)
    split_rows(lambda first, last: _reduce_and_encode(*common, size, first, last), 1, numel, size)
    return out, scales, lost if keep_lost else None


def vote(data: Tensor, ties: Tensor) -> Tensor:
    rows, size = data.shape
    out = torch.empty((1, size), dtype=torch.uint8)
    source, stride = flat(data)
    chosen, result = array(ties).reshape(-1), out.view(-1).numpy()

    def work(first: int, last: int) -> None:
        planes = np.empty((rows.bit_length() + 1, TILE // 8), np.uint8)
        _vote(source, stride, rows, chosen, result, planes, first, last)

    split_rows(work, 1, 8 * size, TILE)
    return out


def _bits() -> np.ndarray:
    return np.empty(TILE, np.uint8)
