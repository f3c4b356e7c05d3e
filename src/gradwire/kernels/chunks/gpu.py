"""Chunks on a GPU: a launch that arranges what is kept, and one each way."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from gradwire.core.window import Feedback, Flag, Window
from gradwire.kernels.backend import only
from gradwire.kernels.blockwise.gpu import LARGEST, columns_of
from gradwire.kernels.chunks import Agreed
from gradwire.kernels.launch import launch
from gradwire.kernels.select import top_from
from gradwire.kernels.window.gpu import anywhere, put, put_checked, tile_of
from gradwire.kernels.window.places import MOST, fits, place_of

TILE = 1024  # elements of a program, or of one chunk that is larger


@triton.jit
def _scale(bits):
    """2^e such that sqrt(energy)·2^e lies in [2¹², 2¹⁴), for an energy given by its bits; 2¹³ for zero and NaN."""
    fraction = bits.to(tl.float32).to(tl.int32, bitcast=True)  # of a subnormal number, in units of 2⁻¹⁴⁹
    power = tl.where(bits < 0x00800000, (fraction >> 23) - 276, (bits >> 23) - 127)
    exponent = 13 - (power >> 1)
    exponent = tl.where((bits == 0) | (bits > 0x7F800000), 13, tl.where(bits == 0x7F800000, -100, exponent))
    return ((exponent + 127) << 23).to(tl.float32, bitcast=True)


@triton.jit
def _arrange(values, kept, count, steps, workers, slots, chunks, found, size: tl.constexpr):
    """Which of the kept chunks each chunk is; and by the largest of their energies the scales, and a zero."""
    number = tl.program_id(0) * size + tl.arange(0, size)
    there = number < chunks
    low = tl.zeros_like(number)
    high = low + count
    for _ in range(steps):
        middle = (low + high) // 2
        still = there & (low < high)
        below = tl.load(kept + middle, mask=still, other=0) < number
        low = tl.where(still & below, middle + 1, low)
        high = tl.where(still & (below == 0), middle, high)
    same = tl.load(kept + low, mask=there & (low < count), other=-1) == number
    tl.store(slots + number, tl.where(same, low, -1), mask=there)
    if tl.program_id(0) == 0:
        largest = tl.zeros((size,), tl.int32)
        for start in range(0, count, size):
            i = start + tl.arange(0, size)
            energy = tl.load(values + i, mask=i < count, other=0.0)
            largest = tl.maximum(largest, energy.to(tl.int32, bitcast=True) & 0x7FFFFFFF)
        scale = tl.div_rn(_scale(tl.max(largest, 0)), workers)
        tl.store(found, scale)
        tl.store(found + 1, scale * workers)
        tl.store(found + 2, scale * 0)


@triton.jit
def _take(
    place, held, kept, chunks, scale, mine, tiles, block: tl.constexpr, rows: tl.constexpr, columns: tl.constexpr
):
    out, momentum = held
    worker, tile = tl.program_id(0) // tiles, tl.program_id(0) % tiles
    slot = tile * rows + tl.arange(0, rows)
    column = tl.arange(0, columns)
    live = (slot < chunks)[:, None] & (column < block)[None, :]
    number = tl.load(kept + slot, mask=slot < chunks, other=0).to(tl.int32)
    element = number[:, None] * block + column[None, :]
    inside = live & (element < place[2])
    row = worker.to(tl.int64) * place[2]
    if out is None:
        x = tl.load(anywhere(place, worker, element), mask=inside, other=0.0).to(tl.float32)
    else:
        x = tl.load(out + row + element, mask=inside, other=0.0)
    factor = tl.load(scale)
    half = (x * factor).to(tl.float16)
    to = worker.to(tl.int64) * chunks * block + slot[:, None] * block + column[None, :]
    tl.store(mine + to, half, mask=live)
    if out is not None:
        own = tl.div_rn(half.to(tl.float32), tl.zeros_like(x) + factor)
        tl.store(out + row + element, x - own, mask=inside)
        if momentum is not None:
            tl.store(momentum + row + element, tl.zeros_like(x), mask=inside & (own != 0))


@triton.jit
def _put(values, slots, scale, place, flag, block: tl.constexpr, few: tl.constexpr, size: tl.constexpr):
    """Few tiles hold a chunk that is kept: the others are zeros."""
    worker, shard, tile, _ = tile_of(place)
    element = tile * size + tl.arange(0, size)
    live = element < place[4]
    number = tile * size // block + tl.arange(0, few)
    there = number * block < tl.minimum((tile + 1) * size, place[2])
    if tl.max(tl.load(slots + number, mask=there, other=-1), 0) >= 0:
        mine = element // block
        slot = tl.load(slots + mine, mask=live, other=-1)
        half = tl.load(values + slot * block + (element - mine * block), mask=slot >= 0, other=0.0)
        x = tl.div_rn(half.to(tl.float32), tl.zeros((size,), tl.float32) + tl.load(scale))
        put_checked(tl.where(slot >= 0, x, 0.0), place, worker, shard, tile, element, live, flag, size)
    else:
        put(tl.zeros((size,), tl.float32), place, worker, shard, tile, element, live, size)


def _agrees(energies: Tensor, count: int, workers: int) -> bool:
    return fits(Window.whole(energies)) and energies.shape[0] == 1 and energies.shape[1] < MOST


@only(_agrees)
def agree(energies: Tensor, count: int, workers: int) -> Agreed:
    device, chunks = energies.device, energies.shape[1]
    values, where = top_from(Window.whole(energies), None, 1, chunks, count)
    slots, found = torch.empty(chunks, dtype=torch.int32, device=device), torch.empty(3, device=device)
    args = values, where, count, count.bit_length(), float(workers), slots, chunks, found
    launch(_arrange, triton.cdiv(chunks, TILE), device, *args, size=TILE)
    return Agreed(where[0], found[0], found[1], slots, found[2])


def _takes(source: Window, feedback: Feedback | None, agreed: Agreed, chunk: int) -> bool:
    held = [] if feedback is None else [feedback.out, *([] if feedback.momentum is None else [feedback.momentum])]
    return fits(source) and chunk <= LARGEST and all(t.is_contiguous() for t in held)


@only(_takes)
def take_from(source: Window, feedback: Feedback | None, agreed: Agreed, chunk: int) -> Tensor:
    device, chunks, columns = source.buffer.device, agreed.kept.numel(), columns_of(chunk)
    rows = max(1, TILE // columns)
    mine = torch.empty((source.rows, chunks, chunk), dtype=torch.float16, device=device)
    held = (None, None) if feedback is None else (feedback.out, feedback.momentum)
    place, tiles, warps = place_of(source, 1, source.numel, TILE), triton.cdiv(chunks, rows), _warps(rows * columns)
    args = place, held, agreed.kept, chunks, agreed.scale, mine, tiles
    launch(_take, source.rows * tiles, device, *args, warps=warps, block=chunk, rows=rows, columns=columns)
    return mine


def _warps(elements: int) -> int:
    """Of a program that treats so many elements."""
    return min(16, max(4, elements // 256))


def _puts(values: Tensor, agreed: Agreed, chunk: int, target: Window) -> bool:
    return fits(target) and agreed.slots is not None and values.is_contiguous()


@only(_puts)
def put_to(values: Tensor, agreed: Agreed, chunk: int, target: Window) -> Flag:
    place, flag = place_of(target, 1, target.numel, TILE), agreed.zero
    assert flag is not None, "comes with the slots"
    few = TILE // chunk if TILE % chunk == 0 else int(triton.next_power_of_2(TILE // chunk + 2))
    args = values, agreed.slots, agreed.total, place, flag
    launch(_put, place.tiles, values.device, *args, block=chunk, few=few, size=TILE)
    return flag
