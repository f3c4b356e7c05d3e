"""Tiles of a window on a GPU: what programs load from it and store to it. See `places` for where elements lie.

Kernels take their arguments in groups, as tuples: a `Place`, a `Memory`. What is None is compiled away.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from gradwire.core.window import Feedback, Flag, Window
from gradwire.kernels.launch import launch
from gradwire.kernels.window.places import memory_of, place_of, stride_of

TILE = 1024  # elements of a program that only moves them


@triton.jit
def tile_of(place):
    """Worker, shard and tile that this program treats; and the number of the shard among all."""
    program, tiles, shards = tl.program_id(0), place[5], place[3]
    row = program // tiles
    return row // shards, row % shards, program % tiles, row


@triton.jit
def _sum(base, offset, wide, size: tl.constexpr):
    """`base` + `offset`; where there is `wide`, fours lie together there, from multiples of `size` on.

    The compiler can be told so only of a sum that is made here, not of one that is handed in.
    """
    found = base + offset
    if wide is None:
        return found
    elif len(found.shape) == 0:
        return tl.multiple_of(found, [size])
    elif len(found.shape) == 1:
        return tl.max_contiguous(tl.multiple_of(found, [size]), [4])
    else:
        return tl.max_contiguous(tl.multiple_of(found, [1, size]), [1, 4])


@triton.jit
def both(inside, live, place):
    """Which elements are in both; of four neighbours all or none, where they lie together."""
    found = inside & live
    if place[9] is None:
        return found
    elif len(found.shape) == 1:
        return tl.max_constancy(found, [4])
    else:
        return tl.max_constancy(found, [1, 4])


@triton.jit
def position_of(place, shard, element):
    """Elements of a shard, counted from the first of their worker."""
    return _sum(element, shard * place[4], place[9], 4)


@triton.jit
def places(place, worker, shard, tile, element, size: tl.constexpr):
    """Where any elements `element` of tile `tile`, of `size` elements, of a shard lie; and which there are."""
    x, stride, numel, _, length, _, shifts, firsts, _, _ = place
    position = shard * length + element
    to = x + worker.to(tl.int64) * stride
    if firsts is None:
        return (to + tl.load(shifts)) + position, position < numel
    else:
        span, last, end = _span(place, shard, tile, size)
        shift = tl.zeros_like(position) + tl.load(shifts + span)
        while last < end:  # most tiles lie in one span
            span += 1
            shift = tl.where(position >= last, tl.load(shifts + span), shift)
            last = tl.load(firsts + span + 1)
        return to + (position + shift), position < numel


@triton.jit
def _span(place, shard, tile, size: tl.constexpr):
    """The first span that a tile of a shard meets, where that ends, and where the tile does."""
    numel, length, firsts = place[2], place[4], place[7]
    span = tl.load(place[8] + shard * place[5] + tile)
    end = tl.minimum(shard * length + tl.minimum((tile + 1) * size, length), numel)
    return span, tl.load(firsts + span + 1), end


@triton.jit
def take(place, worker, shard, tile, element, live, size: tl.constexpr):
    """The elements of a tile, zero where there is none, and which there are. Span by span: see `_sum`."""
    x, stride, numel, _, _, _, shifts, firsts, _, wide = place
    width: tl.constexpr = 4 * (x.dtype.element_ty.primitive_bitwidth // 8)
    position = position_of(place, shard, element)
    inside = both(position < numel, live & (element < place[4]), place)  # behind a shard lies the next
    x += worker.to(tl.int64) * stride
    if firsts is None:
        a = tl.load(_sum(x + tl.load(shifts), position, wide, width), mask=inside, other=0.0)
    else:
        span, last, end = _span(place, shard, tile, size)
        here = both(inside, position < last, place)
        a = tl.load(_sum(x + tl.load(shifts + span), position, wide, width), mask=here, other=0.0)
        while last < end:  # seldom
            here = inside & (position >= last)
            span += 1
            last = tl.load(firsts + span + 1)
            here = both(here, position < last, place)
            a = tl.load(_sum(x + tl.load(shifts + span), position, wide, width), mask=here, other=a)
    return a, inside


@triton.jit
def put(values, place, worker, shard, tile, element, live, size: tl.constexpr):
    """The elements of a tile become `values`."""
    x, stride, numel, _, _, _, shifts, firsts, _, wide = place
    width: tl.constexpr = 4 * (x.dtype.element_ty.primitive_bitwidth // 8)
    position = position_of(place, shard, element)
    inside = both(position < numel, live & (element < place[4]), place)  # behind a shard lies the next
    x += worker.to(tl.int64) * stride
    values = values.to(x.dtype.element_ty)
    if firsts is None:
        tl.store(_sum(x + tl.load(shifts), position, wide, width), values, mask=inside)
    else:
        span, last, end = _span(place, shard, tile, size)
        here = both(inside, position < last, place)
        tl.store(_sum(x + tl.load(shifts + span), position, wide, width), values, mask=here)
        while last < end:
            here = inside & (position >= last)
            span += 1
            last = tl.load(firsts + span + 1)
            here = both(here, position < last, place)
            tl.store(_sum(x + tl.load(shifts + span), position, wide, width), values, mask=here)


@triton.jit
def put_checked(values, place, worker, shard, tile, element, live, flag, size: tl.constexpr):
    """The elements of a tile become `values`, in float32; `flag` becomes NaN if one is not finite."""
    bad = tl.sum(tl.where(live, values.to(tl.float32) * 0, 0.0))
    tl.store(flag, bad, mask=bad != bad)  # all programs that find one write the same
    put(values, place, worker, shard, tile, element, live, size)


@triton.jit
def anywhere(place, worker, position):
    """Where any elements of a worker's vector lie."""
    x, stride, numel, _, _, _, shifts, firsts, _, _ = place
    to = x + worker.to(tl.int64) * stride
    if firsts is None:
        return to + (position + tl.load(shifts))
    else:
        shift = tl.zeros_like(position)
        span = 0
        first = tl.load(firsts)
        while first < numel:
            shift = tl.where(position >= first, tl.load(shifts + span), shift)
            span += 1
            first = tl.load(firsts + span)
        return to + (position + shift)


@triton.jit
def compensated(a, memory, worker, position, inside):
    """``gain·a + decay·error`` of a tile, in float32."""
    if memory[0] is None:
        return _scaled(a, memory)
    else:
        at = memory[0] + worker.to(tl.int64) * memory[1] + position
        return _scaled(a, memory) + _decayed(tl.load(at, mask=inside, other=0.0), memory)


@triton.jit
def _scaled(a, memory):
    a = a.to(tl.float32)
    if memory[4] is not None:
        a = a * memory[4]
    return a


@triton.jit
def _decayed(e, memory):
    if memory[2] is not None:
        e = e * memory[2]
    if memory[3] is not None:
        e = e * tl.load(memory[3])
    return e


@triton.jit
def take_compensated(place, memory, worker, shard, tile, element, live, size: tl.constexpr):
    """The elements of a tile with what a memory adds, zero where there is none; and where they are, for `keep_there`.

    If all are there, in one span, they are loaded in branches that use nothing of it, so that all loads begin at once,
    and from few addresses.
    """
    x, stride, numel, _, length, _, shift, firsts, _, wide = place
    width: tl.constexpr = 4 * (x.dtype.element_ty.primitive_bitwidth // 8)
    position = position_of(place, shard, element)
    inside = both(position < numel, live & (element < length), place)
    whole = (tile + 1) * size <= tl.minimum(length, numel - shard * length)
    whole = whole & (size == element.numel)  # all columns count
    first, near = _sum(tile * size, shard * length, wide, 4), element - tile * size
    if firsts is not None:
        span, last, end = _span(place, shard, tile, size)
        whole = whole & (last >= end)
        shift += span
    if whole:
        a = tl.load(_sum(x + worker.to(tl.int64) * stride + tl.load(shift) + first, near, wide, width))
    else:
        a, _there = take(place, worker, shard, tile, element, live, size)
    there = position, inside, whole, first, near
    if memory[0] is None:
        return _scaled(a, memory), there
    else:
        error = memory[0] + worker.to(tl.int64) * memory[1]
        if whole:
            e = tl.load(error + first + near)
        else:
            e = tl.load(error + position, mask=inside, other=0.0)
        return _scaled(a, memory) + _decayed(e, memory), there


@triton.jit
def divided(total, count):
    """A sum of `count` numbers, divided by it; a power of two needs a product only, which is exact."""
    if (count & (count - 1)) == 0:
        found = total * (1.0 / count)
    else:
        found = tl.div_rn(total, tl.zeros_like(total) + count)
    return found


@triton.jit
def keep(lost, memory, worker, position, inside):
    """What is lost becomes the new error, where there is a memory."""
    _, _, _, _, _, out, stride = memory
    if out is not None:
        tl.store(out + worker.to(tl.int64) * stride + position, lost, mask=inside)


@triton.jit
def keep_there(lost, memory, worker, there):
    """`keep`, for what `take_compensated` gave."""
    position, inside, whole, first, near = there
    if memory[5] is not None:
        out = memory[5] + worker.to(tl.int64) * memory[6]
        if whole:
            tl.store(out + first + near, lost)
        else:
            tl.store(out + position, lost, mask=inside)


@triton.jit
def write(values, at, inside, flag):
    """Values, in float32, to where they belong; `flag` becomes NaN if one is not finite."""
    bad = tl.sum(tl.where(inside, values * 0, 0.0))
    tl.store(flag, bad, mask=bad != bad)  # all programs that find one write the same
    tl.store(at, values.to(at.dtype.element_ty), mask=inside)


@triton.jit
def compensated_tile(place, memory, size: tl.constexpr):
    """This program's tile, for kernels that know no blocks, with what a memory adds.

    Worker, shard, tile and row; then of the elements: which they are, where, which there are, and the gradients.
    """
    worker, shard, tile, row = tile_of(place)
    element = tile * size + tl.arange(0, size)
    a, inside = take(place, worker, shard, tile, element, element < place[4], size)
    position = position_of(place, shard, element)
    return worker, shard, tile, row, element, position, inside, compensated(a, memory, worker, position, inside)


@triton.jit
def _read(place, out, stride, size: tl.constexpr):
    worker, shard, tile, _ = tile_of(place)
    element = tile * size + tl.arange(0, size)
    x, inside = take(place, worker, shard, tile, element, element < place[4], size)
    tl.store(out + worker.to(tl.int64) * stride + element, x.to(out.dtype.element_ty), mask=inside)


@triton.jit
def _write(values, stride, place, flag, size: tl.constexpr):
    worker, shard, tile, _ = tile_of(place)
    element = tile * size + tl.arange(0, size)
    live = element < place[4]
    x = tl.load(values + worker.to(tl.int64) * stride + element, mask=live)
    put_checked(x, place, worker, shard, tile, element, live, flag, size)


@triton.jit
def _compensate(place, memory, bad, size: tl.constexpr):
    """Compensate, and keep that; `bad` becomes 1 for workers whose vector is not finite."""
    worker, _shard, _tile, _row, _element, position, inside, a = compensated_tile(place, memory, size)
    keep(a, memory, worker, position, inside)
    wrong = tl.max((inside & (a * 0 != 0)).to(tl.int32), 0)
    tl.store(bad + worker, 1, mask=wrong > 0)


def read_spans(window: Window, dtype: torch.dtype) -> Tensor:
    """The elements as one tensor, (rows, numel)."""
    out = torch.empty((window.rows, window.numel), dtype=dtype, device=window.buffer.device)
    place = place_of(window, 1, window.numel, TILE)
    launch(_read, window.rows * place.tiles, out.device, place, out, out.stride(0), size=TILE)
    return out


def write_spans(window: Window, values: Tensor) -> Flag:
    """Put `values`, (rows, numel) or (1, numel), where the elements lie; whether they are finite."""
    place, stride = place_of(window, 1, window.numel, TILE), values.stride(0) if values.shape[0] > 1 else 0
    flag = torch.zeros((), device=values.device)
    launch(_write, window.rows * place.tiles, values.device, values, stride, place, flag, size=TILE)
    return flag


def compensate(source: Window, feedback: Feedback | None) -> tuple[Tensor, Tensor]:
    """What `feedback.out` holds then, or room for it; and, (rows, 1), which workers' vectors are not finite."""
    device = source.buffer.device
    out = torch.empty((source.rows, source.numel), device=device) if feedback is None else feedback.out
    memory = memory_of(feedback)._replace(out=out, out_stride=stride_of(out))
    place, bad = (
        place_of(source, 1, source.numel, TILE),
        torch.zeros((source.rows, 1), dtype=torch.uint8, device=device),
    )
    launch(_compensate, source.rows * place.tiles, device, place, memory, bad, size=TILE)
    return out, bad.view(torch.bool)
