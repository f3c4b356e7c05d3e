"""Tagged fixed point, compiled: a pass that counts, then a pass in which each tile knows where its parts begin.

A tile's numbers are gathered by tag without a branch: each is written at the end of all three parts, and only the part
of its tag grows.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gradwire.kernels.bitpack.cpu import flat, pack_codes, unpack_codes
from gradwire.kernels.jit import jit
from gradwire.kernels.parallel import split_rows
from gradwire.kernels.rows import check_bytes

TILE = 4096  # elements at a time; a multiple of 8

_TO_EVEN = np.float32(1.5 * 2**23)  # added and taken off, it rounds numbers below 2^22; larger ones stay large
_SIZES = (1, 2, 4)  # bytes of a number, by tag


@jit
def _classify(x: np.ndarray, factor: Any, codes: np.ndarray, tags: np.ndarray, counts: np.ndarray) -> None:
    """Codes, which mean nothing at tag 3, and tags, and how often each but 0 occurs."""
    one, two, three = np.int32(0), np.int32(0), np.int32(0)
    for i in range(x.size):
        code = (x[i] * factor + _TO_EVEN) - _TO_EVEN
        size = abs(code)
        some, wide, whole = not (size <= 0), not (size <= 127), not (size <= 32767)  # NaN: 3
        codes[i] = np.int32(np.float32(0) if whole else code)
        tags[i] = np.uint8(some) + np.uint8(wide) + np.uint8(whole)
        one += np.int32(some)
        two += np.int32(wide)
        three += np.int32(whole)
    counts[0], counts[1], counts[2] = one - two, two - three, three


@jit
def _count(x: np.ndarray, stride: int, numel: int, factor: Any, counts: np.ndarray, first: int, last: int) -> None:
    tiles = (numel + TILE - 1) // TILE
    codes, tags = np.empty(TILE, np.int32), np.empty(TILE, np.uint8)
    for tile in range(first, last):
        row, start = tile // tiles, tile % tiles * TILE
        part = x[row * stride + start : row * stride + min(start + TILE, numel)]
        _classify(part, factor, codes, tags, counts[tile])


@jit
def _encode(
    x: np.ndarray,
    stride: int,
    numel: int,
    factor: Any,
    starts: np.ndarray,
    out: np.ndarray,
    first: int,
    last: int,
) -> None:
    tiles, counts = (numel + TILE - 1) // TILE, np.empty(3, np.int64)
    codes, tags = np.empty(TILE, np.int32), np.empty(TILE, np.uint8)
    one, two, four = np.empty(TILE, np.uint8), np.empty(TILE, np.uint16), np.empty(TILE, np.float32)
    for tile in range(first, last):
        row, start = tile // tiles, tile % tiles * TILE
        part, target, begin = x[row * stride + start : row * stride + min(start + TILE, numel)], out[row], starts[tile]
        _classify(part, factor, codes, tags, counts)
        pack_codes(tags[: part.size], 2, target[start // 4 :])
        a, b, c = np.uint64(0), np.uint64(0), np.uint64(0)
        for i in range(part.size):
            one[a], two[b], four[c] = np.uint8(codes[i]), np.uint16(codes[i]), part[i]
            a += np.uint64(tags[i] == 1)
            b += np.uint64(tags[i] == 2)
            c += np.uint64(tags[i] == 3)
        _copy(one[:a], target[begin[0] :])
        _copy(two[:b].view(np.uint8), target[begin[1] :])
        _copy(four[:c].view(np.uint8), target[begin[2] :])


@jit
def _copy(source: np.ndarray, target: np.ndarray) -> None:
    for i in range(source.size):
        target[i] = source[i]


@jit
def _recount(data: np.ndarray, stride: int, numel: int, counts: np.ndarray, first: int, last: int) -> None:
    tiles, room = (numel + TILE - 1) // TILE, np.empty(TILE, np.uint8)
    for tile in range(first, last):
        row, start = tile // tiles, tile % tiles * TILE
        tags = room[: min(TILE, numel - start)]
        unpack_codes(data[row * stride + start // 4 :], 2, tags)
        one, two, three = np.int32(0), np.int32(0), np.int32(0)
        for i in range(tags.size):
            one += np.int32(tags[i] == 1)
            two += np.int32(tags[i] == 2)
            three += np.int32(tags[i] == 3)
        counts[tile, 0], counts[tile, 1], counts[tile, 2] = one, two, three


@jit
def _decode(
    data: np.ndarray,
    stride: int,
    bound: Any,
    counts: np.ndarray,
    starts: np.ndarray,
    out: np.ndarray,
    first: int,
    last: int,
) -> None:
    numel, room = out.shape[1], np.empty(TILE, np.uint8)
    tiles = (numel + TILE - 1) // TILE
    one, two, four = np.empty(TILE + 1, np.int8), np.empty(TILE + 1, np.int16), np.empty(TILE + 1, np.uint32)
    value = np.empty(4, np.float32)
    bits = value.view(np.uint32)
    value[0] = np.float32(0)
    for tile in range(first, last):
        row, start = tile // tiles, tile % tiles * TILE
        part, begin, source = out[row, start : start + TILE], starts[tile], data[row * stride :]
        tags = room[: part.size]
        unpack_codes(source[start // 4 :], 2, tags)
        _copy(source[begin[0] : begin[0] + counts[tile, 0]], one.view(np.uint8))
        _copy(source[begin[1] : begin[1] + 2 * counts[tile, 1]], two.view(np.uint8))
        _copy(source[begin[2] : begin[2] + 4 * counts[tile, 2]], four.view(np.uint8))
        a, b, c = np.uint64(0), np.uint64(0), np.uint64(0)
        for i in range(part.size):
            value[1], value[2], bits[3] = np.float32(one[a]) * bound, np.float32(two[b]) * bound, four[c]
            part[i] = value[tags[i]]
            a += np.uint64(tags[i] == 1)
            b += np.uint64(tags[i] == 2)
            c += np.uint64(tags[i] == 3)


def encode(x: Tensor, bound: float) -> tuple[Tensor, Tensor]:
    rows, numel = x.shape
    common = *flat(x), numel, np.float32(1 / bound)
    _, starts, ends = _plan(lambda counts, first, last: _count(*common, counts, first, last), rows, numel)
    width = max(ends.tolist(), default=0)
    out = torch.empty((rows, width), dtype=torch.uint8)
    target = out.numpy()
    split_rows(lambda first, last: _encode(*common, starts, target, first, last), rows, numel, TILE)
    for row, end in zip(target, ends, strict=True):
        row[end:] = 0
    return out, torch.from_numpy(ends)


def decode(data: Tensor, bound: float, numel: int) -> Tensor:
    rows, (source, stride) = data.shape[0], flat(data)
    work = lambda counts, first, last: _recount(source, stride, numel, counts, first, last)  # noqa: E731
    counts, starts, ends = _plan(work, rows, numel)
    check_bytes(data, int(max(ends, default=0)))
    out = torch.empty((rows, numel), dtype=torch.float32)
    common = source, stride, np.float32(bound), counts, starts, out.numpy()
    split_rows(lambda first, last: _decode(*common, first, last), rows, numel, TILE)
    return out


def _plan(count: Callable[[np.ndarray, int, int], None], rows: int, numel: int) -> tuple[Any, Any, Any]:
    """Each tile's counts by tag; the bytes where its three parts begin; and where each row ends."""
    tiles = -(-numel // TILE)
    counts = np.zeros((rows * tiles, 3), np.int64)
    split_rows(lambda first, last: count(counts, first, last), rows, numel, TILE)
    taken = counts.reshape(rows, tiles, 3) * np.array(_SIZES)
    before = taken.cumsum(1) - taken
    sizes = taken.sum(1)
    begins = -(-numel // 4) + sizes.cumsum(1) - sizes  # of the parts of each row
    return counts, (before + begins[:, None]).reshape(rows * tiles, 3), -(-numel // 4) + sizes.sum(1)
