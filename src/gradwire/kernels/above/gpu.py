"""Elements beyond a threshold on a GPU: `_count` marks and counts those of each tile, `_collect` writes them in order.

Running sums say where those of a tile begin. The host waits for the last of each row: they say how long the payload is.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from gradwire.core.window import Feedback, Window
from gradwire.kernels.candidates.gpu import bits_set, held_values, lowest_bit, mark
from gradwire.kernels.counted.gpu import HEAD, empty, write_indices
from gradwire.kernels.launch import launch
from gradwire.kernels.select.gpu import sent_of, take_off
from gradwire.kernels.window.gpu import compensated_tile, keep
from gradwire.kernels.window.places import memory_of, place_of

TILE = 1024  # elements of a program that marks
WORDS = 64  # of 32 marks, of a program that collects: it is one warp, which waits for nobody


@triton.jit
def _count(place, memory, threshold, counts, marks, size: tl.constexpr):
    """Compensate, keep that, and mark and count what exceeds the threshold."""
    worker, _shard, _tile, _row, element, position, inside, a = compensated_tile(place, memory, size)
    keep(a, memory, worker, position, inside)
    to = marks + tl.program_id(0).to(tl.int64) * (size // 8)
    many = mark(to, inside & ((tl.abs(a) <= threshold) == 0), element, size)
    tl.store(counts + tl.program_id(0), many)


@triton.jit
def _collect(held, sums, marks, data, stride, where, sent, bits: tl.constexpr, words: tl.constexpr, size: tl.constexpr):
    """What is marked: values to their row, places to one list; they are taken off the new error."""
    tiles = held[5]
    all_words = tiles * (size // 32)
    programs = tl.cdiv(all_words, words)
    row = tl.program_id(0) // programs
    first = tl.program_id(0) % programs * words
    number = first + tl.arange(0, words)
    tile = row.to(tl.int64) * tiles  # the row's first
    marks = marks.to(tl.pointer_type(tl.uint32)) + tile * (size // 32)
    word = tl.load(marks + number, mask=number < all_words, other=0)
    begin = tl.load(sums + tile - 1, mask=row > 0, other=0)
    tile += first // (size // 32)
    start = tl.load(sums + tile - 1, mask=tile > 0, other=0)
    count = bits_set(word)
    slot = tl.cumsum(count, 0) - count
    data += row.to(tl.int64) * stride + HEAD
    where += start
    before = (start - begin).to(tl.int32)
    while tl.max((word != 0).to(tl.int32), 0) > 0:
        there = word != 0
        lowest, rest = lowest_bit(word)
        element = number * 32 + lowest
        a = held_values(held, row, element, there)
        tl.store(where + slot, element, mask=there)
        if bits == 16:
            tl.store(data.to(tl.pointer_type(tl.float16)) + (before + slot), a.to(tl.float16), mask=there)
        else:
            tl.store(data.to(tl.pointer_type(tl.float32)) + (before + slot), a, mask=there)
        if sent[0] is not None:
            take_off(sent, a, row % held[3] * held[4] + element, row // held[3], there, bits)
        slot += 1
        word = rest


def send_from(
    source: Window,
    feedback: Feedback | None,
    shards: int,
    shard: int,
    threshold: float,
    value_bits: int,
    factor: float,
) -> tuple[Tensor, Tensor]:
    device, rows, memory = source.buffer.device, source.rows * shards, memory_of(feedback)
    place = place_of(source, shards, shard, TILE)
    if memory.out is None and place.firsts is not None:  # the second pass wants rows that lie together
        out = torch.empty((source.rows, source.numel), device=device)
        memory = memory._replace(out=out, out_stride=out.stride(0))
    held = place if memory.out is None else place_of(Window.whole(memory.out), shards, shard, TILE)
    tally = torch.empty(rows * place.tiles, dtype=torch.int32, device=device)
    marks = torch.empty((tally.numel(), TILE // 8), dtype=torch.uint8, device=device)
    launch(_count, tally.numel(), device, place, memory, threshold, tally, marks, size=TILE)
    sums = tally.cumsum(0)
    ends = sums[place.tiles - 1 :: place.tiles].tolist()
    counts = [end - start for start, end in zip([0, *ends], ends, strict=False)]
    data, lengths = empty(counts, shard, value_bits, device)
    where = torch.empty(ends[-1], dtype=torch.int32, device=device)
    args = held, sums, marks, data, data.stride(0), where, sent_of(feedback, factor)
    programs = rows * triton.cdiv(place.tiles * TILE, 32 * WORDS)
    launch(_collect, programs, device, *args, warps=1, bits=value_bits, words=WORDS, size=TILE)
    write_indices(where, sums, place.tiles, max(counts), data, shard, value_bits)
    return data, lengths
