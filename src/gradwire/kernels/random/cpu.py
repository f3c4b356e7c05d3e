"""Philox-4x32-10 in vector instructions: sixteen blocks at a time.

LLVM's own vectorisation of the rounds multiplies twice as often as needed, so they are written down as vector
operations, in LLVM's portable representation.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from llvmlite import ir  # type: ignore[import-untyped]
from numba import types
from numba.extending import intrinsic
from torch import Tensor

from gradwire.core.random import Stream
from gradwire.kernels.jit import jit
from gradwire.kernels.parallel import split

LANES = 16  # blocks at a time: enough independent work to hide the latency of a multiplication
GROUP = 4 * LANES  # words at a time
TILE = 8192  # elements at a time: the words of a tile stay in the first cache
_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_WEYL = (0x9E3779B9, 0xBB67AE85)
_WORD, _LONG = ir.IntType(32), ir.IntType(64)
_VECTOR = ir.VectorType(_WORD, LANES)
_PRODUCTS = ir.VectorType(_LONG, LANES // 2)


def _lanes(indices: range | list[int]) -> ir.Constant:
    return ir.Constant(ir.VectorType(_WORD, len(indices)), list(indices))


def _splat(b: ir.IRBuilder, word: ir.Value) -> ir.Value:
    nothing = ir.Constant(_VECTOR, ir.Undefined)
    return b.shuffle_vector(b.insert_element(nothing, word, ir.Constant(_WORD, 0)), nothing, _lanes([0] * LANES))


def _multiply(b: ir.IRBuilder, constant: int, x: ir.Value) -> tuple[ir.Value, ir.Value]:
    """High and low words of the 64-bit products."""
    factor, half = ir.Constant(_PRODUCTS, [constant] * (LANES // 2)), LANES // 2
    parts = [b.shuffle_vector(x, x, _lanes(range(start, start + half))) for start in (0, half)]
    first, second = (b.bitcast(b.mul(b.zext(part, _PRODUCTS), factor), _VECTOR) for part in parts)
    high = b.shuffle_vector(first, second, _lanes(range(1, 2 * LANES, 2)))
    return high, b.shuffle_vector(first, second, _lanes(range(0, 2 * LANES, 2)))


def _philox(b: ir.IRBuilder, counter: ir.Value, upper: ir.Value, key: tuple[ir.Value, ir.Value]) -> ir.Value:
    """The words of the blocks `counter` to `counter` + LANES − 1, one block after the other."""
    x0, x1 = b.add(_splat(b, counter), _lanes(range(LANES))), _splat(b, upper)
    x2 = x3 = _lanes([0] * LANES)
    for i in range(10):
        k0, k1 = (_splat(b, b.add(k, ir.Constant(_WORD, i * w & 0xFFFFFFFF))) for k, w in zip(key, _WEYL, strict=True))
        high0, low0 = _multiply(b, _MULTIPLIERS[0], x0)
        high1, low1 = _multiply(b, _MULTIPLIERS[1], x2)
        x0, x1, x2, x3 = b.xor(high1, b.xor(x1, k0)), low1, b.xor(high0, b.xor(x3, k1)), low0
    lower = b.shuffle_vector(x0, x1, _lanes(range(2 * LANES)))
    higher = b.shuffle_vector(x2, x3, _lanes(range(2 * LANES)))
    return b.shuffle_vector(lower, higher, _lanes([j * LANES + i for i in range(LANES) for j in range(4)]))


def _store_group_typed(typing: Any, counter: Any, upper: Any, k0: Any, k1: Any, out: Any, start: Any) -> Any:
    """``out[start : start + GROUP]`` = the words of LANES blocks."""

    def generate(context: Any, builder: ir.IRBuilder, signature: Any, args: Any) -> Any:
        array = context.make_array(signature.args[4])(context, builder, args[4])
        words = _philox(builder, args[0], args[1], (args[2], args[3]))
        address = builder.bitcast(builder.gep(array.data, [args[5]]), words.type.as_pointer())
        builder.store(words, address, align=4)
        return context.get_dummy_value()

    word = types.uint32
    return types.void(word, word, word, word, out, types.intp), generate


_store_group: Any = intrinsic(_store_group_typed)


@jit
def draw(key: Any, first: int, count: int, out: np.ndarray) -> int:
    """Words `first`, … of the stream into `out`, in whole groups; returns where in `out` word `first` lies.

    `out` must have room for `count` + 2·GROUP words.
    """
    skip = first % GROUP
    k0, k1 = np.uint32(key), np.uint32(key >> np.uint64(32))
    for i in range((skip + count + GROUP - 1) // GROUP):
        block = np.uint64((first - skip) // 4 + LANES * i)
        _store_group(np.uint32(block), np.uint32(block >> np.uint64(32)), k0, k1, out, GROUP * i)
    return skip


@jit
def draw_words(key: Any, first: int, out: np.ndarray) -> None:
    scratch = np.empty(TILE + 2 * GROUP, np.uint32)
    for start in range(0, out.size, TILE):
        part = out[start : start + TILE]
        skip = draw(key, first + start, part.size, scratch)
        source = scratch[skip:]
        for i in range(part.size):
            part[i] = source[i]


@jit
def _uniform(key: Any, first: int, out: np.ndarray) -> None:
    scratch = np.empty(TILE + 2 * GROUP, np.uint32)
    for start in range(0, out.size, TILE):
        part = out[start : start + TILE]
        skip = draw(key, first + start, part.size, scratch)
        source = scratch[skip:]
        for i in range(part.size):
            part[i] = np.float32(source[i] >> np.uint32(8)) * np.float32(2.0**-24)


@jit
def draw_quickly(key: Any, first: int, out: np.ndarray) -> None:
    """Quick words `first`, … of the stream into `out`."""
    at = 0
    while at < out.size:  # up to where the upper half of the position changes
        position = np.uint64(first + at)
        size = min(
            out.size - at, int(np.int64(np.uint64(1) << np.uint64(32)) - np.int64(position & np.uint64(0xFFFFFFFF)))
        )
        k0 = np.uint32(key) + np.uint32(0x9E3779B9) * np.uint32(position >> np.uint64(32))
        base, k1 = np.uint32(position) + np.uint32(k0), np.uint32(key >> np.uint64(32))
        _hash(np.uint32(base), k1, out[at : at + size])
        at += size


@jit
def _hash(base: Any, k1: Any, out: np.ndarray) -> None:
    for i in range(out.size):
        x = np.uint32(base + np.uint32(i))
        x ^= x >> np.uint32(16)
        x = np.uint32(x * np.uint32(0x7FEB352D)) ^ k1
        x ^= x >> np.uint32(15)
        x = np.uint32(x * np.uint32(0x846CA68B))
        out[i] = x ^ (x >> np.uint32(16))


@jit
def _quick_words(key: Any, first: int, out: np.ndarray) -> None:
    scratch = np.empty(TILE, np.uint32)
    for start in range(0, out.size, TILE):
        part = out[start : start + TILE]
        draw_quickly(key, first + start, scratch[: part.size])
        for i in range(part.size):
            part[i] = scratch[i]


@jit
def _halves(key: Any, first: int, out: np.ndarray) -> None:
    scratch = np.empty(TILE // 2 + 1, np.uint32)
    for start in range(0, out.size, TILE):
        part = out[start : start + TILE]
        position = first + start
        draw_quickly(key, position // 2, scratch[: part.size // 2 + 1])
        source = scratch.view(np.uint16)[position % 2 :]
        for i in range(part.size):
            part[i] = (np.float32(source[i]) + np.float32(0.5)) * np.float32(2.0**-16)


@jit
def _coins(key: Any, first: int, out: np.ndarray) -> None:
    scratch = np.empty(TILE // 32 + 2 + 2 * GROUP, np.uint32)
    bits = np.empty(TILE + 64, np.uint8)
    for start in range(0, out.size, TILE):
        part = out[start : start + TILE]
        position = first + start
        count = (position % 32 + part.size + 31) // 32
        skip = draw(key, position // 32, count, scratch)
        for i in range(count):
            word, run = scratch[skip + i], bits[32 * i : 32 * i + 32]
            for j in range(32):
                run[j] = np.uint8((word >> np.uint32(j)) & np.uint32(1))
        source = bits[position % 32 :]
        for i in range(part.size):
            part[i] = source[i]


def words(stream: Stream, shape: Sequence[int], device: torch.device) -> Tensor:
    return _drawn(draw_words, stream, shape, torch.int64)


def uniform(stream: Stream, shape: Sequence[int], device: torch.device) -> Tensor:
    return _drawn(_uniform, stream, shape, torch.float32)


def quick_words(stream: Stream, shape: Sequence[int], device: torch.device) -> Tensor:
    return _drawn(_quick_words, stream, shape, torch.int64)


def halves(stream: Stream, shape: Sequence[int], device: torch.device) -> Tensor:
    return _drawn(_halves, stream, shape, torch.float32)


def coins(stream: Stream, shape: Sequence[int], device: torch.device) -> Tensor:
    return _drawn(_coins, stream, shape, torch.uint8).view(torch.bool)


def _drawn(
    kernel: Callable[[np.uint64, int, np.ndarray], None], stream: Stream, shape: Sequence[int], dtype: torch.dtype
) -> Tensor:
    out = torch.empty(math.prod(shape), dtype=dtype)
    for part, key, offset in stream.each(out.numel()):
        _draw_part(kernel, np.uint64(key), offset, out[part].numpy())
    return out.view(tuple(shape))


def _draw_part(
    kernel: Callable[[np.uint64, int, np.ndarray], None], key: np.uint64, offset: int, out: np.ndarray
) -> None:
    split(lambda start, stop: kernel(key, offset + start, out[start:stop]), out.size, TILE)
