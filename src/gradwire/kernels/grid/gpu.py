"""The uniform quantiser on a GPU: gradients are read, and results written, where they lie, in one launch each.

A program treats a tile of whole blocks, see `blockwise.gpu`. Kernels read and write payloads as they travel: a scale
for each block, then the codes.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from gradwire.core.random import Stream
from gradwire.core.window import Feedback, Flag, Window
from gradwire.kernels.backend import only
from gradwire.kernels.bitpack.gpu import load_codes, load_float, store_codes, store_float
from gradwire.kernels.blockwise.gpu import LARGEST, abs_max, block_tile, blocks_in_tile, columns_of, folded
from gradwire.kernels.grid.reference import SMALLEST, Rule, code_width
from gradwire.kernels.launch import launch
from gradwire.kernels.random.gpu import half, keys_of
from gradwire.kernels.trits.gpu import load_trits, pack_to
from gradwire.kernels.window.gpu import compensated, keep, memory_of, place_of, places, tile_of, write


class Payload(NamedTuple):
    """Rows as they travel."""

    data: Tensor
    stride: int
    start: int  # of the codes in a row
    size: int  # bytes of the codes
    codes: Tensor | None  # of trits, (rows, numel), before they are packed: their bytes do not end with blocks


class Numbers(NamedTuple):
    """Of a rule."""

    least: float
    clip: float | None
    sigma: float | None
    factor: float


@triton.jit
def _scale(a, live, numbers, rows: tl.constexpr, columns: tl.constexpr, levels: tl.constexpr):
    """The scale of each block: see `Rule`."""
    least, clip, sigma, _ = numbers
    scale = abs_max(a)
    if clip is not None:
        scale = scale * clip
    scale = tl.where(scale < least, least, scale)  # NaN stays
    if sigma is not None:
        shares = tl.div_rn(a, tl.broadcast_to(scale[:, None], (rows, columns)))
        squares = folded(tl.where(live, shares * shares, 0.0), rows, columns, levels)
        count = tl.sum((live & (a != 0)).to(tl.int32), 1).to(tl.float32)
        share = tl.sqrt_rn(tl.div_rn(squares, tl.where(count < 1.0, 1.0, count))) * sigma
        scale = scale * tl.where(share > 1.0, 1.0, share)
        scale = tl.where(scale < least, least, scale)
    return scale


@triton.jit
def _encoded(a, live, blocks, element, numel, noise, worker, position, payload, row, numbers, shape: tl.constexpr):
    """Scales and codes of the tile `a`, to a row of the payload; returns what is lost."""
    block: tl.constexpr = shape[0]
    rows: tl.constexpr = shape[1]
    columns: tl.constexpr = shape[2]
    low: tl.constexpr = shape[4]
    high: tl.constexpr = shape[5]
    data, stride, start, size, codes = payload
    keys, offsets = noise
    data += row.to(tl.int64) * stride
    scale = _scale(a, live, numbers, rows, columns, shape[3])
    one = tl.full((rows,), 1.0, tl.float32)
    inverse = tl.div_rn(one, scale) * high
    step = tl.div_rn(scale, one * high)
    store_float(data, blocks, scale, blocks * block < numel)
    y = a * inverse[:, None]
    if keys is None:
        code = tl.floor(tl.abs(y) + 0.5)
    else:
        place = position.to(tl.int64) + tl.load(offsets + worker)
        code = tl.floor(tl.abs(y) + half(tl.load(keys + worker), place))
    code = tl.where(y < 0, -code, code)
    code = tl.where(code < -low, -low, tl.where(code > high, high, code)) + low
    code = tl.where(live & (y == y), code, 0.0)
    if codes is None:
        store_codes(data + start, code.to(tl.int32), blocks, size, block, rows, columns, shape[6])
    else:
        tl.store(codes + row.to(tl.int64) * numel + element, code.to(tl.uint8), mask=live)
    return a - (code - low) * step[:, None] * numbers[3]


@triton.jit
def _mean(payload, first, senders, blocks, element, live, numel, shape: tl.constexpr):
    """The mean of a tile over `senders` rows of a payload, first to last."""
    block: tl.constexpr = shape[0]
    rows: tl.constexpr = shape[1]
    columns: tl.constexpr = shape[2]
    data, stride, start, size, _ = payload
    data += first.to(tl.int64) * stride
    total = tl.zeros((rows, columns), tl.float32)
    for _ in range(senders):
        scale = load_float(data, blocks, blocks * block < numel)
        step = tl.div_rn(scale, tl.full((rows,), 1.0, tl.float32) * shape[5])
        if shape[6] == 0:
            code = load_trits(data + start, element, live)
        else:
            code = load_codes(data + start, blocks, size, block, rows, columns, shape[6])
        total += (code - shape[4]).to(tl.float32) * step[:, None]
        data += stride
    return tl.div_rn(total, tl.zeros_like(total) + senders)


@triton.jit
def _encode_from(place, memory, noise, payload, numbers, shape: tl.constexpr):
    worker, shard, tile, row = tile_of(place)
    blocks, element, live = block_tile(tile, place[4], shape[0], shape[1], shape[2])
    at, inside = places(place, worker, shard, tile, element, shape[0] * shape[1])
    inside = inside & live
    position = shard * place[4] + element
    a = compensated(tl.load(at, mask=inside, other=0.0).to(tl.float32), memory, worker, position, inside)
    lost = _encoded(a, live, blocks, element, place[4], noise, worker, position, payload, row, numbers, shape)
    keep(lost, memory, worker, position, inside)


@triton.jit
def _reduce_and_encode(received, senders, memory, noise, payload, numel, tiles, numbers, shape: tl.constexpr):
    group = tl.program_id(0) // tiles
    blocks, element, live = block_tile(tl.program_id(0) % tiles, numel, shape[0], shape[1], shape[2])
    mean = _mean(received, group * senders, senders, blocks, element, live, numel, shape)
    a = compensated(tl.where(live, mean * numbers[3], 0.0), memory, group, element, live)
    lost = _encoded(a, live, blocks, element, numel, noise, group, element, payload, group, numbers, shape)
    keep(lost, memory, group, element, live)


@triton.jit
def _mean_to(payload, senders, place, flag, factor, shape: tl.constexpr):
    """The mean of the rows of each group, shards of one vector, to where it belongs."""
    worker, shard, tile, row = tile_of(place)
    blocks, element, live = block_tile(tile, place[4], shape[0], shape[1], shape[2])
    mean = _mean(payload, row * senders, senders, blocks, element, live, place[4], shape)
    at, inside = places(place, worker, shard, tile, element, shape[0] * shape[1])
    write(mean * factor, at, inside & live, flag)


def serves(rule: Rule) -> bool:
    """Whether kernels here can treat blocks of a rule: they fill whole bytes, and fit into a program."""
    width = code_width(rule.low, rule.high)
    return rule.block <= LARGEST and (rule.trits or (width <= 8 and rule.block * width % 8 == 0))


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
    device, shape = source.buffer.device, _shape(rule, shard)
    place = place_of(source, shards, shard, shape[0] * shape[1])
    payload = _room(rule, source.rows * shards, shard, device)
    args = place, memory_of(feedback), keys_of(noise, source.rows, device), payload, _numbers(rule, factor)
    launch(_encode_from, source.rows * shards * place.tiles, device, *args, shape=shape)
    return _packed(payload)


def decode_to(data: Tensor, rule: Rule, shard: int, target: Window, factor: float) -> Flag:
    return _to(data, 1, rule, shard, target, factor)


def combine_to(data: Tensor, rule: Rule, target: Window, factor: float) -> Flag:
    return _to(data, data.shape[0], rule, target.numel, target, factor)


def _to(data: Tensor, senders: int, rule: Rule, shard: int, target: Window, factor: float) -> Flag:
    device, shape, groups = target.buffer.device, _shape(rule, shard), data.shape[0] // senders
    place, flag = place_of(target, groups, shard, shape[0] * shape[1]), torch.zeros((), device=device)
    args = _given(data, rule, shard), senders, place, flag, factor
    launch(_mean_to, groups * place.tiles, device, *args, shape=shape)
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
) -> Tensor:
    device, shape = data.device, _shape(rule, numel)
    tiles = triton.cdiv(numel, shape[0] * shape[1])
    payload, memory, keys = _room(rule, groups, numel, device), memory_of(feedback), keys_of(noise, groups, device)
    args = _given(data, rule, numel), data.shape[0] // groups, memory, keys, payload, numel, tiles
    launch(_reduce_and_encode, groups * tiles, device, *args, _numbers(rule, factor), shape=shape)
    return _packed(payload)


def _room(rule: Rule, rows: int, numel: int, device: torch.device) -> Payload:
    start, size = 4 * -(-numel // rule.block), rule.code_bytes(numel)
    data = torch.empty((rows, start + size), dtype=torch.uint8, device=device)
    codes = torch.empty((rows, numel), dtype=torch.uint8, device=device) if rule.trits else None
    return Payload(data, data.stride(0), start, size, codes)


def _given(data: Tensor, rule: Rule, numel: int) -> Payload:
    return Payload(data, data.stride(0), 4 * -(-numel // rule.block), rule.code_bytes(numel), None)


def _packed(payload: Payload) -> Tensor:
    if payload.codes is not None:
        pack_to(payload.codes, payload.data, payload.start)
    return payload.data


def _shape(rule: Rule, numel: int) -> tuple[int, ...]:
    """What a rule's kernels are compiled for: block, rows, columns and their logarithm, low, high, width of a code."""
    columns = columns_of(rule.block)
    width = 0 if rule.trits else code_width(rule.low, rule.high)
    rows = blocks_in_tile(rule.block, numel)
    return rule.block, rows, columns, columns.bit_length() - 1, rule.low, rule.high, width


def _numbers(rule: Rule, factor: float) -> Numbers:
    clip, sigma = (None if rule.clip == 1 else rule.clip), (rule.sigma or None)
    return Numbers(SMALLEST * rule.high, clip, sigma, factor)
