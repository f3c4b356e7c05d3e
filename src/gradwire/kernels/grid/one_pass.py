"""The uniform quantiser in one pass over memory, compiled: gradients are read, and results written, where they lie."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gradwire.core.random import Stream
from gradwire.core.window import Feedback, Flag, Window, nonfinite_flag
from gradwire.kernels.bitpack.cpu import TILE, array, flat, pack_codes, unpack_codes
from gradwire.kernels.blockwise.cpu import WIDTH, average, fold_room, folded, largest
from gradwire.kernels.grid.cpu import (
    Noise,
    RuleArray,
    _as_float,
    _copysign,
    _dequantise,
    _drawn,
    _larger,
    _noise,
    _smaller,
)
from gradwire.kernels.grid.reference import SMALLEST, Rule, code_width, split
from gradwire.kernels.jit import jit
from gradwire.kernels.parallel import split_rows
from gradwire.kernels.rows import join
from gradwire.kernels.trits.cpu import pack_trits, unpack_trits
from gradwire.kernels.window.cpu import Memory, Spans, each_worker, load, memory_of, spans_of, store
from gradwire.kernels.workspace import room


@jit
def _scale(a: np.ndarray, block: int, high: int, clip: Any, sigma: Any, scales: np.ndarray, fold: np.ndarray) -> None:
    """The scale of each block: see `Rule`."""
    least, bits, best = np.float32(SMALLEST * high), a.view(np.uint32), scales.view(np.uint32)
    for i in range(scales.size):
        best[i] = largest(bits[i * block : (i + 1) * block])
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


def reduce_and_encode(
    data: Tensor,
    rule: Rule,
    numel: int,
    feedback: Feedback | None,
    noise: Stream | None,
    groups: int,
    factor: float,
    owner: str,
) -> Tensor:
    scales, received = split(data, rule, numel)
    packed = torch.empty((groups, rule.code_bytes(numel)), dtype=torch.uint8)
    found = torch.empty((groups, -(-numel // rule.block)), dtype=torch.float32)
    size, parts, steps = _tile(rule, numel), received.chunk(groups), (scales / rule.high).chunk(groups)
    for rows, drawn in _noise(noise, groups, each=True):
        g = rows.start
        (carry, decay, _), lost = memory_of(feedback, g)
        common = *flat(parts[g]), array(steps[g]), _array(rule), drawn, np.float32(factor), carry, decay
        results = packed[g].numpy(), found[g].numpy(), lost
        _reduce_group((*common, *results, numel), _codes(rule, size), numel, size)
    return join(found, packed, owner=owner)


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
) -> Tensor:
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
    return join(scales, packed, owner=owner)


def decode_to(data: Tensor, rule: Rule, shard: int, target: Window, factor: float) -> Flag:
    (scales, packed), size = split(data, rule, shard), _tile(rule, shard)
    values = *flat(packed), array(scales), _array(rule), shard, np.float32(factor)
    common, codes = (*values, target.buffer[0].numpy(), spans_of(target)), _codes(rule, size)
    split_rows(lambda first, last: _decode_to(*common, codes(), size, first, last), data.shape[0], shard, size)
    return nonfinite_flag(scales)


def combine_to(data: Tensor, rule: Rule, target: Window, factor: float) -> Flag:
    size, numel = _tile(rule, target.numel), target.numel
    scales, packed = split(data, rule, numel)
    values = *flat(packed), array(scales / rule.high), _array(rule), numel, np.float32(factor)
    common, codes = (*values, target.buffer[0].numpy(), spans_of(target)), _codes(rule, size)
    split_rows(lambda first, last: _combine_to(*common, codes(), size, first, last), 1, numel, size)
    return nonfinite_flag(scales)


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
