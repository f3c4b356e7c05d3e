"""Nearest entries without a search: the upper half of a float's pattern gives a first guess, one comparison the rest.

Patterns of numbers from 0 on are ordered as the numbers are, NaN above all. `_guesses` holds, for each upper half, how
many midpoints lie below all numbers that begin with it. Where more than one midpoint shares an upper half, the
comparison is repeated.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gradwire.kernels.bitpack.cpu import array, flat
from gradwire.kernels.jit import jit
from gradwire.kernels.parallel import split_rows

TILE = 2048  # elements at a time: their shares stay in the first cache, beside the guesses

_MAGNITUDE = np.uint32(0x7FFFFFFF)


@jit
def _divide(x: np.ndarray, scale: np.ndarray, start: int, block: int, shares: np.ndarray) -> None:
    """Shares of the elements from `start` on of a row."""
    at = 0
    while at < x.size:
        i = (start + at) // block
        part = slice(at, min((i + 1) * block - start, x.size))
        source, out, divisor = x[part], shares[part], scale[i]
        for j in range(source.size):
            out[j] = source[j] / divisor
        at = part.stop


@jit
def _find(x: np.ndarray, shares: np.ndarray, guesses: np.ndarray, ends: np.ndarray, codes: np.ndarray) -> None:
    """`shares` as patterns; their signs do not count."""
    for i in range(x.size):
        share = shares[i] & _MAGNITUDE
        k = np.uint64(guesses[share >> np.uint32(16)])
        k += np.uint64(ends[k] < share)
        while ends[k] < share:
            k += np.uint64(1)
        minus = min(k, np.uint64(127)) + np.uint64(128)
        codes[i] = np.uint8(minus if (x[i] < 0) & (k > np.uint64(0)) else k)


@jit
def _encode(
    x: np.ndarray,
    stride: int,
    scale: np.ndarray,
    block: int,
    guesses: np.ndarray,
    ends: np.ndarray,
    codes: np.ndarray,
    first: int,
    last: int,
) -> None:
    numel, shares = codes.shape[1], np.empty(TILE, np.float32)
    tiles = (numel + TILE - 1) // TILE
    for tile in range(first, last):
        row, start = tile // tiles, tile % tiles * TILE
        end = min(start + TILE, numel)
        part = x[row * stride + start : row * stride + end]
        _divide(part, scale[row], start, block, shares)
        _find(part, shares.view(np.uint32), guesses, ends, codes[row, start:end])


@jit
def _put(
    codes: np.ndarray, scale: np.ndarray, start: int, block: int, table: np.ndarray, add: bool, out: np.ndarray
) -> None:
    """The values of the codes of elements from `start` on of a row, in place of what is there or added to it."""
    at = 0
    while at < codes.size:
        i = (start + at) // block
        part = slice(at, min((i + 1) * block - start, codes.size))
        c, y, factor = codes[part], out[part], scale[i]
        if add:
            for j in range(c.size):
                y[j] += table[c[j]] * factor
        else:
            for j in range(c.size):
                y[j] = table[c[j]] * factor
        at = part.stop


@jit
def _decode(
    codes: np.ndarray,
    stride: int,
    scale: np.ndarray,
    block: int,
    table: np.ndarray,
    out: np.ndarray,
    first: int,
    last: int,
) -> None:
    numel = out.shape[1]
    tiles = (numel + TILE - 1) // TILE
    for tile in range(first, last):
        row, start = tile // tiles, tile % tiles * TILE
        end = min(start + TILE, numel)
        part = codes[row * stride + start : row * stride + end]
        _put(part, scale[row], start, block, table, False, out[row, start:end])


@jit
def _decode_sum(
    codes: np.ndarray,
    stride: int,
    scale: np.ndarray,
    block: int,
    table: np.ndarray,
    out: np.ndarray,
    first: int,
    last: int,
) -> None:
    for start in range(first * TILE, last * TILE, TILE):
        part = out[start : start + TILE]
        part[:] = np.float32(0)
        for row in range(scale.shape[0]):
            begin = row * stride + start
            _put(codes[begin : begin + part.size], scale[row], start, block, table, True, part)


def encode(x: Tensor, scale: Tensor, block: int, midpoints: tuple[float, ...]) -> Tensor:
    codes = torch.empty(x.shape, dtype=torch.uint8)
    common = *flat(x), array(scale), block, *_guesses(midpoints), codes.numpy()
    split_rows(lambda first, last: _encode(*common, first, last), x.shape[0], x.shape[1], TILE)
    return codes


def decode(codes: Tensor, scale: Tensor, block: int, table: tuple[float, ...]) -> Tensor:
    out = torch.empty(codes.shape, dtype=torch.float32)
    common = *flat(codes), array(scale), block, _values(table), out.numpy()
    split_rows(lambda first, last: _decode(*common, first, last), codes.shape[0], codes.shape[1], TILE)
    return out


def decode_sum(codes: Tensor, scale: Tensor, block: int, table: tuple[float, ...], groups: int) -> Tensor:
    out = torch.empty((groups, codes.shape[1]), dtype=torch.float32)
    for total, part, scales in zip(out, codes.chunk(groups), scale.chunk(groups), strict=True):
        _sum_group((*flat(part), array(scales), block, _values(table), total.numpy()), codes.shape[1])
    return out


def _sum_group(common: Any, numel: int) -> None:
    split_rows(lambda first, last: _decode_sum(*common, first, last), 1, numel, TILE)


@lru_cache
def _guesses(midpoints: tuple[float, ...]) -> tuple[np.ndarray, np.ndarray]:
    """Midpoints below all numbers with an upper half, for each of these; and the midpoints' patterns, with a stop."""
    ends = np.array(midpoints, np.float32).view(np.uint32)
    halves = np.arange(1 << 15, dtype=np.uint32) << np.uint32(16)
    return np.searchsorted(ends, halves).astype(np.uint8), np.append(ends, np.uint32(0xFFFFFFFF))


@lru_cache
def _values(table: tuple[float, ...]) -> np.ndarray:
    return np.array(table, np.float32)
