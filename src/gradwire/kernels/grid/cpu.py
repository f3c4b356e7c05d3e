"""The uniform quantiser, compiled: tile by tile, so that codes and noise stay in the first cache.

Up to 2²³ codes: float32 counts these exactly, so that integers here are what the reference computes in float32.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

import numpy as np
import torch
from llvmlite import ir  # type: ignore[import-untyped]
from numba import types
from numba.extending import intrinsic
from torch import Tensor

from gradwire.core.random import Stream
from gradwire.core.window import Feedback, Window
from gradwire.kernels.backend import only
from gradwire.kernels.bitpack.cpu import TILE, array, flat, pack_codes, scratch, unpack_codes
from gradwire.kernels.blockwise.cpu import WIDTH, average, fold_room, folded
from gradwire.kernels.grid.reference import SMALLEST, Rule, code_width
from gradwire.kernels.jit import jit
from gradwire.kernels.parallel import split_rows
from gradwire.kernels.random.cpu import draw_quickly
from gradwire.kernels.trits.cpu import pack_trits, unpack_trits
from gradwire.kernels.window.cpu import Memory, Spans, each_worker, load, memory_of, spans_of, store
from gradwire.kernels.workspace import room

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
    words = np.empty(TILE // 2 + 1, np.uint32)
    for tile in range(first, last):
        row, start = tile // tiles, tile % tiles * TILE
        part = x[row * stride + start : row * stride + min(start + TILE, numel)]
        c = codes[: part.size]
        halves = _drawn(noise, row * numel + start, part.size, words)
        _quantise(part, inverse[row], start, shape, noise[0], halves, c)
        pack_codes(c, width, packed[row, start * width // 8 :])
        if own.size:
            _dequantise(c, step[row], start, shape, False, own[row, start : start + part.size])


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


@jit
def _scale(a: np.ndarray, block: int, high: int, clip: Any, sigma: Any, scales: np.ndarray, fold: np.ndarray) -> None:
    """The scale of each block: see `Rule`."""
    least, bits, best = np.float32(SMALLEST * high), a.view(np.uint32), scales.view(np.uint32)
    for i in range(scales.size):
        top = np.uint32(0)
        for j in range(np.uint64(i * block), np.uint64(min((i + 1) * block, a.size))):
            top = max(top, bits[j] & np.uint32(0x7FFFFFFF))
        best[i] = top
        scale = scales[i] * clip
        scale = least if scale < least else scale
        if sigma > np.float32(0):
            scale *= _spread(a[i * block : (i + 1) * block], scale, sigma, fold)
            scale = least if scale < least else scale
        scales[i] = scale


@jit
def _spread(part: np.ndarray, top: Any, sigma: Any, fold: np.ndarray) -> Any:
    """min(1, sigma times the root mean square of the elements other than zero, in units of `top`)."""
    shares, count = fold[1, : part.size], np.float32(0)
    for i in range(part.size):
        shares[i] = part[i] / top
    for i in range(part.size):
        count += np.float32(part[i] != 0)
    mean = folded(shares, 2, fold[2:]) / max(count, np.float32(1))
    share = np.sqrt(mean) * sigma
    return np.float32(1) if share > np.float32(1) else share


@jit
def _pack(codes: np.ndarray, width: int, start: int, out: np.ndarray) -> None:
    """Codes from element `start` of a row on; of width 0, five in a byte."""
    if width == 0:
        pack_trits(codes, out[start // 5 :])
    else:
        pack_codes(codes, width, out[start * width // 8 :])


@jit
def _unpack(data: np.ndarray, width: int, start: int, codes: np.ndarray) -> None:
    if width == 0:
        unpack_trits(data[start // 5 :], codes)
    else:
        unpack_codes(data[start * width // 8 :], width, codes)


@jit
def _encode_tile(
    a: np.ndarray,
    start: int,
    rule: RuleArray,
    scales: np.ndarray,
    halves: np.ndarray,
    random: bool,
    factor: Any,
    codes: np.ndarray,
    packed: np.ndarray,
    fold: np.ndarray,
) -> None:
    """Scales and codes of the elements `a`, whole blocks from element `start` of a row on; `a` becomes what is lost.

    The loops over blocks are written out: a call, or a slice, for each block costs as much as its work. Unsigned
    counters spare a test for negative ones.
    """
    block, low, high, width, clip, sigma = rule
    bottom, top, shift = np.float32(-low), np.float32(high), np.int32(low)
    scale = scales[start // block : (start + a.size + block - 1) // block]
    _scale(a, block, high, clip, sigma, scale, fold)
    if random:
        for j in range(scale.size):
            inverse, step = np.float32(1) / scale[j] * np.float32(high), scale[j] / np.float32(high)
            for i in range(np.uint64(j * block), np.uint64(min((j + 1) * block, a.size))):
                y = a[i] * inverse
                u = _as_float(np.uint32(halves[i]) << np.uint32(7) | np.uint32(0x3F800040)) - np.float32(1)
                code = np.int32(_smaller(_larger(y + _copysign(u, y), bottom), top))
                codes[i] = np.int32(code + shift)
                a[i] -= np.float32(code) * step * factor
    else:
        for j in range(scale.size):
            inverse, step = np.float32(1) / scale[j] * np.float32(high), scale[j] / np.float32(high)
            for i in range(np.uint64(j * block), np.uint64(min((j + 1) * block, a.size))):
                y = a[i] * inverse
                code = np.int32(_smaller(_larger(y + _copysign(np.float32(0.5), y), bottom), top))
                codes[i] = np.int32(code + shift)
                a[i] -= np.float32(code) * step * factor
    _pack(codes[: a.size], width, start, packed)


@jit
def _encode_from(
    x: np.ndarray,
    spans: Spans,
    memory: Memory,
    out: np.ndarray,
    factor: Any,
    shard: int,
    rule: RuleArray,
    noise: Noise,
    scales: np.ndarray,
    packed: np.ndarray,
    codes: np.ndarray,
    size: int,
    first: int,
    last: int,
) -> None:
    """One read of the gradient and of its error: scales, codes and the new error, `size` elements at a time."""
    parts = (shard + size - 1) // size
    tile, words, fold = np.empty(size, np.float32), np.empty(size // 2 + 1, np.uint32), _fold_room(rule, size)
    for i in range(first, last):
        row, start = i // parts, i % parts * size
        position, a = row * shard + start, tile[: min(size, shard - start)]
        load(x, spans, memory, position, a)
        halves = _drawn(noise, position, a.size, words)
        _encode_tile(a, start, rule, scales[row], halves, noise[0], factor, codes, packed[row], fold)
        for j in range(np.uint64(max(0, min(a.size, out.size - position)))):
            out[np.uint64(position) + j] = a[j]


@jit
def _fold_room(rule: RuleArray, size: int) -> np.ndarray:
    """Room for the sums of `_spread`: shares, and what they fold in."""
    if rule[5] > np.float32(0):
        return np.empty((2 + fold_room(rule[0]).shape[0], max(WIDTH, rule[0])), np.float32)
    return np.empty((3, 1), np.float32)


@jit
def _decode_to(
    data: np.ndarray,
    stride: int,
    scales: np.ndarray,
    rule: RuleArray,
    shard: int,
    factor: Any,
    x: np.ndarray,
    spans: Spans,
    codes: np.ndarray,
    size: int,
    first: int,
    last: int,
) -> None:
    """The values of the rows, shards of one vector, to where they belong."""
    parts, values = (shard + size - 1) // size, np.empty(size, np.float32)
    step, shape = np.empty(scales.shape[1], np.float32), (rule[0], rule[1], rule[2], rule[3])
    for tile in range(first, last):
        row, start = tile // parts, tile % parts * size
        count = min(size, shard - start)
        for j in range(start // rule[0], (start + count + rule[0] - 1) // rule[0]):
            step[j] = scales[row, j] / np.float32(rule[2])
        _unpack(data[row * stride :], rule[3], start, codes[:count])
        _dequantise(codes[:count], step, start, shape, False, values[:count])
        store(values[:count], factor, x, spans, row * shard + start)


@jit
def _mean_of_rows(
    data: np.ndarray,
    stride: int,
    step: np.ndarray,
    rule: RuleArray,
    start: int,
    factor: Any,
    carry: np.ndarray,
    decay: Any,
    codes: np.ndarray,
    part: np.ndarray,
) -> None:
    """The mean over the rows of the values from element `start` on, times `factor`, plus what was carried."""
    for j in range(part.size):
        part[j] = np.float32(0)
    shape = (rule[0], rule[1], rule[2], rule[3])
    for row in range(step.shape[0]):
        _unpack(data[row * stride :], rule[3], start, codes[: part.size])
        _dequantise(codes[: part.size], step[row], start, shape, True, part)
    average(part, step.shape[0], factor, carry, decay)


@jit
def _combine_to(
    data: np.ndarray,
    stride: int,
    step: np.ndarray,
    rule: RuleArray,
    numel: int,
    factor: Any,
    x: np.ndarray,
    spans: Spans,
    codes: np.ndarray,
    size: int,
    first: int,
    last: int,
) -> None:
    """The mean of the rows to where it belongs."""
    values, nothing = np.empty(size, np.float32), np.empty(0, np.float32)
    for start in range(first * size, min(last * size, numel), size):
        part = values[: min(size, numel - start)]
        _mean_of_rows(data, stride, step, rule, start, np.float32(1), nothing, np.float32(1), codes, part)
        store(part, factor, x, spans, start)


@jit
def _reduce_and_encode(
    data: np.ndarray,
    stride: int,
    step: np.ndarray,
    rule: RuleArray,
    noise: Noise,
    factor: Any,
    carry: np.ndarray,
    decay: Any,
    packed: np.ndarray,
    scales: np.ndarray,
    lost: np.ndarray,
    numel: int,
    codes: np.ndarray,
    size: int,
    first: int,
    last: int,
) -> None:
    """`size` elements at a time: whole blocks, and whole bytes of codes."""
    tile, words, fold = np.empty(size, np.float32), np.empty(size // 2 + 1, np.uint32), _fold_room(rule, size)
    for start in range(first * size, min(last * size, numel), size):
        a = tile[: min(size, numel - start)]
        kept = carry[min(start, carry.size) : min(start + a.size, carry.size)]
        _mean_of_rows(data, stride, step, rule, start, factor, kept, decay, codes, a)
        halves = _drawn(noise, start, a.size, words)
        _encode_tile(a, start, rule, scales, halves, noise[0], factor, codes, packed, fold)
        for j in range(np.uint64(max(0, min(a.size, lost.size - start)))):
            lost[np.uint64(start) + j] = a[j]


@only(_few_codes)
def encode(x: Tensor, inverse: Tensor, block: int, low: int, high: int, noise: Stream | None) -> Tensor:
    return _encoded(x, inverse, inverse, block, low, high, noise, x.new_empty((0, 0)))


@only(_few_codes)
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
    for part, drawn in _noise(noise, rows):
        source, stride = flat(x[part])
        common = array(inverse[part]), array(step[part]), shape, drawn, packed[part].numpy(), own[part].numpy()
        _encode_rows(source, stride, common, shape[3], part.stop - part.start, numel)
    return packed


def _encode_rows(source: np.ndarray, stride: int, common: Any, width: int, rows: int, numel: int) -> None:
    def work(first: int, last: int) -> None:
        _encode(source, stride, *common, scratch(width), first, last)

    split_rows(work, rows, numel, TILE)


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


def reduce_and_encode(
    data: Tensor,
    scales: Tensor,
    rule: Rule,
    numel: int,
    feedback: Feedback | None,
    noise: Stream | None,
    groups: int,
    factor: float,
) -> tuple[Tensor, Tensor]:
    packed = torch.empty((groups, rule.code_bytes(numel)), dtype=torch.uint8)
    found = torch.empty((groups, -(-numel // rule.block)), dtype=torch.float32)
    size, parts, steps = _tile(rule, numel), data.chunk(groups), (scales / rule.high).chunk(groups)
    for rows, drawn in _noise(noise, groups, each=True):
        g = rows.start
        (carry, decay, _), lost = memory_of(feedback, g)
        common = *flat(parts[g]), array(steps[g]), _array(rule), drawn, np.float32(factor), carry, decay
        results = packed[g].numpy(), found[g].numpy(), lost
        _reduce_group((*common, *results, numel), _codes(rule, size), numel, size)
    return packed, found


def _reduce_group(common: Any, codes: Callable[[], np.ndarray], numel: int, size: int) -> None:
    split_rows(lambda first, last: _reduce_and_encode(*common, codes(), size, first, last), 1, numel, size)


def encode_from(
    source: Window,
    feedback: Feedback | None,
    shards: int,
    shard: int,
    rule: Rule,
    noise: Stream | None,
    factor: float,
    owner: str,
) -> tuple[Tensor, Tensor]:
    rows, size = source.rows * shards, _tile(rule, shard)
    scales = room(owner, "scales", (rows, -(-shard // rule.block)), torch.float32)
    packed = room(owner, "codes", (rows, rule.code_bytes(shard)), torch.uint8)
    codes, drawn = _codes(rule, size), list(_noise(noise, source.rows, each=True))

    def work(row: int, *worker: Any) -> Any:
        mine = slice(row * shards, (row + 1) * shards)
        common = (
            *worker,
            np.float32(factor),
            shard,
            _array(rule),
            drawn[row][1],
            scales[mine].numpy(),
            packed[mine].numpy(),
        )
        return lambda first, last: _encode_from(*common, codes(), size, first, last)

    each_worker(source, feedback, shards, shard, size, work)
    return scales, packed


def decode_to(data: Tensor, scales: Tensor, rule: Rule, shard: int, target: Window, factor: float) -> None:
    size = _tile(rule, shard)
    values = *flat(data), array(scales), _array(rule), shard, np.float32(factor)
    common, codes = (*values, target.buffer[0].numpy(), spans_of(target)), _codes(rule, size)
    split_rows(lambda first, last: _decode_to(*common, codes(), size, first, last), data.shape[0], shard, size)


def combine_to(data: Tensor, scales: Tensor, rule: Rule, target: Window, factor: float) -> None:
    size, numel = _tile(rule, target.numel), target.numel
    values = *flat(data), array(scales / rule.high), _array(rule), numel, np.float32(factor)
    common, codes = (*values, target.buffer[0].numpy(), spans_of(target)), _codes(rule, size)
    split_rows(lambda first, last: _combine_to(*common, codes(), size, first, last), 1, numel, size)


def _array(rule: Rule) -> RuleArray:
    width = 0 if rule.trits else code_width(rule.low, rule.high)
    return rule.block, rule.low, rule.high, width, np.float32(rule.clip), np.float32(rule.sigma)


def _tile(rule: Rule, numel: int) -> int:
    """Elements at a time: whole blocks, whole bytes of codes, and about a tile if possible."""
    whole = math.lcm(rule.block, 40 if rule.trits else 8)
    return max(8, min(whole * max(1, TILE // 2 // whole), -(-numel // 40) * 40))


def _codes(rule: Rule, size: int) -> Callable[[], np.ndarray]:
    """What makes room for the codes of a tile."""
    kind = np.uint8 if code_width(rule.low, rule.high) <= 8 else np.uint32
    return lambda: np.empty(size, kind)


def _shape(block: int, low: int, high: int) -> Shape:
    return block, low, high, code_width(low, high)


def _noise(stream: Stream | None, rows: int, each: bool = False) -> Iterator[tuple[slice, Noise]]:
    """What the rows draw, part by part; row by row if `each`."""
    if stream is None:
        size = 1 if each else rows
        yield from ((slice(i, i + size), (False, np.uint64(0), 0)) for i in range(0, rows, max(size, 1)))
    else:
        yield from ((part, (True, np.uint64(key), offset)) for part, key, offset in stream.each(rows))
