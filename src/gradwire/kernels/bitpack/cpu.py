"""Bit packing, compiled. Eight codes of w bits fill w bytes: whole groups of eight first, then the rest bit by bit."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gradwire.kernels.jit import jit
from gradwire.kernels.parallel import split_rows

TILE = 8192  # codes at a time, in the first cache; a multiple of 8, so that tiles begin at whole bytes

_BITS = np.unpackbits(np.arange(256, dtype=np.uint8)[:, None], axis=1, bitorder="little").view(np.uint64).ravel()
_U = np.uint64
_BYTES_OF_16 = np.uint64(0x00FF00FF00FF00FF)  # the lower half of each lane
_HALVES_OF_32 = np.uint64(0x0000FFFF0000FFFF)
_HALF_OF_64 = np.uint64(0x00000000FFFFFFFF)


def flat(x: Tensor) -> tuple[np.ndarray, int]:
    """The memory of (rows, numel) as one array, without a copy where rows are dense, and the distance of its rows."""
    rows, numel = x.shape
    if x.numel() == 0:
        return x.new_empty(0).numpy(), 0
    if x.stride(1) != 1:
        x = x.contiguous()
    stride = x.stride(0) if rows > 1 else numel
    return x.detach().as_strided(((rows - 1) * stride + numel,), (1,)).numpy(), stride


def array(x: Tensor) -> np.ndarray:
    """The dense array of a tensor."""
    out: np.ndarray = x.detach().contiguous().numpy()
    return out


def scratch(width: int) -> np.ndarray:
    """Room for a tile of codes: bytes up to 8 bits, words beyond."""
    return np.empty(TILE, np.uint8 if width <= 8 else np.uint32)


def unit(block: int, numel: int) -> int:
    """Elements at a time where blocks must stay whole: whole blocks and whole bytes, and about a tile if possible."""
    size = math.lcm(block, 8)
    return max(8, min(size * max(1, TILE // size), -(-numel // 8) * 8))


@jit
def _load(data: np.ndarray, at: Any) -> Any:
    """Eight bytes as one word; the compiler makes one instruction of it."""
    low = _U(data[at]) | _U(data[at + _U(1)]) << _U(8) | _U(data[at + _U(2)]) << _U(16) | _U(data[at + _U(3)]) << _U(24)
    at += _U(4)
    high = (
        _U(data[at]) | _U(data[at + _U(1)]) << _U(8) | _U(data[at + _U(2)]) << _U(16) | _U(data[at + _U(3)]) << _U(24)
    )
    return low | high << _U(32)


@jit
def _store(word: Any, out: np.ndarray, at: Any) -> None:
    for i in range(8):
        out[at + _U(i)] = np.uint8(word >> _U(8 * i))


@jit
def pack_codes(codes: np.ndarray, width: int, out: np.ndarray) -> None:
    """Codes of the type of `scratch` -> the first ceil(codes·width/8) bytes of `out`."""
    groups = _fast_groups(codes.size, width)
    whole, start = codes[: 8 * groups], groups * width
    if width == 8:
        for i in range(whole.size):
            out[i] = whole[i]
    elif width == 4:
        for i in range(start):
            out[i] = whole[2 * i] | whole[2 * i + 1] << 4
    elif width == 2:
        for i in range(start):
            out[i] = whole[4 * i] | whole[4 * i + 1] << 2 | whole[4 * i + 2] << 4 | whole[4 * i + 3] << 6
    elif width == 1:
        _pack_bits(whole.view(np.uint64), out)
    elif width < 8:
        _pack_groups(whole.view(np.uint64), _U(width), out)
    else:
        _pack_wide(whole, _U(width), out)
    _pack_rest(codes[8 * groups :], width, out[start:])


@jit
def unpack_codes(data: np.ndarray, width: int, codes: np.ndarray) -> None:
    """The inverse of `pack_codes`."""
    groups = _fast_groups(codes.size, width)
    whole, start = codes[: 8 * groups], groups * width
    if width == 8:
        for i in range(whole.size):
            whole[i] = data[i]
    elif width == 4:
        for i in range(start):
            whole[2 * i], whole[2 * i + 1] = data[i] & 15, data[i] >> 4
    elif width == 2:
        for i in range(start):
            byte = data[i]
            whole[4 * i], whole[4 * i + 1] = byte & 3, byte >> 2 & 3
            whole[4 * i + 2], whole[4 * i + 3] = byte >> 4 & 3, byte >> 6
    elif width == 1:
        words = whole.view(np.uint64)
        for i in range(start):
            words[i] = _BITS[data[i]]
    elif width < 8:
        _unpack_groups(data, _U(width), whole.view(np.uint64))
    else:
        _unpack_wide(data, _U(width), whole)
    _unpack_rest(data[start:], width, codes[8 * groups :])


@jit
def _fast_groups(numel: int, width: int) -> int:
    """Groups of 8 codes that the fast loops may treat: those that touch 8 bytes at a time must stay in the row."""
    return numel // 8 if width in (1, 2, 4, 8) else max(numel // 8 - 2, 0)


@jit
def _pack_bits(groups: np.ndarray, out: np.ndarray) -> None:
    for i in range(groups.size):
        group = groups[i]
        group |= group >> _U(7)
        group |= group >> _U(14)
        out[i] = np.uint8(group | group >> _U(28))


@jit
def _pack_groups(groups: np.ndarray, w: Any, out: np.ndarray) -> None:
    """Neighbours move together: 8 codes in 8 bytes, then 4 pairs, then 2 quadruples, then all."""
    for i in range(groups.size):
        group = groups[i]
        group = group & _BYTES_OF_16 | (group >> _U(8) & _BYTES_OF_16) << w
        group = group & _HALVES_OF_32 | (group >> _U(16) & _HALVES_OF_32) << (w + w)
        _store(group & _HALF_OF_64 | group >> _U(32) << (w << _U(2)), out, w * _U(i))


@jit
def _unpack_groups(data: np.ndarray, w: Any, groups: np.ndarray) -> None:
    code, pair, four = (_U(1) << w) - _U(1), (_U(1) << (w + w)) - _U(1), (_U(1) << (w << _U(2))) - _U(1)
    codes, pairs = code * _U(0x0001000100010001), pair * _U(0x0000000100000001)
    for i in range(groups.size):
        group = _load(data, w * _U(i))
        group = group & four | (group >> (w << _U(2)) & four) << _U(32)
        group = group & pairs | (group >> (w + w) & pairs) << _U(16)
        groups[i] = group & codes | (group >> w & codes) << _U(8)


@jit
def _pack_wide(codes: np.ndarray, w: Any, out: np.ndarray) -> None:
    bits, held, at = _U(0), _U(0), _U(0)
    for i in range(codes.size):
        bits |= _U(codes[i]) << held
        held += w
        _store(bits, out, at)
        at += held >> _U(3)
        bits >>= held & ~_U(7)
        held &= _U(7)


@jit
def _unpack_wide(data: np.ndarray, w: Any, codes: np.ndarray) -> None:
    at, mask = _U(0), (_U(1) << w) - _U(1)
    for i in range(codes.size):
        codes[i] = _load(data, at >> _U(3)) >> (at & _U(7)) & mask
        at += w


@jit
def _pack_rest(codes: np.ndarray, width: int, out: np.ndarray) -> None:
    bits, held, at = _U(0), 0, 0
    for i in range(codes.size):
        bits |= _U(codes[i]) << _U(held)
        held += width
        while held >= 8:
            out[at] = np.uint8(bits)
            bits >>= _U(8)
            held -= 8
            at += 1
    if held:
        out[at] = np.uint8(bits)


@jit
def _unpack_rest(data: np.ndarray, width: int, codes: np.ndarray) -> None:
    bits, held, at, mask = _U(0), 0, 0, (_U(1) << _U(width)) - _U(1)
    for i in range(codes.size):
        while held < width:
            bits |= _U(data[at]) << _U(held)
            held += 8
            at += 1
        codes[i] = bits & mask
        bits >>= _U(width)
        held -= width


@jit
def _pack(codes: np.ndarray, stride: int, width: int, out: np.ndarray, first: int, last: int, room: np.ndarray) -> None:
    numel = codes.size - (out.shape[0] - 1) * stride
    tiles = (numel + TILE - 1) // TILE
    for tile in range(first, last):
        row, start = tile // tiles, tile % tiles * TILE
        part = codes[row * stride + start : row * stride + min(start + TILE, numel)]
        for i in range(part.size):
            room[i] = part[i]
        pack_codes(room[: part.size], width, out[row, start * width // 8 :])


@jit
def _unpack(
    data: np.ndarray, stride: int, width: int, out: np.ndarray, first: int, last: int, room: np.ndarray
) -> None:
    numel = out.shape[1]
    tiles = (numel + TILE - 1) // TILE
    for tile in range(first, last):
        row, start = tile // tiles, tile % tiles * TILE
        part = out[row, start : min(start + TILE, numel)]
        codes = room[: part.size]
        unpack_codes(data[row * stride + start * width // 8 :], width, codes)
        for i in range(part.size):
            part[i] = codes[i]


def pack(codes: Tensor, width: int) -> Tensor:
    rows, numel = codes.shape
    out = torch.empty((rows, -(-numel * width // 8)), dtype=torch.uint8)
    if codes.dtype == torch.bool:
        codes = codes.view(torch.uint8)
    elif codes.dtype not in (torch.uint8, torch.int32):
        codes = codes.long()
    source, stride = flat(codes)
    work = lambda first, last: _pack(source, stride, width, out.numpy(), first, last, scratch(width))  # noqa: E731
    split_rows(work, rows, numel, TILE)
    return out


def unpack(data: Tensor, width: int, numel: int) -> Tensor:
    if width == 8:
        return data[:, :numel]
    rows = data.shape[0]
    out = torch.empty((rows, numel), dtype=torch.uint8 if width < 8 else torch.int64)
    source, stride = flat(data)
    work = lambda first, last: _unpack(source, stride, width, out.numpy(), first, last, scratch(width))  # noqa: E731
    split_rows(work, rows, numel, TILE)
    return out
