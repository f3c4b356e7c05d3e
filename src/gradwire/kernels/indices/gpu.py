"""Index sets on a GPU: one launch to write a payload of values and indices, two at most to read one.

A program writes `SIZE` entries of a row: their values, the packed parts of their indices, which fill whole bytes, and
the bytes of the string of marks in which one of them is the first. Bytes that hold no mark are zero before.

To read a string of marks, `_ones` counts those of each piece, and `_read` finds each mark's number from the counts
before it. Whatever the bytes are, nobody reads or writes outside: an entry that no mark stands for lies behind the end
of the string, and an index may come out as large as a string and its lower bits allow, as in the reference.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from gradwire.kernels.backend import only
from gradwire.kernels.bitpack import packed_bytes
from gradwire.kernels.indices.reference import block_count, index_bytes, index_width, parts
from gradwire.kernels.launch import launch
from gradwire.kernels.window.places import MOST

SIZE = 512  # entries of a program that writes, and marks of a piece
PIECES = 512  # of a string, at most: longer ones have longer pieces


class Entries(NamedTuple):
    """Rows of values at ascending indices."""

    values: Tensor | None
    values_stride: int
    where: Tensor
    where_stride: int
    k: int


class Coded(NamedTuple):
    """Rows of bytes: values, then packed parts of indices or counts of blocks, then a string or offsets."""

    data: Tensor
    stride: int
    start: int  # where indices begin
    upper: int  # where the string or the offsets begin
    length: int  # marks of the string, or blocks


class Form(NamedTuple):
    """What kernels are compiled for."""

    value_bits: int  # 0: no values
    width: int  # of the packed part of an index
    marks: bool  # there is a string of marks
    step: int  # what each entry adds to the place of its mark
    blocks: bool


# ------------------------------------------------------------------------------------------------ numbers in bytes


@triton.jit
def store_bytes(data, index, word, inside, count: tl.constexpr):
    """Number `index` of `count` bytes, which need not be aligned."""
    for b in tl.static_range(count):
        tl.store(data + index.to(tl.int64) * count + b, ((word >> (8 * b)) & 255).to(tl.uint8), mask=inside)


@triton.jit
def load_bytes(data, index, inside, count: tl.constexpr):
    """The inverse: int32."""
    word = tl.zeros_like(index).to(tl.int32)
    for b in tl.static_range(count):
        byte = tl.load(data + index.to(tl.int64) * count + b, mask=inside, other=0)
        word |= byte.to(tl.int32) << (8 * b)
    return word


@triton.jit
def code_at(data, index, inside, width, most: tl.constexpr):
    """Code `index` of `width` bits, in `most` bytes at most: int64. All its bytes are inside where it is."""
    bit = index.to(tl.int64) * width
    first = bit >> 3
    last = (bit + (width - 1)) >> 3
    word = tl.zeros_like(bit)
    for b in tl.static_range(most):
        byte = tl.load(data + first + b, mask=inside & (first + b <= last), other=0)
        word |= byte.to(tl.int64) << (8 * b)
    return (word >> (bit & 7)) & ((1 << width) - 1)


# ------------------------------------------------------------------------------------------------ writing


@triton.jit
def write_codes(where, k, first, data, width, size: tl.constexpr):
    """The lower `width` bits of the entries from `first` on; `size` of them fill whole bytes."""
    data += (first // 8).to(tl.int64) * width
    bytes_left = ((k - first).to(tl.int64) * width + 7) // 8
    for part in range(width):
        byte = part * (size // 8) + tl.arange(0, size // 8)
        entry = byte * 8 // width
        word = tl.zeros_like(byte)
        for j in range((width + 6) // width + 1):  # as many as meet in a byte
            shift = (entry + j) * width - byte * 8
            there = (first + entry + j < k) & (shift < 8)
            code = tl.load(where + first + entry + j, mask=there, other=0).to(tl.int32) & ((1 << width) - 1)
            word |= (code >> tl.maximum(-shift, 0)) << tl.minimum(tl.maximum(shift, 0), 8)
        tl.store(data + byte, (word & 255).to(tl.uint8), mask=byte < bytes_left)


@triton.jit
def _mark(where, i, there, low, step):
    """Where the marks of entries stand: int64."""
    return (tl.load(where + i, mask=there, other=0).to(tl.int64) >> low) + step * i


@triton.jit
def write_marks(where, k, i, data, length, low, step):
    """Entries that are the first in their byte of the string write it."""
    there = i < k
    place = _mark(where, i, there, low, step)
    before = _mark(where, i - 1, there & (i > 0), low, step)
    byte = place >> 3
    first = there & (place >= 0) & (place < length) & ((i == 0) | ((before >> 3) != byte))
    word = 1 << (place & 7).to(tl.int32)
    for j in tl.static_range(1, 8):
        more = first & (i + j < k)
        other = _mark(where, i + j, more, low, step)
        more = more & ((other >> 3) == byte) & (other < length)
        word |= tl.where(more, 1 << (other & 7).to(tl.int32), 0)
    tl.store(data + byte, word.to(tl.uint8), mask=first)


@triton.jit
def entries_below(where, k, bound, there, steps):
    """How many entries lie below each bound."""
    low = tl.zeros_like(bound).to(tl.int32)
    high = low + k
    for _ in range(steps):
        middle = (low + high) // 2
        still = there & (low < high)
        less = tl.load(where + middle, mask=still, other=0) < bound
        low = tl.where(still & less, middle + 1, low)
        high = tl.where(still & (less == 0), middle, high)
    return low


@triton.jit
def write_blocks(where, k, i, counts, offsets, blocks, steps):
    """Entries' offsets in their blocks, and how many entries the blocks of these numbers have."""
    there = i < k
    offset = tl.load(where + i, mask=there, other=0).to(tl.int32)
    store_bytes(offsets, i, offset, there, 2)
    if tl.min(i, 0) < blocks:
        block = i < blocks
        bound = i.to(tl.int64) * 65536
        count = entries_below(where, k, bound + 65536, block, steps) - entries_below(where, k, bound, block, steps)
        store_bytes(counts, i, count, block, 4)


@triton.jit
def _write(entries, coded, steps, programs, form: tl.constexpr, size: tl.constexpr):
    """Some entries of a row into its payload."""
    values, values_stride, where, where_stride, k = entries
    data, stride, start, upper, length = coded
    row = (tl.program_id(0) // programs).to(tl.int64)
    first = tl.program_id(0) % programs * size
    i = first + tl.arange(0, size)
    there = i < k
    data += row * stride
    where += row * where_stride
    if form[0] == 32:
        value = tl.load(values + row * values_stride + i, mask=there, other=0.0)
        store_bytes(data, i, value.to(tl.int32, bitcast=True), there, 4)
    if form[0] == 16:
        value = tl.load(values + row * values_stride + i, mask=there, other=0.0).to(tl.float16)
        store_bytes(data, i, value.to(tl.int16, bitcast=True).to(tl.int32), there, 2)
    if form[1] > 0:
        write_codes(where, k, first, data + start, form[1], size)
    if form[2]:
        write_marks(where, k, i, data + upper, length, form[1], form[3])
    if form[4]:
        write_blocks(where, k, i, data + start, data + upper, length, steps)


# ------------------------------------------------------------------------------------------------ reading


@triton.jit
def marks_from(data, first, length, size: tl.constexpr):
    """Marks of a string from number `first` on: 1 or 0."""
    place = first + tl.arange(0, size)
    byte = tl.load(data + (place >> 3), mask=place < length, other=0).to(tl.int32)
    return (byte >> (place & 7)) & 1


@triton.jit
def _ones(coded, counts, pieces, turns, size: tl.constexpr):
    """How many marks each piece of a string has."""
    data, stride, _, upper, length = coded
    row = (tl.program_id(0) // pieces).to(tl.int64)
    first = tl.program_id(0) % pieces * turns * size
    count = tl.zeros((size,), tl.int32)
    for turn in range(turns):
        count += marks_from(data + row * stride + upper, first + turn * size, length, size)
    tl.store(counts + tl.program_id(0), tl.sum(count, 0))


@triton.jit
def read_blocks(data, start, upper, blocks, first, i, there, size: tl.constexpr):
    """Indices of the entries from `first` on, from how many each block has and the offsets: int64."""
    b = tl.arange(0, size)
    at = first * 0
    count = load_bytes(data + start, b, b < blocks, 4).to(tl.int64)
    total = tl.sum(count, 0) * 0
    ended = tl.sum(((tl.cumsum(count, 0) <= first) & (b < blocks)).to(tl.int32), 0)
    while ended == size:  # more blocks than these end before the first entry
        total += tl.sum(count, 0)
        at += size
        count = load_bytes(data + start, at + b, at + b < blocks, 4).to(tl.int64)
        ended = tl.sum(((total + tl.cumsum(count, 0) <= first) & (at + b < blocks)).to(tl.int32), 0)
    total += tl.sum(tl.where(b < ended, count, 0), 0)
    at += ended
    block = tl.zeros_like(i) + at
    while (at < blocks) & (total < first + size):
        total += load_bytes(data + start, at, at < blocks, 4).to(tl.int64)
        block += (i >= total).to(tl.int32)
        at += 1
    return block.to(tl.int64) * 65536 + load_bytes(data + upper, i, there, 2)


@triton.jit
def read_marks(data, parts, k, where, first, before, low, step, most: tl.constexpr, size: tl.constexpr):
    """Indices of the entries whose marks stand from number `first` of a string on; `before` stand before.

    `parts`: where the lower bits and the string begin, and its length; codes of the lower bits meet `most` bytes.
    """
    start, upper, length = parts
    mark = marks_from(data + upper, first, length, size)
    i = before + tl.cumsum(mark, 0) - mark
    there = (mark != 0) & (i < k)
    found = (first + tl.arange(0, size) - step * i).to(tl.int64) << low
    if low > 0:
        found += code_at(data + start, i, there, low, most)
    tl.store(where + i, found, mask=there)
    return before + tl.sum(mark, 0)


@triton.jit
def _read(entries, coded, counts, pieces, turns, share, form: tl.constexpr, most: tl.constexpr, size: tl.constexpr):
    """Values and indices of a row, as far as they are this program's: `share` entries, and the marks of a piece."""
    values, values_stride, where, where_stride, k = entries
    data, stride, start, upper, length = coded
    parts = start, upper, length
    bytes_met: tl.constexpr = (form[1] + 14) // 8
    row = (tl.program_id(0) // pieces).to(tl.int64)
    piece = tl.program_id(0) % pieces
    data += row * stride
    where += row * where_stride
    known = k
    if form[2]:
        other = tl.arange(0, most)
        count = tl.load(counts + row * pieces + other, mask=other < pieces, other=0)
        known = tl.sum(count, 0)
        before = tl.sum(tl.where(other < piece, count, 0), 0)
        for turn in range(turns):
            first = (piece * turns + turn) * size
            before = read_marks(data, parts, k, where, first, before, form[1], form[3], bytes_met, size)
    for first in range(piece * share, tl.minimum((piece + 1) * share, k), size):
        i = first + tl.arange(0, size)
        there = i < tl.minimum((piece + 1) * share, k)
        if form[0] == 32:
            value = load_bytes(data, i, there, 4).to(tl.float32, bitcast=True)
            tl.store(values + row * values_stride + i, value, mask=there)
        if form[0] == 16:
            value = load_bytes(data, i, there, 2).to(tl.int16).to(tl.float16, bitcast=True)
            tl.store(values + row * values_stride + i, value.to(tl.float32), mask=there)
        if form[2]:  # no mark is left for the last entries
            there = there & (i >= known)
            found = (length - form[3] * i).to(tl.int64) << form[1]
            if form[1] > 0:
                found += code_at(data + start, i, there, form[1], bytes_met)
            tl.store(where + i, found, mask=there)
        elif form[4]:
            tl.store(where + i, read_blocks(data, start, upper, length, first, i, there, size), mask=there)
        else:
            tl.store(where + i, code_at(data + start, i, there, form[1], bytes_met), mask=there)


# ------------------------------------------------------------------------------------------------ launches


def _form(numel: int, k: int, coding: str, value_bits: int) -> tuple[Form, int, int, int]:
    """What to compile for; where indices begin, where what is behind their packed part does, and its length."""
    start = k * value_bits // 8
    if coding == "packed":
        return Form(value_bits, index_width(numel), False, 0, False), start, start, 0
    if coding == "bitmap":
        return Form(value_bits, 0, True, 0, False), start, start, numel
    if coding == "blocks":
        return Form(value_bits, 0, False, 0, True), start, start + 4 * block_count(numel), block_count(numel)
    low, length = parts(numel, k)
    return Form(value_bits, low, True, 1, False), start, start + packed_bytes(k, low), length


def write(values: Tensor | None, indices: Tensor, numel: int, coding: str, value_bits: int) -> Tensor:
    """Rows of values, in so many bits, and ascending indices, as they travel: (rows, bytes) uint8."""
    (rows, k), device = indices.shape, indices.device
    form, start, upper, length = _form(numel, k, coding, value_bits)
    data = torch.zeros((rows, start + index_bytes(numel, k, coding)), dtype=torch.uint8, device=device)
    values, where = None if values is None else _in_rows(values), _in_rows(indices)
    entries = Entries(values, 0 if values is None else values.stride(0), where, where.stride(0), k)
    coded = Coded(data, data.stride(0), start, upper, length)
    programs = triton.cdiv(max(k, length if form.blocks else 0), SIZE)
    launch(_write, rows * programs, device, entries, coded, k.bit_length(), programs, form=tuple(form), size=SIZE)
    return data


def read(data: Tensor, numel: int, k: int, coding: str, value_bits: int) -> tuple[Tensor | None, Tensor]:
    """The inverse: (rows, k) float32 values, if there are any, and int64 indices."""
    data, rows, device = _in_rows(data), data.shape[0], data.device
    form, start, upper, length = _form(numel, k, coding, value_bits)
    values = torch.empty((rows, k), device=device) if value_bits else None
    where = torch.empty((rows, k), dtype=torch.int64, device=device)
    entries, coded = Entries(values, k, where, k, k), Coded(data, data.stride(0), start, upper, length)
    tiles = triton.cdiv(length if form.marks else k, SIZE)
    turns = triton.cdiv(tiles, PIECES) if form.marks else 1
    pieces = triton.cdiv(tiles, turns)
    counts = None
    if form.marks:
        counts = torch.empty((rows, pieces), dtype=torch.int32, device=device)
        launch(_ones, rows * pieces, device, coded, counts, pieces, turns, size=SIZE)
    share = triton.cdiv(k, pieces)
    args = entries, coded, counts, pieces, turns, share
    launch(_read, rows * pieces, device, *args, form=tuple(form), most=PIECES, size=SIZE)
    return values, where


def _in_rows(x: Tensor) -> Tensor:
    return x if x.stride(1) == 1 else x.contiguous()


def serves(numel: int, k: int) -> bool:
    """Whether `write` and `read` can treat so many indices."""
    return 0 < k <= numel < MOST


@only(lambda indices, numel, coding: serves(numel, indices.shape[1]))
def encode(indices: Tensor, numel: int, coding: str) -> Tensor:
    return write(None, indices, numel, coding, 0)


@only(lambda data, numel, count, coding: serves(numel, count))
def decode(data: Tensor, numel: int, count: int, coding: str) -> Tensor:
    return read(data, numel, count, coding, 0)[1]
