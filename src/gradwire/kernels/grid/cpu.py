"""The uniform quantiser, compiled: tile by tile, so that codes and noise stay in the first cache.

Up to 2²³ codes: float32 counts these exactly, so that integers here are what the reference computes in float32.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, TypeAlias

import numpy as np
import torch
from llvmlite import ir  # type: ignore[import-untyped]
from numba import types
from numba.extending import intrinsic
from torch import Tensor

from gradwire.core.random import Stream
from gradwire.kernels.backend import only
from gradwire.kernels.bitpack.cpu import TILE, array, flat, pack_codes, scratch, unpack_codes
from gradwire.kernels.grid.reference import code_width
from gradwire.kernels.jit import jit
from gradwire.kernels.parallel import split_rows
from gradwire.kernels.random.cpu import draw_quickly

Shape: TypeAlias = tuple[int, int, int, int]  # block, low, high, width
Noise: TypeAlias = tuple[bool, Any, int]  # whether there is any, key, offset
RuleArray: TypeAlias = tuple[int, int, int, int, Any, Any]  # block, low, high, width (0: trits), clip, sigma

_FLOAT = ir.FloatType()


def _pairwise(name: str) -> Any:
    """LLVM's function `name` of two float32; one instruction on vectors, where a comparison and a choice are two."""

    def typed(typing: Any, x: Any, y: Any) -> Any:
        def generate(context: Any, builder: ir.IRBuilder, signature: Any, args: Any) -> Any:
            function = builder.module.declare_intrinsic(name, [_FLOAT], ir.FunctionType(_FLOAT, [_FLOAT, _FLOAT]))
            return builder.call(function, args)

        return types.float32(types.float32, types.float32), generate

    return intrinsic(typed)


_larger = _pairwise("llvm.maxnum")  # of NaN and a number, the number
_smaller = _pairwise("llvm.minnum")
_copysign = _pairwise("llvm.copysign")


def _as_float_typed(typing: Any, bits: Any) -> Any:
    """The float32 of these 32 bits."""

    def generate(context: Any, builder: ir.IRBuilder, signature: Any, args: Any) -> Any:
        return builder.bitcast(args[0], _FLOAT)

    return types.float32(types.uint32), generate


_as_float: Any = intrinsic(_as_float_typed)


def _few_codes(data: Tensor, steps: Tensor, *shape: Any) -> bool:
    """Whether float32 counts them exactly; `shape` has block, low and high somewhere in it."""
    integers = [value for value in shape if isinstance(value, int)]
    return integers[1] + integers[2] < 1 << 23


@jit
def _counted(code: Any) -> Any:
    """2²³ + code, whose bits cost less than a conversion."""
    return _as_float(np.uint32(code) | np.uint32(0x4B000000))


@jit
def _round(x: np.ndarray, inverse: float, low: int, high: int, codes: np.ndarray) -> None:
    bottom, top, shift = np.float32(-low), np.float32(high), np.int32(low)
    for i in range(x.size):
        y = x[i] * inverse
        y += _copysign(np.float32(0.5), y)
        codes[i] = np.int32(np.int32(_smaller(_larger(y, bottom), top)) + shift)


@jit
def _round_randomly(x: np.ndarray, inverse: float, low: int, high: int, halves: np.ndarray, codes: np.ndarray) -> None:
    """A half-word h, and a bit for ½, as the upper mantissa bits of a number in [1, 2); less 1 that is (h + ½)/2¹⁶."""
    bottom, top, shift = np.float32(-low), np.float32(high), np.int32(low)
    for i in range(x.size):
        y = x[i] * inverse
        u = _as_float(np.uint32(halves[i]) << np.uint32(7) | np.uint32(0x3F800040)) - np.float32(1)
        y += _copysign(u, y)
        codes[i] = np.int32(np.int32(_smaller(_larger(y, bottom), top)) + shift)


@jit
def _quantise(
    x: np.ndarray, inverse: np.ndarray, start: int, shape: Shape, random: bool, halves: np.ndarray, codes: np.ndarray
) -> None:
    """Codes of the elements from `start` on of a row."""
    block, low, high, _ = shape
    at = 0
    while at < x.size:
        i = (start + at) // block
        part = slice(at, min((i + 1) * block - start, x.size))
        if random:
            _round_randomly(x[part], inverse[i], low, high, halves[part], codes[part])
        else:
            _round(x[part], inverse[i], low, high, codes[part])
        at = part.stop


@jit
def _dequantise(codes: np.ndarray, step: np.ndarray, start: int, shape: Shape, add: bool, out: np.ndarray) -> None:
    """The values of the codes from element `start` on: written to `out`, or added."""
    block, zero = shape[0], np.float32(2**23 + shape[1])
    at = 0
    while at < codes.size:
        i = (start + at) // block
        end, factor = min((i + 1) * block - start, codes.size), step[i]
        if add:
            for j in range(np.uint64(at), np.uint64(end)):
                out[j] += (_counted(codes[j]) - zero) * factor
        else:
            for j in range(np.uint64(at), np.uint64(end)):
                out[j] = (_counted(codes[j]) - zero) * factor
        at = end


@jit
def _drawn(noise: Noise, position: int, count: int, words: np.ndarray) -> np.ndarray:
    """The half-words of the elements from `position` on."""
    if not noise[0]:
        return words.view(np.uint16)
    position += noise[2]
    draw_quickly(noise[1], position // 2, words[: count // 2 + 1])
    return words.view(np.uint16)[position % 2 :]


@jit
def _encode(
    x: np.ndarray,
    stride: int,
    inverse: np.ndarray,
    shape: Shape,
    noise: Noise,
    packed: np.ndarray,
    codes: np.ndarray,
    first: int,
    last: int,
) -> None:
    numel, width = x.size - (inverse.shape[0] - 1) * stride, shape[3]
    tiles = (numel + TILE - 1) // TILE
    words = np.empty(TILE // 2 + 1, np.uint32)
    for tile in range(first, last):
        row, start = tile // tiles, tile % tiles * TILE
        part = x[row * stride + start : row * stride + min(start + TILE, numel)]
        c = codes[: part.size]
        halves = _drawn(noise, row * numel + start, part.size, words)
        _quantise(part, inverse[row], start, shape, noise[0], halves, c)
        pack_codes(c, width, packed[row, start * width // 8 :])


@jit
def _decode(
    data: np.ndarray,
    stride: int,
    step: np.ndarray,
    shape: Shape,
    out: np.ndarray,
    codes: np.ndarray,
    first: int,
    last: int,
) -> None:
    numel, width = out.shape[1], shape[3]
    tiles = (numel + TILE - 1) // TILE
    for tile in range(first, last):
        row, start = tile // tiles, tile % tiles * TILE
        part = out[row, start : min(start + TILE, numel)]
        c = codes[: part.size]
        unpack_codes(data[row * stride + start * width // 8 :], width, c)
        _dequantise(c, step[row], start, shape, False, part)


@jit
def _add_rows(
    data: np.ndarray, stride: int, step: np.ndarray, start: int, shape: Shape, codes: np.ndarray, out: np.ndarray
) -> None:
    """The sum over the rows of the values from element `start` on."""
    for j in range(out.size):
        out[j] = np.float32(0)
    for row in range(step.shape[0]):
        unpack_codes(data[row * stride + start * shape[3] // 8 :], shape[3], codes[: out.size])
        _dequantise(codes[: out.size], step[row], start, shape, True, out)


@jit
def _decode_sum(
    data: np.ndarray,
    stride: int,
    step: np.ndarray,
    shape: Shape,
    out: np.ndarray,
    codes: np.ndarray,
    first: int,
    last: int,
) -> None:
    for tile in range(first, last):
        start = tile * TILE
        _add_rows(data, stride, step, start, shape, codes, out[start : start + TILE])


@only(_few_codes)
def encode(x: Tensor, inverse: Tensor, block: int, low: int, high: int, noise: Stream | None) -> Tensor:
    (rows, numel), shape = x.shape, _shape(block, low, high)
    packed = torch.empty((rows, -(-numel * shape[3] // 8)), dtype=torch.uint8)
    for part, drawn in _noise(noise, rows):
        common = *flat(x[part]), array(inverse[part]), shape, drawn, packed[part].numpy()
        _encode_rows(common, shape[3], part.stop - part.start, numel)
    return packed


def _encode_rows(common: Any, width: int, rows: int, numel: int) -> None:
    split_rows(lambda first, last: _encode(*common, scratch(width), first, last), rows, numel, TILE)


@only(_few_codes)
def decode(data: Tensor, step: Tensor, block: int, low: int, high: int, numel: int) -> Tensor:
    shape, out = _shape(block, low, high), torch.empty((data.shape[0], numel), dtype=torch.float32)
    common = *flat(data), array(step), shape, out.numpy()
    split_rows(lambda first, last: _decode(*common, scratch(shape[3]), first, last), data.shape[0], numel, TILE)
    return out


@only(_few_codes)
def decode_sum(data: Tensor, step: Tensor, block: int, low: int, high: int, numel: int, groups: int) -> Tensor:
    shape, out = _shape(block, low, high), torch.empty((groups, numel), dtype=torch.float32)
    for total, part, steps in zip(out, data.chunk(groups), step.chunk(groups), strict=True):
        _sum_group((*flat(part), array(steps), shape, total.numpy()), shape[3], numel)
    return out


def _sum_group(common: Any, width: int, numel: int) -> None:
    split_rows(lambda first, last: _decode_sum(*common, scratch(width), first, last), 1, numel, TILE)


def _shape(block: int, low: int, high: int) -> Shape:
    return block, low, high, code_width(low, high)


def _noise(stream: Stream | None, rows: int, each: bool = False) -> Iterator[tuple[slice, Noise]]:
    """What the rows draw, part by part; row by row if `each`."""
    if stream is None:
        size = 1 if each else rows
        yield from ((slice(i, i + size), (False, np.uint64(0), 0)) for i in range(0, rows, max(size, 1)))
    else:
        yield from ((part, (True, np.uint64(key), offset)) for part, key, offset in stream.each(rows))
