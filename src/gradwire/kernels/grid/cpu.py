"""The uniform quantiser, compiled: tile by tile, so that codes and noise stay in the first cache.

Up to 2²³ codes: float32 counts these exactly, so that integers here are what the reference computes in float32.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
import torch
from llvmlite import ir  # type: ignore[import-untyped]
from numba import types
from numba.extending import intrinsic
from torch import Tensor

from gradwire.core.random import Stream
from gradwire.kernels.bitpack.cpu import TILE, array, flat, pack_codes, scratch, unit, unpack_codes
from gradwire.kernels.blockwise.cpu import average, largest
from gradwire.kernels.grid.reference import SMALLEST, code_width
from gradwire.kernels.jit import jit
from gradwire.kernels.parallel import split_rows
from gradwire.kernels.random.cpu import GROUP, draw

Shape: TypeAlias = tuple[int, int, int, int]  # block, low, high, width
Noise: TypeAlias = tuple[bool, Any, int]  # whether there is any, key, offset

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
def _dequantise(codes: np.ndarray, step: np.ndarray, start: int, shape: Shape, sign: int, out: np.ndarray) -> None:
    """The values of the codes from element `start` on: written to `out` if `sign` is 0, else added or taken off."""
    block, zero = shape[0], np.float32(2**23 + shape[1])
    at = 0
    while at < codes.size:
        i = (start + at) // block
        part = slice(at, min((i + 1) * block - start, codes.size))
        c, y, factor = codes[part], out[part], step[i]
        if sign == 0:
            for j in range(c.size):
                y[j] = (_counted(c[j]) - zero) * factor
        elif sign > 0:
            for j in range(c.size):
                y[j] += (_counted(c[j]) - zero) * factor
        else:
            for j in range(c.size):
                y[j] -= (_counted(c[j]) - zero) * factor
        at = part.stop


@jit
def _drawn(noise: Noise, position: int, count: int, words: np.ndarray) -> np.ndarray:
    """The half-words of the elements from `position` on."""
    if not noise[0]:
        return words.view(np.uint16)
    position += noise[2]
    skip = draw(noise[1], position // 2, count // 2 + 1, words)
    return words.view(np.uint16)[2 * skip + position % 2 :]


@jit
def _encode(
    x: np.ndarray,
    stride: int,
    inverse: np.ndarray,
    step: np.ndarray,
    shape: Shape,
    noise: Noise,
    packed: np.ndarray,
    own: np.ndarray,
    codes: np.ndarray,
    first: int,
    last: int,
) -> None:
    numel, width = x.size - (inverse.shape[0] - 1) * stride, shape[3]
    tiles = (numel + TILE - 1) // TILE
    words = np.empty(TILE // 2 + 1 + 2 * GROUP, np.uint32)
    for tile in range(first, last):
        row, start = tile // tiles, tile % tiles * TILE
        part = x[row * stride + start : row * stride + min(start + TILE, numel)]
        c = codes[: part.size]
        halves = _drawn(noise, row * numel + start, part.size, words)
        _quantise(part, inverse[row], start, shape, noise[0], halves, c)
        pack_codes(c, width, packed[row, start * width // 8 :])
        if own.size:
            _dequantise(c, step[row], start, shape, 0, own[row, start : start + part.size])


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
        _dequantise(c, step[row], start, shape, 0, part)


@jit
def _add_rows(
    data: np.ndarray, stride: int, step: np.ndarray, start: int, shape: Shape, codes: np.ndarray, out: np.ndarray
) -> None:
    """The sum over the rows of the values from element `start` on."""
    for j in range(out.size):
        out[j] = np.float32(0)
    for row in range(step.shape[0]):
        unpack_codes(data[row * stride + start * shape[3] // 8 :], shape[3], codes[: out.size])
        _dequantise(codes[: out.size], step[row], start, shape, 1, out)


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


@jit
def _reduce_and_encode(
    data: np.ndarray,
    stride: int,
    step: np.ndarray,
    shape: Shape,
    noise: Noise,
    carry: np.ndarray,
    packed: np.ndarray,
    scales: np.ndarray,
    lost: np.ndarray,
    numel: int,
    size: int,
    codes: np.ndarray,
    first: int,
    last: int,
) -> None:
    """`size` elements at a time: whole blocks, and whole bytes of codes."""
    block, _, high, width = shape
    room = np.empty(0 if lost.size else min(size, numel), np.float32)
    inverse, again = np.empty(scales.size, np.float32), np.empty(scales.size, np.float32)
    words = np.empty(TILE // 2 + 1 + 2 * GROUP, np.uint32)
    for begin in range(first * size, min(last * size, numel), size):
        end = min(begin + size, numel)
        mean = lost[begin:end] if lost.size else room[: end - begin]
        for start in range(begin, end, TILE):
            part = mean[start - begin : start - begin + TILE]
            _add_rows(data, stride, step, start, shape, codes, part)
            average(part, step.shape[0], carry[start : start + part.size])
        bits = mean.view(np.uint32)
        for i in range(begin // block, (end + block - 1) // block):
            scales.view(np.uint32)[i] = largest(bits[i * block - begin : (i + 1) * block - begin])
            scale = np.float32(SMALLEST * high) if scales[i] < np.float32(SMALLEST * high) else scales[i]
            scales[i], inverse[i], again[i] = scale, np.float32(1) / scale * np.float32(high), scale / np.float32(high)
        for start in range(begin, end, TILE):
            part = mean[start - begin : start - begin + TILE]
            c = codes[: part.size]
            halves = _drawn(noise, start, part.size, words)
            _quantise(part, inverse, start, shape, noise[0], halves, c)
            pack_codes(c, width, packed[start * width // 8 :])
            if lost.size:
                _dequantise(c, again, start, shape, -1, part)


def encode(x: Tensor, inverse: Tensor, block: int, low: int, high: int, noise: Stream | None) -> Tensor:
    return _encoded(x, inverse, inverse, block, low, high, noise, x.new_empty((0, 0)))


def encode_own(
    x: Tensor, inverse: Tensor, step: Tensor, block: int, low: int, high: int, noise: Stream | None
) -> tuple[Tensor, Tensor]:
    own = torch.empty_like(x, memory_format=torch.contiguous_format)
    return _encoded(x, inverse, step, block, low, high, noise, own), own


def _encoded(
    x: Tensor, inverse: Tensor, step: Tensor, block: int, low: int, high: int, noise: Stream | None, own: Tensor
) -> Tensor:
    (rows, numel), shape = x.shape, _shape(block, low, high)
    packed = torch.empty((rows, -(-numel * shape[3] // 8)), dtype=torch.uint8)
    source, stride = flat(x)
    common = array(inverse), array(step), shape, _noise(noise), packed.numpy(), own.numpy()

    def work(first: int, last: int) -> None:
        _encode(source, stride, *common, scratch(shape[3]), first, last)

    split_rows(work, rows, numel, TILE)
    return packed


def decode(data: Tensor, step: Tensor, block: int, low: int, high: int, numel: int) -> Tensor:
    shape, out = _shape(block, low, high), torch.empty((data.shape[0], numel), dtype=torch.float32)
    common = *flat(data), array(step), shape, out.numpy()
    split_rows(lambda first, last: _decode(*common, scratch(shape[3]), first, last), data.shape[0], numel, TILE)
    return out


def decode_sum(data: Tensor, step: Tensor, block: int, low: int, high: int, numel: int) -> Tensor:
    shape, out = _shape(block, low, high), torch.empty((1, numel), dtype=torch.float32)
    common = *flat(data), array(step), shape, out.view(-1).numpy()
    split_rows(lambda first, last: _decode_sum(*common, scratch(shape[3]), first, last), 1, numel, TILE)
    return out


def reduce_and_encode(
    data: Tensor,
    step: Tensor,
    block: int,
    low: int,
    high: int,
    numel: int,
    carry: Tensor | None,
    noise: Stream | None,
    keep_lost: bool,
) -> tuple[Tensor, Tensor, Tensor | None]:
    shape, blocks = _shape(block, low, high), -(-numel // block)
    packed = torch.empty((1, -(-numel * shape[3] // 8)), dtype=torch.uint8)
    scales, lost = (torch.empty((1, n), dtype=torch.float32) for n in (blocks, numel if keep_lost else 0))
    added = np.empty(0, np.float32) if carry is None else array(carry).reshape(-1)
    results = packed.view(-1).numpy(), scales.view(-1).numpy(), lost.view(-1).numpy()
    common = *flat(data), array(step), shape, _noise(noise), added, *results, numel
    size = unit(block, numel)
    split_rows(lambda first, last: _reduce_and_encode(*common, size, scratch(shape[3]), first, last), 1, numel, size)
    return packed, scales, lost if keep_lost else None


def _shape(block: int, low: int, high: int) -> Shape:
    return block, low, high, code_width(low, high)


def _noise(stream: Stream | None) -> Noise:
    return (False, np.uint64(0), 0) if stream is None else (True, np.uint64(stream.key), stream.offset)
