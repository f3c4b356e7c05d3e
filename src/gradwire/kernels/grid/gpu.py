"""The uniform quantiser on a GPU: gradients are read, and results written, where they lie, in one launch each.

A program treats a tile of whole blocks, see `blockwise.gpu`. Kernels read and write payloads as they travel: a scale
for each block, then the codes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from gradwire.core.random import Stream
from gradwire.core.window import Feedback, Flag, Window
from gradwire.kernels.backend import only
from gradwire.kernels.bitpack.gpu import load_codes, load_float, store_codes, store_float, words_of
from gradwire.kernels.blockwise.gpu import (
    LARGEST,
    abs_max,
    block_tile,
    blocks_in_tile,
    columns_of,
    folded,
    folding_warps,
    shares,
    warps_of,
)
from gradwire.kernels.grid.reference import SMALLEST, Rule, Turn, code_width
from gradwire.kernels.hadamard.gpu import flipped, heads, transformed
from gradwire.kernels.hadamard.reference import root_of
from gradwire.kernels.launch import launch
from gradwire.kernels.random.gpu import half, halves, keys_of
from gradwire.kernels.trits.gpu import load_trits, pack_to
from gradwire.kernels.window.gpu import compensated, divided, keep, keep_there, put_checked, take_compensated, tile_of
from gradwire.kernels.window.places import memory_of, place_of


class Payload(NamedTuple):
    """Rows as they travel."""

    data: Tensor
    stride: int
    start: int  # of the codes in a row
    size: int  # bytes of the codes
    words: int | None  # see `bitpack.gpu`
    codes: Tensor | None  # of trits, before they are packed: their bytes do not end with blocks. Rows of whole tiles
    codes_stride: int = 0


class Numbers(NamedTuple):
    """Of a rule."""

    least: float
    clip: float | None
    sigma: float | None
    factor: float


class Turned(NamedTuple):
    """How runs are rotated before they are quantised: the signs of each worker, and what keeps the length."""

    keys: Tensor | None  # None: not at all
    offsets: Tensor | None
    scale: float
    fours: int | None  # None unless tiles begin with whole blocks of four random words


@triton.jit
def _scale(a, numbers, rows: tl.constexpr, columns: tl.constexpr, levels: tl.constexpr):
    """The scale of each block of a tile, zero where there is nothing: see `Rule`."""
    least, clip, sigma, _ = numbers
    scale = abs_max(a)
    if clip is not None:
        scale = scale * clip
    scale = tl.where(scale < least, least, scale)  # NaN stays
    if sigma is not None:
        share = shares(a, scale)  # of those that are about right only, squares vanish
        squares = folded(share * share, rows, columns, levels)
        count = tl.sum((a != 0).to(tl.int32), 1).to(tl.float32)
        share = tl.sqrt_rn(tl.div_rn(squares, tl.where(count < 1.0, 1.0, count))) * sigma
        scale = scale * tl.where(share > 1.0, 1.0, share)
        scale = tl.where(scale < least, least, scale)
    return scale


@triton.jit
def _coins(turn, worker, first, shape: tl.constexpr):
    """Of the rotation, if there is one, of a tile whose first element stands at `first` of its worker's vector."""
    keys, offsets, _, fours = turn
    rows: tl.constexpr = shape[1]
    columns: tl.constexpr = shape[2]
    if keys is None:
        return tl.zeros((rows, columns), tl.int1)
    else:
        return heads(tl.load(keys + worker), first + tl.load(offsets + worker), fours, shape[1], shape[2])


@triton.jit
def _rotated(a, coins, turn, shape: tl.constexpr):
    """A tile, as it is quantised."""
    if turn[0] is None:
        return a
    else:
        return transformed(flipped(a, coins), turn[2], shape[1], shape[2], shape[7], shape[8])


@triton.jit
def _rotated_back(a, coins, turn, shape: tl.constexpr):
    if turn[0] is None:
        return a
    else:
        return flipped(transformed(a, turn[2], shape[1], shape[2], shape[7], shape[8]), coins)


@triton.jit
def _encoded(
    a, live, blocks, element, numel, noise, turn, worker, shard, shift, payload, row, numbers, shape: tl.constexpr
):
    """Scales and codes of the tile `a`, to a row of the payload; returns what is lost.

    Element `element` of the row stands at `shift` + `element` of its worker's vector. Before it there are `shard` rows
    of `numel` random numbers.
    """
    block: tl.constexpr = shape[0]
    rows: tl.constexpr = shape[1]
    columns: tl.constexpr = shape[2]
    low: tl.constexpr = shape[4]
    high: tl.constexpr = shape[5]
    data, stride, start, size, words, codes, codes_stride = payload
    keys, offsets = noise
    data += row.to(tl.int64) * stride
    coins = _coins(turn, worker, shift + tl.min(tl.min(element, 1), 0), shape)
    x = _rotated(a, coins, turn, shape)
    scale = _scale(x, numbers, rows, columns, shape[3])
    one = tl.full((rows,), 1.0, tl.float32)
    inverse = tl.div_rn(one, scale) * high
    step = tl.div_rn(scale, one * high)
    store_float(data, blocks, scale, blocks * block < numel, words)
    y = x * inverse[:, None]
    if keys is None:
        code = tl.floor(tl.abs(y) + 0.5)
    elif block == columns:
        first = (shard * numel + tl.min(blocks, 0) * block).to(tl.int64) + tl.load(offsets + worker)
        code = tl.floor(tl.abs(y) + halves(tl.load(keys + worker), first, rows, columns))
    else:
        place = (shard * numel + element).to(tl.int64) + tl.load(offsets + worker)
        code = tl.floor(tl.abs(y) + half(tl.load(keys + worker), place))
    sign = y.to(tl.int32, bitcast=True) & -0x80000000
    code = (code.to(tl.int32, bitcast=True) | sign).to(tl.float32, bitcast=True)
    code = tl.maximum(tl.minimum(code, high), -low) + low
    code = tl.where(y == y, code, 0.0)
    if codes is None:
        stored = tl.where(live, code, 0.0).to(tl.int32)
        store_codes(data + start, stored, blocks, size, words, block, rows, columns, shape[6])
    elif block == columns:
        tl.store(codes + row.to(tl.int64) * codes_stride + element, code.to(tl.uint8))
    else:
        tl.store(codes + row.to(tl.int64) * codes_stride + element, code.to(tl.uint8), mask=live)
    value = _rotated_back((code - low) * step[:, None], coins, turn, shape)
    return a - value * numbers[3]


@triton.jit
def _mean(payload, first, senders, blocks, numel, shape: tl.constexpr):
    """The mean of a tile over `senders` rows of a payload, first to last."""
    block: tl.constexpr = shape[0]
    rows: tl.constexpr = shape[1]
    columns: tl.constexpr = shape[2]
    data, stride, start, size, words, _, _ = payload
    data += first.to(tl.int64) * stride
    total = tl.zeros((rows, columns), tl.float32)
    for _ in range(senders):
        scale = load_float(data, blocks, blocks * block < numel, words)
        step = tl.div_rn(scale, tl.full((rows,), 1.0, tl.float32) * shape[5])
        if shape[6] == 0:
            code = load_trits(data + start, blocks, size, block, rows, columns)
        else:
            code = load_codes(data + start, blocks, size, words, block, rows, columns, shape[6])
        total += (code - shape[4]).to(tl.float32) * step[:, None]
        data += stride
    return divided(total, senders)


@triton.jit
def _encode_from(place, memory, noise, turn, payload, coded, numbers, shape: tl.constexpr):
    worker, shard, tile, row = tile_of(place)
    blocks, element, live = block_tile(tile, coded, shape[0], shape[1], shape[2])
    size: tl.constexpr = shape[0] * shape[1]
    a, there = take_compensated(place, memory, worker, shard, tile, element, live, size)
    shift = shard * place[4]
    lost = _encoded(a, live, blocks, element, coded, noise, turn, worker, shard, shift, payload, row, numbers, shape)
    keep_there(lost, memory, worker, there)


@triton.jit
def _reduce_and_encode(
    received, senders, up, memory, noise, down, payload, numel, coded, tiles, numbers, shape: tl.constexpr
):
    group, tile = tl.program_id(0) // tiles, tl.program_id(0) % tiles
    blocks, element, live = block_tile(tile, coded, shape[0], shape[1], shape[2])
    inside = live & (element < numel)
    mean = _mean(received, group * senders, senders, blocks, coded, shape)
    mean = _rotated_back(mean, _coins(up, group, tile * shape[0] * shape[1], shape), up, shape)
    a = compensated(tl.where(inside, mean * numbers[3], 0.0), memory, group, element, inside)
    lost = _encoded(a, live, blocks, element, coded, noise, down, group, 0, 0, payload, group, numbers, shape)
    keep(lost, memory, group, element, inside)


@triton.jit
def _mean_to(payload, senders, turn, place, coded, flag, factor, shape: tl.constexpr):
    """The mean of the rows of each group, shards of one vector, to where it belongs."""
    worker, shard, tile, row = tile_of(place)
    blocks, element, live = block_tile(tile, coded, shape[0], shape[1], shape[2])
    mean = _mean(payload, row * senders, senders, blocks, coded, shape)
    coins = _coins(turn, worker, shard * place[4] + tile * shape[0] * shape[1], shape)
    mean = _rotated_back(mean, coins, turn, shape)
    put_checked(mean * factor, place, worker, shard, tile, element, live, flag, shape[0] * shape[1])


def serves(rule: Rule, turn: Turn | None = None) -> bool:
    """Whether kernels here can treat blocks of a rule: they fill whole bytes, and fit into a program.

    With rotation, blocks have no columns that do not count, and begin with whole words of coins.
    """
    width = code_width(rule.low, rule.high)
    fits = rule.block <= LARGEST and (rule.trits or (width <= 8 and rule.block * width % 8 == 0))
    if turn is None:
        return fits
    whole = rule.block == columns_of(rule.block) and rule.block % 32 == 0 and rule.block % turn.run == 0
    return fits and whole and all(offset % 32 == 0 for offset in turn.signs.offsets)


def encode_from(
    source: Window,
    feedback: Feedback | None,
    shards: int,
    shard: int,
    rule: Rule,
    noise: Stream | None,
    factor: float,
    owner: str,
    turn: Turn | None = None,
) -> Tensor:
    device, shape, coded = source.buffer.device, _shape(rule, shard, turn), _coded(shard, turn)
    place = place_of(source, shards, shard, shape[0], shape[1])
    payload, turned = (
        _room(rule, source.rows * shards, coded, shape, device),
        _turned(turn, source.rows, shape, shard, device),
    )
    args = place, memory_of(feedback), keys_of(noise, source.rows, device), turned, payload, coded
    launch(
        _encode_from,
        source.rows * shards * place.tiles,
        device,
        *args,
        _numbers(rule, factor),
        shape=shape,
        warps=_warps(rule, shape),
    )
    return _packed(payload, coded)


def decode_to(data: Tensor, rule: Rule, shard: int, target: Window, factor: float, turn: Turn | None = None) -> Flag:
    return _to(data, 1, rule, shard, target, factor, turn)


def combine_to(data: Tensor, rule: Rule, target: Window, factor: float, turn: Turn | None = None) -> Flag:
    return _to(data, data.shape[0], rule, target.numel, target, factor, turn)


def _to(data: Tensor, senders: int, rule: Rule, shard: int, target: Window, factor: float, turn: Turn | None) -> Flag:
    device, shape, groups = target.buffer.device, _shape(rule, shard, turn), data.shape[0] // senders
    place, flag = place_of(target, groups, shard, shape[0], shape[1]), torch.zeros((), device=device)
    coded = _coded(shard, turn)
    args = _given(data, rule, coded), senders, _turned(turn, 1, shape, shard, device), place, coded, flag, factor
    warps = warps_of(shape, 512 if rule.trits else 256)
    launch(_mean_to, groups * place.tiles, device, *args, warps=warps, shape=shape)
    return flag


def _serves_rows(data: Tensor, rule: Rule, numel: int, *rest: object) -> bool:
    return serves(rule) and 0 < numel < 2**31


@only(_serves_rows)
def reduce_and_encode(
    data: Tensor,
    rule: Rule,
    numel: int,
    feedback: Feedback | None,
    noise: Stream | None,
    groups: int,
    factor: float,
    owner: str,
    up: Turn | None = None,
    down: Turn | None = None,
) -> Tensor:
    device, shape, coded = data.device, _shape(rule, numel, up), _coded(numel, up)
    tiles, payload = triton.cdiv(coded, shape[0] * shape[1]), _room(rule, groups, coded, shape, device)
    turns = [_turned(turn, groups, shape, 0, device) for turn in (up, down)]
    received = _given(data, rule, coded), data.shape[0] // groups, turns[0]
    args = memory_of(feedback), keys_of(noise, groups, device), turns[1], payload, numel, coded, tiles
    launch(
        _reduce_and_encode,
        groups * tiles,
        device,
        *received,
        *args,
        _numbers(rule, factor),
        shape=shape,
        warps=_warps(rule, shape),
    )
    return _packed(payload, coded)


def _coded(numel: int, turn: Turn | None) -> int:
    """Elements that have a code: with rotation, whole runs."""
    return numel if turn is None else numel + -numel % turn.run


def _turned(turn: Turn | None, rows: int, shape: Sequence[int], shard: int, device: torch.device) -> Turned:
    if turn is None:
        return Turned(None, None, 1.0, None)
    fours = 1 if all(number % 128 == 0 for number in (shape[0] * shape[1], shard, *turn.signs.offsets)) else None
    return Turned(*keys_of(turn.signs, rows, device), root_of(turn.run), fours)


def _room(rule: Rule, rows: int, numel: int, shape: Sequence[int], device: torch.device) -> Payload:
    start, size = 4 * -(-numel // rule.block), rule.code_bytes(numel)
    payload = _given(torch.empty((rows, start + size), dtype=torch.uint8, device=device), rule, numel)
    if not rule.trits:
        return payload
    whole = triton.cdiv(numel, shape[0] * shape[1]) * shape[0] * shape[1]
    return payload._replace(codes=torch.empty((rows, whole), dtype=torch.uint8, device=device), codes_stride=whole)


def _given(data: Tensor, rule: Rule, numel: int) -> Payload:
    size = rule.code_bytes(numel)
    return Payload(data, data.stride(0), 4 * -(-numel // rule.block), size, words_of(data, size), None)


def _packed(payload: Payload, numel: int) -> Tensor:
    if payload.codes is not None:
        pack_to(payload.codes, numel, payload.data, payload.start)
    return payload.data


def _shape(rule: Rule, numel: int, turn: Turn | None) -> tuple[int, ...]:
    """What a rule's kernels are compiled for.

    Block, rows, columns and their logarithm; low, high, width of a code; run and its logarithm.
    """
    columns, run = columns_of(rule.block), 1 if turn is None else turn.run
    width = 0 if rule.trits else code_width(rule.low, rule.high)
    tile = rule.block, blocks_in_tile(rule.block, numel), columns, columns.bit_length() - 1
    return *tile, rule.low, rule.high, width, run, run.bit_length() - 1


def _warps(rule: Rule, shape: Sequence[int]) -> int:
    return folding_warps(shape) if rule.sigma else warps_of(shape)


def _numbers(rule: Rule, factor: float) -> Numbers:
    clip, sigma = (None if rule.clip == 1 else rule.clip), (rule.sigma or None)
    return Numbers(SMALLEST * rule.high, clip, sigma, factor)
