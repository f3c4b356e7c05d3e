"""Signs on a GPU: gradients are read, and results written, where they lie, in one launch each.

Kernels of scaled signs read and write payloads as they travel: a scale for each block, then the bits.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from gradwire.core.random import Stream
from gradwire.core.window import Feedback, Flag, Window
from gradwire.kernels.backend import only
from gradwire.kernels.bitpack.gpu import load_codes, load_float, store_codes, store_float
from gradwire.kernels.blockwise.gpu import LARGEST, block_tile, blocks_in_tile, columns_of, folded
from gradwire.kernels.launch import launch
from gradwire.kernels.random.gpu import keys_of, word
from gradwire.kernels.random.gpu import words as philox_words
from gradwire.kernels.window.gpu import compensated, memory_of, places, places_of

TILE = 4096  # elements of a program that knows no blocks
BYTES = 1024  # of a program that counts votes


@triton.jit
def _encoded(
    a,
    live,
    blocks,
    numel,
    by,
    data,
    bits_at,
    bit_bytes,
    block: tl.constexpr,
    rows: tl.constexpr,
    columns: tl.constexpr,
    levels: tl.constexpr,
):
    """The mean magnitude of each block and the signs of a tile, to a row of the payload; returns what is lost."""
    count = tl.minimum(numel - blocks * block, block)
    scale = folded(tl.where(live, tl.abs(a), 0.0), rows, columns, levels)
    scale = tl.div_rn(scale, tl.where(count < 1, 1, count).to(tl.float32))
    store_float(data, blocks, scale, count > 0)
    positive = a >= 0
    store_codes(data + bits_at, (live & positive).to(tl.int32), blocks, bit_bytes, block, rows, columns, 1)
    high = scale[:, None]
    return a - tl.where(positive, high, -high) * by


@triton.jit
def _mean(
    data,
    stride,
    senders,
    blocks,
    numel,
    bits_at,
    bit_bytes,
    block: tl.constexpr,
    rows: tl.constexpr,
    columns: tl.constexpr,
):
    """The mean of a tile over the rows of a payload, first to last."""
    total = tl.zeros((rows, columns), tl.float32)
    for _ in range(senders):
        scale = load_float(data, blocks, blocks * block < numel)
        bits = load_codes(data + bits_at, blocks, bit_bytes, block, rows, columns, 1)
        total += tl.where(bits != 0, scale[:, None], -scale[:, None])
        data += stride
    return tl.div_rn(total, tl.zeros_like(total) + senders)


@triton.jit
def _encode_scaled_from(
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
    data,
    stride,
    bits_at,
    bit_bytes,
    shards,
    shard,
    numel,
    tiles,
    by,
    block: tl.constexpr,
    rows: tl.constexpr,
    columns: tl.constexpr,
    levels: tl.constexpr,
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
    to = data + row.to(tl.int64) * stride
    lost = _encoded(a, live, blocks, shard, by, to, bits_at, bit_bytes, block, rows, columns, levels)
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
    data,
    stride,
    bits_at,
    bit_bytes,
    numel,
    tiles,
    block: tl.constexpr,
    rows: tl.constexpr,
    columns: tl.constexpr,
    levels: tl.constexpr,
    keeps: tl.constexpr,
    factor: tl.constexpr,
    kept: tl.constexpr,
    gains: tl.constexpr,
):
    group = (tl.program_id(0) // tiles).to(tl.int64)
    blocks, element, live = block_tile(tl.program_id(0) % tiles, numel, block, rows, columns)
    mine = received + group * senders * received_stride
    a = _mean(mine, received_stride, senders, blocks, numel, bits_at, bit_bytes, block, rows, columns)
    a = compensated(a, error + group * error_stride, element, live, decay, decay_at, gain, factor, kept, gains)
    to = data + group * stride
    lost = _encoded(a, live, blocks, numel, 1.0, to, bits_at, bit_bytes, block, rows, columns, levels)
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
    bits_at,
    bit_bytes,
    shard,
    numel,
    tiles,
    by,
    block: tl.constexpr,
    rows: tl.constexpr,
    columns: tl.constexpr,
    levels: tl.constexpr,
    one: tl.constexpr,
):
    """The mean of the rows of each group, shards of one vector, to where it belongs."""
    row = tl.program_id(0) // tiles
    tile = tl.program_id(0) % tiles
    blocks, element, live = block_tile(tile, shard, block, rows, columns)
    mine = data + row.to(tl.int64) * senders * stride
    mean = _mean(mine, stride, senders, blocks, shard, bits_at, bit_bytes, block, rows, columns)
    mean = mean * by
    bad = tl.sum(tl.sum(tl.where(live, mean * 0, 0.0), 1), 0)
    tl.store(flag, bad, mask=bad != bad)  # tiles that are not finite write NaN, all of them the same
    position = row * shard + element
    end = tl.minimum(row * shard + tl.minimum((tile + 1) * rows * block, shard), numel)
    where = places(position, end, firsts, shifts, spans + row * tiles + tile, one)
    tl.store(x + where, mean.to(x.dtype.element_ty), mask=live & (position < numel))


@triton.jit
def _encode_or_toss_from(
    x,
    x_stride,
    firsts,
    shifts,
    spans,
    keys,
    offsets,
    bits,
    stride,
    bad,
    shards,
    shard,
    numel,
    tiles,
    size: tl.constexpr,
    one: tl.constexpr,
):
    """Signs, by a coin for zeros; `bad` becomes true for rows that are not finite."""
    row = tl.program_id(0) // tiles
    tile = tl.program_id(0) % tiles
    worker = (row // shards).to(tl.int64)
    shift = row % shards * shard
    blocks, element, live = block_tile(tile, shard, size, 1, size)
    position = shift + element
    inside = live & (position < numel)
    end = tl.minimum(shift + tl.minimum((tile + 1) * size, shard), numel)
    where = places(position, end, firsts, shifts, spans + row % shards * tiles + tile, one)
    a = tl.load(x + worker * x_stride + where, mask=inside, other=0.0).to(tl.float32)
    positive = (a > 0).to(tl.int32)
    zero = live & (a == 0)
    if tl.max(tl.max(zero.to(tl.int32), 1), 0) > 0:  # seldom, and dear
        place = position + tl.load(offsets + worker)
        coin = (word(tl.load(keys + worker), place >> 5) >> (place & 31).to(tl.uint32)) & 1
        positive = tl.where(zero, coin.to(tl.int32), positive)
    to = row.to(tl.int64)
    store_codes(bits + to * stride, tl.where(live, positive, 0), blocks, (shard + 7) // 8, size, 1, size, 1)
    wrong = tl.max(tl.max((a * 0 != 0).to(tl.int32), 1), 0)
    tl.store(bad + to, 1, mask=wrong > 0)


@triton.jit
def _decode_to(
    bits,
    stride,
    minus,
    plus,
    scales,
    x,
    firsts,
    shifts,
    spans,
    block,
    shard,
    numel,
    tiles,
    by,
    size: tl.constexpr,
    one: tl.constexpr,
):
    """Two-valued rows, shards of one vector, to where they belong."""
    row = tl.program_id(0) // tiles
    tile = tl.program_id(0) % tiles
    to = row.to(tl.int64)
    blocks, element, live = block_tile(tile, shard, size, 1, size)
    code = load_codes(bits + to * stride, blocks, (shard + 7) // 8, size, 1, size, 1)
    scale = to * scales + element // block
    high = tl.load(plus + scale, mask=live, other=0.0)
    low = tl.load(minus + scale, mask=live, other=0.0)
    position = row * shard + element
    end = tl.minimum(row * shard + tl.minimum((tile + 1) * size, shard), numel)
    where = places(position, end, firsts, shifts, spans + row * tiles + tile, one)
    value = tl.where(code != 0, high, low) * by
    tl.store(x + where, value.to(x.dtype.element_ty), mask=live & (position < numel))


@triton.jit
def _vote(data, stride, voters, ties, ties_stride, out, numel, tiles, size: tl.constexpr):
    group = (tl.program_id(0) // tiles).to(tl.int64)
    byte = tl.program_id(0) % tiles * size + tl.arange(0, size)
    inside = byte < numel
    bit = tl.arange(0, 8)[None, :]
    votes = tl.zeros((size, 8), tl.int32)
    data += group * voters * stride
    for _ in range(voters):
        votes += (tl.load(data + byte, mask=inside, other=0).to(tl.int32)[:, None] >> bit) & 1
        data += stride
    tie = (tl.load(ties + group * ties_stride + byte, mask=inside, other=0).to(tl.int32)[:, None] >> bit) & 1
    won = tl.where(2 * votes == voters, tie, (2 * votes > voters).to(tl.int32))
    tl.store(out + group * numel + byte, tl.sum(won << bit, 1).to(tl.uint8), mask=inside)


def serves(block: int) -> bool:
    """Whether kernels here can treat such blocks: they fill whole bytes, and fit into a program."""
    return block % 8 == 0 and block <= LARGEST


def encode_scaled_from(
    source: Window, feedback: Feedback | None, shards: int, shard: int, block: int, factor: float, owner: str
) -> Tensor:
    device, shape = source.buffer.device, _shape(block, shard)
    tile = shape["rows"] * block
    rows, tiles = source.rows * shards, triton.cdiv(shard, tile)
    data, layout = _payload(rows, block, shard, device)
    memory, kinds = memory_of(feedback, device)
    where, one = places_of(source, shards, shard, tile)
    launch(
        _encode_scaled_from,
        rows * tiles,
        device,
        *(source.buffer, source.buffer.stride(0), *where, *memory, data, data.stride(0), *layout),
        *(shards, shard, source.numel, tiles, factor),
        **shape,
        **kinds,
        keeps=feedback is not None,
        one=one,
    )
    return data


def decode_scaled_to(data: Tensor, block: int, shard: int, target: Window, factor: float) -> Flag:
    return _to(data, 1, block, shard, target, factor)


def combine_scaled_to(data: Tensor, block: int, target: Window, factor: float) -> Flag:
    return _to(data, data.shape[0], block, target.numel, target, factor)


def _to(data: Tensor, senders: int, block: int, shard: int, target: Window, factor: float) -> Flag:
    device, shape = target.buffer.device, _shape(block, shard)
    tile = shape["rows"] * block
    groups, tiles, flag = data.shape[0] // senders, triton.cdiv(shard, tile), torch.zeros((), device=device)
    where, one = places_of(target, groups, shard, tile)
    launch(
        _mean_to,
        groups * tiles,
        device,
        *(data, data.stride(0), senders, target.buffer, *where, flag, *_layout(block, shard)),
        *(shard, target.numel, tiles, factor),
        **shape,
        one=one,
    )
    return flag


def _serves_rows(data: Tensor, block: int, numel: int, feedback: Feedback | None, groups: int, owner: str) -> bool:
    return serves(block) and 0 < numel < 2**31


@only(_serves_rows)
def reduce_and_encode(
    data: Tensor, block: int, numel: int, feedback: Feedback | None, groups: int, owner: str
) -> Tensor:
    device, shape = data.device, _shape(block, numel)
    tiles = triton.cdiv(numel, shape["rows"] * block)
    found, layout = _payload(groups, block, numel, device)
    memory, kinds = memory_of(feedback, device)
    launch(
        _reduce_and_encode,
        groups * tiles,
        device,
        *(data, data.stride(0), data.shape[0] // groups, *memory, found, found.stride(0), *layout, numel, tiles),
        **shape,
        **kinds,
        keeps=feedback is not None,
    )
    return found


def encode_or_toss_from(
    source: Window, feedback: None, shards: int, shard: int, stream: Stream, owner: str
) -> tuple[Tensor, Tensor]:
    device, rows, tiles = source.buffer.device, source.rows * shards, triton.cdiv(shard, TILE)
    bits = torch.empty((rows, -(-shard // 8)), dtype=torch.uint8, device=device)
    bad = torch.zeros((rows, 1), dtype=torch.bool, device=device)
    where, one = places_of(source, shards, shard, TILE)
    launch(
        _encode_or_toss_from,
        rows * tiles,
        device,
        *(source.buffer, source.buffer.stride(0), *where, *keys_of(stream, source.rows, device)),
        *(bits, bits.stride(0), bad.view(torch.uint8), shards, shard, source.numel, tiles),
        size=TILE,
        one=one,
    )
    return bits, bad


def decode_to(bits: Tensor, minus: Tensor, plus: Tensor, block: int, shard: int, target: Window, factor: float) -> None:
    device, tiles = target.buffer.device, triton.cdiv(shard, TILE)
    where, one = places_of(target, bits.shape[0], shard, TILE)
    launch(
        _decode_to,
        bits.shape[0] * tiles,
        device,
        *(bits, bits.stride(0), minus.contiguous(), plus.contiguous(), plus.shape[1], target.buffer, *where),
        *(block, shard, target.numel, tiles, factor),
        size=TILE,
        one=one,
    )


def vote(data: Tensor, ties: Tensor, groups: int) -> Tensor:
    size = data.shape[1]
    out, tiles = torch.empty((groups, size), dtype=torch.uint8, device=data.device), triton.cdiv(size, BYTES)
    args = data, data.stride(0), data.shape[0] // groups, ties, ties.stride(0), out, size, tiles
    launch(_vote, groups * tiles, data.device, *args, size=BYTES)
    return out


def _whole_words(stream: Stream, numel: int, device: torch.device) -> bool:
    return all(offset % 128 == 0 and offset + numel < 2**38 for offset in stream.offsets)


@only(_whole_words)
def tosses(stream: Stream, numel: int, device: torch.device) -> Tensor:
    blocks, size = -(-numel // 128), -(-numel // 8)
    known = {
        pair: philox_words(pair[0], pair[1] // 128, blocks, device)
        for pair in zip(stream.keys, stream.offsets, strict=True)
    }
    found = [known[pair] for pair in zip(stream.keys, stream.offsets, strict=True)]
    packed = torch.stack(found).to(torch.int32).view(torch.uint8)[:, :size]  # bit i of word j is coin 32·j + i
    if numel % 8:
        packed = packed.clone()
        packed[:, -1] &= (1 << numel % 8) - 1
    return packed


def _shape(block: int, numel: int) -> dict[str, int]:
    columns = columns_of(block)
    rows = blocks_in_tile(block, numel)
    return {"block": block, "rows": rows, "columns": columns, "levels": columns.bit_length() - 1}


def _layout(block: int, numel: int) -> tuple[int, int]:
    """Where the bits of a row begin, and their bytes."""
    return 4 * -(-numel // block), -(-numel // 8)


def _payload(rows: int, block: int, numel: int, device: torch.device) -> tuple[Tensor, tuple[int, int]]:
    layout = _layout(block, numel)
    return torch.empty((rows, sum(layout)), dtype=torch.uint8, device=device), layout
