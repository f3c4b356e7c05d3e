"""The uniform quantiser on a GPU: gradients are read, and results written, where they lie, in one launch each.

A program treats a tile of whole blocks, (rows, columns), a block a row, of which the first `block` columns count.
Kernels read and write payloads as they travel: a scale for each block, then the codes.
"""

from __future__ import annotations

from typing import Any

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
from gradwire.kernels.window.gpu import compensated, memory_of, places, places_of


@triton.jit
def _scale(
    a,
    live,
    least,
    clip,
    sigma,
    rows: tl.constexpr,
    columns: tl.constexpr,
    levels: tl.constexpr,
    spreads: tl.constexpr,
):
    """The scale of each block: see `Rule`."""
    scale = abs_max(a) * clip
    scale = tl.where(scale < least, least, scale)  # NaN stays
    if spreads:
        shares = tl.div_rn(a, tl.broadcast_to(scale[:, None], (rows, columns)))
        squares = folded(tl.where(live, shares * shares, 0.0), rows, columns, levels)
        count = tl.sum((live & (a != 0)).to(tl.int32), 1).to(tl.float32)
        share = tl.sqrt_rn(tl.div_rn(squares, tl.where(count < 1.0, 1.0, count))) * sigma
        scale = scale * tl.where(share > 1.0, 1.0, share)
        scale = tl.where(scale < least, least, scale)
    return scale


@triton.jit
def _encoded(
    a,
    live,
    blocks,
    element,
    numel,
    key,
    place,
    least,
    clip,
    sigma,
    by,
    data,
    codes_at,
    code_bytes,
    codes,
    block: tl.constexpr,
    rows: tl.constexpr,
    columns: tl.constexpr,
    levels: tl.constexpr,
    low: tl.constexpr,
    high: tl.constexpr,
    width: tl.constexpr,
    spreads: tl.constexpr,
    random: tl.constexpr,
):
    """Scales and codes of the tile `a`, to a row of the payload; returns what is lost."""
    scale = _scale(a, live, least, clip, sigma, rows, columns, levels, spreads)
    one = tl.full((rows,), 1.0, tl.float32)
    inverse = tl.div_rn(one, scale) * high
    step = tl.div_rn(scale, one * high)
    store_float(data, blocks, scale, blocks * block < numel)
    y = a * inverse[:, None]
    if random:
        code = tl.floor(tl.abs(y) + half(key, place))
    else:
        code = tl.floor(tl.abs(y) + 0.5)
    code = tl.where(y < 0, -code, code)
    code = tl.where(code < -low, -low, tl.where(code > high, high, code)) + low
    code = tl.where(live & (y == y), code, 0.0)
    if width == 0:  # trits are packed by another launch: their bytes do not end with blocks
        tl.store(codes + element, code.to(tl.uint8), mask=live)
    else:
        store_codes(data + codes_at, code.to(tl.int32), blocks, code_bytes, block, rows, columns, width)
    return a - (code - low) * step[:, None] * by


@triton.jit
def _values(
    data,
    blocks,
    element,
    live,
    numel,
    codes_at,
    code_bytes,
    block: tl.constexpr,
    rows: tl.constexpr,
    columns: tl.constexpr,
    low: tl.constexpr,
    high: tl.constexpr,
    width: tl.constexpr,
):
    """The values of a tile of a row of a payload."""
    scale = load_float(data, blocks, blocks * block < numel)
    step = tl.div_rn(scale, tl.full((rows,), 1.0, tl.float32) * high)
    if width == 0:
        code = load_trits(data + codes_at, element, live)
    else:
        code = load_codes(data + codes_at, blocks, code_bytes, block, rows, columns, width)
    return (code - low).to(tl.float32) * step[:, None]


@triton.jit
def _mean(
    data,
    stride,
    senders,
    blocks,
    element,
    live,
    numel,
    codes_at,
    code_bytes,
    block: tl.constexpr,
    rows: tl.constexpr,
    columns: tl.constexpr,
    low: tl.constexpr,
    high: tl.constexpr,
    width: tl.constexpr,
):
    """The mean of a tile over the rows of a payload, first to last."""
    total = tl.zeros((rows, columns), tl.float32)
    for _ in range(senders):
        total += _values(
            data, blocks, element, live, numel, codes_at, code_bytes, block, rows, columns, low, high, width
        )
        data += stride
    return tl.div_rn(total, tl.zeros_like(total) + senders)


@triton.jit
def _encode_from(
    x,
    x_stride,
    firsts,
    shifts,
    spans,
    error,
    error_stride,
    out,
    out_stride,
    decay,
    decay_at,
    gain,
    keys,
    offsets,
    data,
    stride,
    codes_at,
    code_bytes,
    codes,
    shards,
    shard,
    numel,
    tiles,
    least,
    clip,
    sigma,
    by,
    block: tl.constexpr,
    rows: tl.constexpr,
    columns: tl.constexpr,
    levels: tl.constexpr,
    low: tl.constexpr,
    high: tl.constexpr,
    width: tl.constexpr,
    spreads: tl.constexpr,
    random: tl.constexpr,
    keeps: tl.constexpr,
    one: tl.constexpr,
    factor: tl.constexpr,
    kept: tl.constexpr,
    gains: tl.constexpr,
):
    row = tl.program_id(0) // tiles
    tile = tl.program_id(0) % tiles
    worker = (row // shards).to(tl.int64)
    shift = row % shards * shard
    blocks, element, live = block_tile(tile, shard, block, rows, columns)
    position = shift + element
    inside = live & (position < numel)
    end = tl.minimum(shift + tl.minimum((tile + 1) * rows * block, shard), numel)
    where = places(position, end, firsts, shifts, spans + row % shards * tiles + tile, one)
    a = tl.load(x + worker * x_stride + where, mask=inside, other=0.0).to(tl.float32)
    a = compensated(a, error + worker * error_stride, position, inside, decay, decay_at, gain, factor, kept, gains)
    key = tl.load(keys + worker)
    place = position.to(tl.int64) + tl.load(offsets + worker)
    to = row.to(tl.int64)
    lost = _encoded(
        a,
        live,
        blocks,
        element,
        shard,
        key,
        place,
        least,
        clip,
        sigma,
        by,
        data + to * stride,
        codes_at,
        code_bytes,
        codes + to * shard,
        block,
        rows,
        columns,
        levels,
        low,
        high,
        width,
        spreads,
        random,
    )
    if keeps:
        tl.store(out + worker * out_stride + position, lost, mask=inside)


@triton.jit
def _reduce_and_encode(
    received,
    received_stride,
    senders,
    error,
    error_stride,
    out,
    out_stride,
    decay,
    decay_at,
    gain,
    keys,
    offsets,
    data,
    stride,
    codes_at,
    code_bytes,
    codes,
    numel,
    tiles,
    least,
    clip,
    sigma,
    by,
    block: tl.constexpr,
    rows: tl.constexpr,
    columns: tl.constexpr,
    levels: tl.constexpr,
    low: tl.constexpr,
    high: tl.constexpr,
    width: tl.constexpr,
    spreads: tl.constexpr,
    random: tl.constexpr,
    keeps: tl.constexpr,
    factor: tl.constexpr,
    kept: tl.constexpr,
    gains: tl.constexpr,
):
    group = (tl.program_id(0) // tiles).to(tl.int64)
    blocks, element, live = block_tile(tl.program_id(0) % tiles, numel, block, rows, columns)
    mean = _mean(
        received + group * senders * received_stride,
        received_stride,
        senders,
        blocks,
        element,
        live,
        numel,
        codes_at,
        code_bytes,
        block,
        rows,
        columns,
        low,
        high,
        width,
    )
    a = tl.where(live, mean * by, 0.0)
    a = compensated(a, error + group * error_stride, element, live, decay, decay_at, gain, factor, kept, gains)
    place = element.to(tl.int64) + tl.load(offsets + group)
    lost = _encoded(
        a,
        live,
        blocks,
        element,
        numel,
        tl.load(keys + group),
        place,
        least,
        clip,
        sigma,
        by,
        data + group * stride,
        codes_at,
        code_bytes,
        codes + group * numel,
        block,
        rows,
        columns,
        levels,
        low,
        high,
        width,
        spreads,
        random,
    )
    if keeps:
        tl.store(out + group * out_stride + element, lost, mask=live)


@triton.jit
def _mean_to(
    data,
    stride,
    senders,
    x,
    firsts,
    shifts,
    spans,
    flag,
    codes_at,
    code_bytes,
    shard,
    numel,
    tiles,
    by,
    block: tl.constexpr,
    rows: tl.constexpr,
    columns: tl.constexpr,
    levels: tl.constexpr,
    low: tl.constexpr,
    high: tl.constexpr,
    width: tl.constexpr,
    one: tl.constexpr,
):
    """The mean of the rows of each group, shards of one vector, to where it belongs."""
    row = tl.program_id(0) // tiles
    tile = tl.program_id(0) % tiles
    blocks, element, live = block_tile(tile, shard, block, rows, columns)
    mean = _mean(
        data + row.to(tl.int64) * senders * stride,
        stride,
        senders,
        blocks,
        element,
        live,
        shard,
        codes_at,
        code_bytes,
        block,
        rows,
        columns,
        low,
        high,
        width,
    )
    mean = mean * by
    bad = tl.sum(tl.sum(tl.where(live, mean * 0, 0.0), 1), 0)
    tl.store(flag, bad, mask=bad != bad)  # tiles that are not finite write NaN, all of them the same
    position = row * shard + element
    end = tl.minimum(row * shard + tl.minimum((tile + 1) * rows * block, shard), numel)
    where = places(position, end, firsts, shifts, spans + row * tiles + tile, one)
    tl.store(x + where, mean.to(x.dtype.element_ty), mask=live & (position < numel))


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
    device, tile, shape = source.buffer.device, blocks_in_tile(rule.block, shard) * rule.block, _shape(rule, shard)
    count = source.rows * shards
    data, codes, layout = _payload(rule, count, shard, device)
    memory, kinds = memory_of(feedback, device)
    where, one = places_of(source, shards, shard, tile)
    tiles = triton.cdiv(shard, tile)
    launch(
        _encode_from,
        count * tiles,
        device,
        *(source.buffer, source.buffer.stride(0), *where, *memory, *keys_of(noise, source.rows, device)),
        *(data, data.stride(0), *layout, codes, shards, shard, source.numel, tiles, *_numbers(rule), factor),
        **shape,
        **kinds,
        spreads=rule.sigma > 0,
        random=noise is not None,
        keeps=feedback is not None,
        one=one,
    )
    if rule.trits:
        pack_to(codes, data, layout[0])
    return data


def decode_to(data: Tensor, rule: Rule, shard: int, target: Window, factor: float) -> Flag:
    return _to(data, 1, rule, shard, target, factor)


def combine_to(data: Tensor, rule: Rule, target: Window, factor: float) -> Flag:
    return _to(data, data.shape[0], rule, target.numel, target, factor)


def _to(data: Tensor, senders: int, rule: Rule, shard: int, target: Window, factor: float) -> Flag:
    device, tile, shape = target.buffer.device, blocks_in_tile(rule.block, shard) * rule.block, _shape(rule, shard)
    groups, tiles, flag = data.shape[0] // senders, triton.cdiv(shard, tile), torch.zeros((), device=device)
    where, one = places_of(target, groups, shard, tile)
    launch(
        _mean_to,
        groups * tiles,
        device,
        *(data, data.stride(0), senders, target.buffer, *where, flag, *_layout(rule, shard)),
        *(shard, target.numel, tiles, factor),
        **shape,
        one=one,
    )
    return flag


def _serves_rows(
    data: Tensor,
    rule: Rule,
    numel: int,
    feedback: Feedback | None,
    noise: Stream | None,
    groups: int,
    factor: float,
    owner: str,
) -> bool:
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
    device, tiles = data.device, triton.cdiv(numel, blocks_in_tile(rule.block, numel) * rule.block)
    found, codes, layout = _payload(rule, groups, numel, device)
    memory, kinds = memory_of(feedback, device)
    launch(
        _reduce_and_encode,
        groups * tiles,
        device,
        *(data, data.stride(0), data.shape[0] // groups, *memory, *keys_of(noise, groups, device)),
        *(found, found.stride(0), *layout, codes, numel, tiles, *_numbers(rule), factor),
        **_shape(rule, numel),
        **kinds,
        spreads=rule.sigma > 0,
        random=noise is not None,
        keeps=feedback is not None,
    )
    if rule.trits:
        pack_to(codes, found, layout[0])
    return found


def _payload(rule: Rule, rows: int, numel: int, device: torch.device) -> tuple[Tensor, Tensor, tuple[int, int]]:
    """Room for payloads, for codes that are packed later, and where the codes of a row are."""
    start, size = layout = _layout(rule, numel)
    data = torch.empty((rows, start + size), dtype=torch.uint8, device=device)
    codes = torch.empty((rows, numel), dtype=torch.uint8, device=device) if rule.trits else data
    return data, codes, layout


def _layout(rule: Rule, numel: int) -> tuple[int, int]:
    """Where the codes of a row begin, and their bytes."""
    return 4 * -(-numel // rule.block), rule.code_bytes(numel)


def _shape(rule: Rule, numel: int) -> dict[str, Any]:
    """What a rule's kernels are compiled for."""
    columns = columns_of(rule.block)
    return {
        "block": rule.block,
        "rows": blocks_in_tile(rule.block, numel),
        "columns": columns,
        "levels": columns.bit_length() - 1,
        "low": rule.low,
        "high": rule.high,
        "width": 0 if rule.trits else code_width(rule.low, rule.high),
    }


def _numbers(rule: Rule) -> tuple[float, float, float]:
    return SMALLEST * rule.high, rule.clip, rule.sigma
