"""Random rounding to powers of two, compiled: integer operations on the patterns, with the words of a tile at hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from gradwire.core.random import Stream
from gradwire.kernels.bitpack.cpu import TILE, flat, pack_codes, unpack_codes
from gradwire.kernels.jit import jit
from gradwire.kernels.parallel import split_rows
from gradwire.kernels.powers.reference import INFINITE, LOWEST, MANTISSA, NAN
from gradwire.kernels.random.cpu import draw_quickly

_W = np.uint32
_MAGNITUDE, _INFINITE, _NAN = _W(0x7FFFFFFF), _W(INFINITE), _W(NAN)
_MANTISSA, _DRAWN, _SIGN = _W(MANTISSA), _W(32 - MANTISSA), _W(31)
_BELOW, _LEAST = _W(LOWEST << MANTISSA), _W((LOWEST + 1) << MANTISSA)  # what 8 bits take off; the smallest they keep


@jit
def _round_9(x: np.ndarray, words: np.ndarray, codes: np.ndarray, negative: np.ndarray) -> None:
    for i in range(x.size):
        magnitude = x[i] & _MAGNITUDE
        code = min(_W(magnitude + (words[i] >> _DRAWN)) >> _MANTISSA, _W(254))
        codes[i] = np.uint8(code if magnitude < _INFINITE else _W(255))
        negative[i] = np.uint8(x[i] >> _SIGN)


@jit
def _round_8(x: np.ndarray, words: np.ndarray, codes: np.ndarray) -> None:
    for i in range(x.size):
        magnitude = x[i] & _MAGNITUDE
        code = min(_W(magnitude - _BELOW + (words[i] >> _DRAWN)) >> _MANTISSA, _W(126))
        code = code if magnitude >= _LEAST else _W(0)
        code = code if magnitude < _INFINITE else _W(127)
        codes[i] = np.uint8(code | x[i] >> _SIGN << _W(7))


@jit
def _values_9(codes: np.ndarray, negative: np.ndarray, out: np.ndarray) -> None:
    for i in range(codes.size):
        code = _W(codes[i])
        out[i] = (code << _MANTISSA if code < _W(255) else _NAN) | _W(negative[i]) << _SIGN


@jit
def _values_8(codes: np.ndarray, out: np.ndarray) -> None:
    for i in range(codes.size):
        code = _W(codes[i]) & _W(127)
        exponent = code + _W(LOWEST) if code > _W(0) else _W(0)
        out[i] = (_W(exponent) << _MANTISSA if code < _W(127) else _NAN) | _W(codes[i]) >> _W(7) << _SIGN


@jit
def _encode(
    x: np.ndarray, stride: int, numel: int, bits: int, key: Any, offset: int, out: np.ndarray, first: int, last: int
) -> None:
    tiles = (numel + TILE - 1) // TILE
    words, room = np.empty(TILE, np.uint32), np.empty(TILE, np.uint8)
    for tile in range(first, last):
        row, start = tile // tiles, tile % tiles * TILE
        part = x[row * stride + start : row * stride + min(start + TILE, numel)]
        draw_quickly(key, offset + row * numel + start, words[: part.size])
        codes = out[row, start : start + part.size]
        if bits == 9:
            negative = room[: part.size]
            _round_9(part, words, codes, negative)
            pack_codes(negative, 1, out[row, numel + start // 8 :])
        else:
            _round_8(part, words, codes)


@jit
def _read(data: np.ndarray, numel: int, bits: int, start: int, room: np.ndarray, out: np.ndarray) -> None:
    """The patterns of the elements from `start` on of a row."""
    codes = data[start : start + out.size]
    if bits == 9:
        negative = room[: out.size]
        unpack_codes(data[numel + start // 8 :], 1, negative)
        _values_9(codes, negative, out)
    else:
        _values_8(codes, out)


@jit
def _decode(data: np.ndarray, stride: int, bits: int, out: np.ndarray, first: int, last: int) -> None:
    numel, room = out.shape[1], np.empty(TILE, np.uint8)
    tiles = (numel + TILE - 1) // TILE
    for tile in range(first, last):
        row, start = tile // tiles, tile % tiles * TILE
        _read(data[row * stride :], numel, bits, start, room, out[row, start : min(start + TILE, numel)])


@jit
def _decode_sum(data: np.ndarray, stride: int, rows: int, bits: int, out: np.ndarray, first: int, last: int) -> None:
    room, patterns = np.empty(TILE, np.uint8), np.empty(TILE, np.uint32)
    values = patterns.view(np.float32)
    for start in range(first * TILE, last * TILE, TILE):
        part = out[start : start + TILE]
        part[:] = np.float32(0)
        for row in range(rows):
            _read(data[row * stride :], out.size, bits, start, room, patterns[: part.size])
            for i in range(part.size):
                part[i] += values[i]


def encode(x: Tensor, bits: int, noise: Stream) -> Tensor:
    rows, numel = x.shape
    out = torch.empty((rows, numel + (-(-numel // 8) if bits == 9 else 0)), dtype=torch.uint8)
    for part, key, offset in noise.each(rows):
        source, stride = flat(x[part])
        common = source.view(np.uint32), stride, numel, bits, np.uint64(key), offset, out[part].numpy()
        _encode_rows(common, part.stop - part.start, numel)
    return out


def _encode_rows(common: Any, rows: int, numel: int) -> None:
    split_rows(lambda first, last: _encode(*common, first, last), rows, numel, TILE)


def decode(data: Tensor, bits: int, numel: int) -> Tensor:
    out = torch.empty((data.shape[0], numel), dtype=torch.float32)
    common = *flat(data), bits, out.numpy().view(np.uint32)
    split_rows(lambda first, last: _decode(*common, first, last), data.shape[0], numel, TILE)
    return out


def decode_sum(data: Tensor, bits: int, numel: int, groups: int) -> Tensor:
    out = torch.empty((groups, numel), dtype=torch.float32)
    for total, part in zip(out, data.chunk(groups), strict=True):
        _sum_group((*flat(part), part.shape[0], bits, total.numpy()), numel)
    return out


def _sum_group(common: Any, numel: int) -> None:
    split_rows(lambda first, last: _decode_sum(*common, first, last), 1, numel, TILE)
