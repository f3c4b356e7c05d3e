"""Codes and numbers of a tile to and from the bytes of a payload, where a block of codes fills whole bytes.

Where there is `words`, every four bytes of a payload, counted from its first, lie together and aligned.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor


def words_of(data: Tensor, *sizes: int) -> int | None:
    """1 if all rows of bytes, and their parts of these sizes, are whole words; else None."""
    starts = data.data_ptr(), data.stride(0) if len(data) > 1 else 0
    return 1 if all(number % 4 == 0 for number in (*starts, *sizes)) else None


@triton.jit
def bytes_at(data, index, inside, words):
    """Where the bytes `index`, (rows, columns) or flat, lie, and which there are: the compiler hears of words."""
    at = data + index
    there = inside & (index >= 0)
    if words is None:
        return at, there
    elif len(index.shape) == 1:
        return tl.max_contiguous(tl.multiple_of(at, [4]), [4]), tl.max_constancy(there, [4])
    else:
        return tl.max_contiguous(tl.multiple_of(at, [1, 4]), [1, 4]), tl.max_constancy(there, [1, 4])


@triton.jit
def store_codes(
    data,
    codes,
    blocks,
    limit,
    words,
    block: tl.constexpr,
    rows: tl.constexpr,
    columns: tl.constexpr,
    width: tl.constexpr,
):
    """The (rows, columns) `codes` of the blocks `blocks`, of which the first `block` columns count, as bytes.

    A byte behind `limit` is nobody's.
    """
    together: tl.constexpr = 8 // width if 8 % width == 0 else (4 if width == 6 else 8)  # codes that fill whole bytes
    size: tl.constexpr = together * width // 8
    groups: tl.constexpr = columns // together
    in_block: tl.constexpr = block * width // 8
    group = tl.arange(0, groups)
    if size == 1:
        parts = tl.reshape(codes, (rows, groups, together)) << (tl.arange(0, together) * width)[None, None, :]
        index = blocks[:, None] * in_block + group[None, :]
        inside = (group < in_block)[None, :] & (index < limit)
        at, there = bytes_at(data, index, inside, words if in_block % 4 == 0 else None)
        tl.store(at, tl.sum(parts, 2).to(tl.uint8), mask=there)
    else:
        parts = (
            tl.reshape(codes.to(tl.int64), (rows, groups, together)) << (tl.arange(0, together) * width)[None, None, :]
        )
        word = tl.sum(parts, 2)
        for k in tl.static_range(size):
            place = group * size + k
            index = blocks[:, None] * in_block + place[None, :]
            inside = (place < in_block)[None, :] & (index < limit)
            tl.store(data + index, ((word >> 8 * k) & 255).to(tl.uint8), mask=inside)


@triton.jit
def load_codes(
    data, blocks, limit, words, block: tl.constexpr, rows: tl.constexpr, columns: tl.constexpr, width: tl.constexpr
):
    """The inverse: (rows, columns) int32."""
    together: tl.constexpr = 8 // width if 8 % width == 0 else (4 if width == 6 else 8)
    size: tl.constexpr = together * width // 8
    groups: tl.constexpr = columns // together
    in_block: tl.constexpr = block * width // 8
    group = tl.arange(0, groups)
    if size == 1:
        index = blocks[:, None] * in_block + group[None, :]
        inside = (group < in_block)[None, :] & (index < limit)
        at, there = bytes_at(data, index, inside, words if in_block % 4 == 0 else None)
        return _apart(tl.load(at, mask=there, other=0).to(tl.int32), rows, groups, together)
    else:
        word = tl.zeros((rows, groups), tl.int64)
        for k in tl.static_range(size):
            place = group * size + k
            index = blocks[:, None] * in_block + place[None, :]
            byte = tl.load(data + index, mask=(place < in_block)[None, :] & (index < limit), other=0)
            word |= byte.to(word.dtype) << (8 * k)
        codes = (word[:, :, None] >> (tl.arange(0, together) * width)[None, None, :]) & ((1 << width) - 1)
        return tl.reshape(codes, (rows, columns)).to(tl.int32)


@triton.jit
def _apart(x, rows: tl.constexpr, groups: tl.constexpr, together: tl.constexpr):
    """The codes of bytes, by halves: a thread keeps what it has."""
    if together > 1:
        x = tl.reshape(tl.join(x & 15, x >> 4), (rows, 2 * groups))
    if together > 2:
        x = tl.reshape(tl.join(x & 3, x >> 2), (rows, 4 * groups))
    if together > 4:
        x = tl.reshape(tl.join(x & 1, x >> 1), (rows, 8 * groups))
    return x


@triton.jit
def store_float(data, index, value, inside, words):
    """Float32 number `index` of a row of bytes."""
    if words is None:
        bits = value.to(tl.uint32, bitcast=True)
        for k in tl.static_range(4):
            tl.store(data + 4 * index + k, ((bits >> (8 * k)) & 255).to(tl.uint8), mask=inside)
    else:
        tl.store(data.to(tl.pointer_type(tl.float32)) + index, value, mask=inside)


@triton.jit
def load_float(data, index, inside, words):
    """Float32 number `index` of a row of bytes; zero outside."""
    if words is None:
        bits = tl.zeros_like(index).to(tl.uint32)
        for k in tl.static_range(4):
            bits |= tl.load(data + 4 * index + k, mask=inside, other=0).to(tl.uint32) << (8 * k)
        return bits.to(tl.float32, bitcast=True)
    else:
        return tl.load(data.to(tl.pointer_type(tl.float32)) + index, mask=inside, other=0.0)
