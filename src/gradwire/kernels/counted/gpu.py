"""Rows of counted entries on a GPU: one launch to write the indices of all rows, two to read all rows.

Programs find the count of their row on the device, and from it the coding, as the reference does. See
`gradwire.kernels.indices.gpu` for how indices are written and read.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from gradwire.kernels.bitpack.gpu import load_float, words_of
from gradwire.kernels.counted import row_bytes
from gradwire.kernels.indices.gpu import (
    code_at,
    load_bytes,
    marks_from,
    read_blocks,
    read_marks,
    store_bytes,
    write_blocks,
    write_codes,
    write_marks,
)
from gradwire.kernels.indices.reference import block_count, index_width
from gradwire.kernels.launch import launch

HEAD = tl.constexpr(4)  # bytes of the count
SIZE = 512  # entries of a program that writes, and marks that are read at a time
PIECES = 512  # of a row that is read, at most
TURNS = 4  # times that marks are read for a piece, at least where there are so many
ALIGNED = 128  # rows of entries are multiples of this: a number that the compiler does not see change
CODE_BYTES = tl.constexpr(5)  # that a code of up to 31 bits meets
STEPS = tl.constexpr(32)  # that find an entry among all


class Shape(NamedTuple):
    """What all rows have in common, and all steps."""

    rows: int
    numel: int
    width: int  # of an index
    blocks: int


class Sent(NamedTuple):
    """Rows as they travel: aligned, where they are written."""

    data: Tensor
    stride: int
    words: int | None  # None unless rows are aligned


@triton.jit
def _shorter(found, size, kind, kind_size):
    """The shorter of two codings; the first if both are as long. Which it is, and its bytes."""
    return tl.where(kind_size < size, kind, found), tl.minimum(kind_size, size)


@triton.jit
def coding_of(k, shape):
    """The shortest coding of k indices: 0 Elias-Fano, 1 a bitmap, 2 packed, 3 blocks; its bytes; bits that are packed;
    where what is behind them begins, and its length: marks or blocks.
    """
    _, numel, width, blocks = shape
    share = numel // tl.maximum(k, 1)
    low = k * 0
    while (share >> (low + 1)) > 0:
        low += 1
    length = k + ((numel - 1) >> low)
    many = k.to(tl.int64)
    packed = (many * low + 7) // 8
    kind, size = _shorter(0, packed + (length.to(tl.int64) + 7) // 8, 1, ((numel + 7) // 8).to(tl.int64))
    kind, size = _shorter(kind, size, 2, (many * width + 7) // 8)
    kind, size = _shorter(kind, size, 3, 4 * blocks + 2 * many)
    low = tl.where(kind == 0, low, tl.where(kind == 2, width, 0))
    length = tl.where(kind == 0, length, tl.where(kind == 1, numel, tl.where(kind == 2, 0, blocks)))
    upper = tl.where(kind == 0, packed, tl.where(kind == 3, 4 * blocks, 0))
    return kind, size, low, upper, length


@triton.jit
def _write(where, ends, every, sent, shape, bits: tl.constexpr, size: tl.constexpr):
    """The count and some indices of a row; `ends`, one in `every` numbers, says where the entries of rows end."""
    data, stride = sent[0], sent[1]
    programs = tl.num_programs(0) // shape[0]
    row = tl.program_id(0) // programs
    start = tl.load(ends + row.to(tl.int64) * every - 1, mask=row > 0, other=0)
    k = (tl.load(ends + (row + 1).to(tl.int64) * every - 1) - start).to(tl.int32)
    first = tl.program_id(0) % programs * size
    i = first + tl.arange(0, size)
    if (k > 0) & (first < tl.maximum(k, shape[3])):
        kind, _size, width, upper, length = coding_of(k, shape)
        data += row.to(tl.int64) * stride
        where += start
        store_bytes(data, i, tl.zeros_like(i) + k, i == 0, HEAD)
        data += HEAD + k.to(tl.int64) * (bits // 8)
        if width > 0:
            write_codes(where, k, first, data, width, size)
        if kind < 2:
            write_marks(where, k, i, data + upper, length, width, 1 - kind)
        if kind == 3:
            write_blocks(where, k, i, data, data + upper, length, STEPS)


@triton.jit
def _known(sent, lengths, shape, row, bits: tl.constexpr):
    """Where a row is, its count, and its coding; no entries where the count does not fit the length."""
    data = sent[0]
    data += row.to(tl.int64) * sent[1]
    told = tl.load(lengths + row)
    k = load_bytes(data, row * 0, told >= HEAD, HEAD)
    k = tl.where((k > 0) & (k <= shape[1]), k, 0)
    kind, size, width, upper, length = coding_of(k, shape)
    start = HEAD + k.to(tl.int64) * (bits // 8)
    k = tl.where(start + size == told, k, 0)
    return data, k, kind, start, width, start + upper, length


@triton.jit
def _turns(length, pieces, size: tl.constexpr):
    """Times that `size` marks are read, for each piece."""
    return tl.cdiv(tl.cdiv(length, size), pieces)


@triton.jit
def _ones(sent, lengths, shape, counts, bits: tl.constexpr, size: tl.constexpr):
    """How many marks each piece of a row's string has."""
    pieces = tl.num_programs(0) // shape[0]
    row = tl.program_id(0) // pieces
    data, k, kind, _, _, upper, length = _known(sent, lengths, shape, row, bits)
    if (k > 0) & (kind < 2):
        turns = _turns(length, pieces, size)
        first = tl.program_id(0) % pieces * turns * size
        count = tl.zeros((size,), tl.int32)
        for turn in range(turns):
            count += marks_from(data + upper, first + turn * size, length, size)
        tl.store(counts + tl.program_id(0), tl.sum(count, 0))


@triton.jit
def _read(
    sent, lengths, shape, counts, values, where, room, bits: tl.constexpr, most: tl.constexpr, size: tl.constexpr
):
    """Values and indices of a row, as far as they are this program's: its share of the entries, and of the marks."""
    pieces = tl.num_programs(0) // shape[0]
    row = tl.program_id(0) // pieces
    piece = tl.program_id(0) % pieces
    data, k, kind, start, width, upper, length = _known(sent, lengths, shape, row, bits)
    values += row.to(tl.int64) * room
    where += row.to(tl.int64) * room
    marked = kind < 2
    known = k
    if (k > 0) & marked:
        other = tl.arange(0, most)
        count = tl.load(counts + row * pieces + other, mask=other < pieces, other=0)
        known = tl.sum(count, 0)
        before = tl.sum(tl.where(other < piece, count, 0), 0)
        turns = _turns(length, pieces, size)
        parts = start, upper, length
        for turn in range(turns):
            at = (piece * turns + turn) * size
            before = read_marks(data, parts, k, where, at, before, width, 1 - kind, CODE_BYTES, size)
    share = tl.cdiv(room, pieces)
    end = tl.minimum((piece + 1) * share, room)
    for first in range(piece * share, end, size):
        i = first + tl.arange(0, size)
        there = (i < end) & (i < k)
        value = _value(data + HEAD, i, there, sent[2], bits)
        tl.store(values + i, value, mask=i < end)
        tl.store(where + i, tl.zeros_like(i) + shape[1], mask=(i < end) & (i >= k))
        if first < k:
            if kind == 2:
                tl.store(where + i, code_at(data + start, i, there, width, CODE_BYTES), mask=there)
            elif kind == 3:
                tl.store(where + i, read_blocks(data, start, upper, length, first, i, there, size), mask=there)
            elif known < k:  # no mark is left for the last entries
                there = there & (i >= known)
                found = (length - (1 - kind) * i).to(tl.int64) << width
                found += code_at(data + start, i, there, width, CODE_BYTES)
                tl.store(where + i, found, mask=there)


@triton.jit
def _value(data, i, there, words, bits: tl.constexpr):
    """Values of a row, in float32."""
    if bits == 32:
        return load_float(data, i, there, words)
    else:
        return load_bytes(data, i, there, 2).to(tl.int16).to(tl.float16, bitcast=True).to(tl.float32)


def shape_of(rows: int, numel: int) -> Shape:
    return Shape(rows, numel, index_width(numel), block_count(numel))


def empty(counts: list[int], numel: int, value_bits: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Room for rows of these counts, aligned and zero: (rows, longest) uint8; and the rows' lengths."""
    lengths = [row_bytes(numel, count, value_bits) for count in counts]
    longest = max(lengths)
    data = torch.zeros((len(counts), max(1, -(-longest // 16)) * 16), dtype=torch.uint8, device=device)
    return data[:, :longest], torch.tensor(lengths)


def write_indices(
    where: Tensor, ends: Tensor, every: int, most: int, data: Tensor, numel: int, value_bits: int
) -> None:
    """Counts and indices into rows that `empty` made.

    Args:
        where: the ascending indices of all rows, one row after the other.
        ends: where rows end there: every `every`-th number.
        most: entries of the longest row.
        data: the rows.
        numel: elements of a row.
        value_bits: of a value.
    """
    rows, shape = len(data), shape_of(len(data), numel)
    programs = rows * triton.cdiv(max(most, shape.blocks), SIZE)
    sent = Sent(data, data.stride(0), 1)
    launch(_write, programs, data.device, where, ends, every, sent, shape, bits=value_bits, size=SIZE)


def read(data: Tensor, lengths: Tensor, numel: int, value_bits: int) -> tuple[Tensor, Tensor]:
    data = data if data.stride(1) == 1 else data.contiguous()
    rows, device, longest = len(data), data.device, int(lengths.max())
    if device.type == "cuda":
        lengths = lengths.pin_memory().to(device, non_blocking=True)
    most = min(numel, max(0, longest - HEAD.value) * 8 // value_bits)
    room = max(1, -(-most // ALIGNED)) * ALIGNED
    values = torch.empty((rows, room), device=device)
    where = torch.empty((rows, room), dtype=torch.int32, device=device)
    pieces = min(PIECES, max(1, triton.cdiv(8 * longest, TURNS * SIZE)))
    counts = torch.empty((rows, pieces), dtype=torch.int32, device=device)
    given = Sent(data, data.stride(0), words_of(data)), lengths, shape_of(rows, numel), counts
    launch(_ones, rows * pieces, device, *given, bits=value_bits, size=SIZE)
    launch(_read, rows * pieces, device, *given, values, where, room, bits=value_bits, most=PIECES, size=SIZE)
    return values, where
