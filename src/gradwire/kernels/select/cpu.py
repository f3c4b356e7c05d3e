"""Selection on the bit patterns of magnitudes, which order as the magnitudes do.

`top` guesses the smallest kept magnitude from a sample, collects what lies above the guess in one pass at about the
speed of memory, and selects exactly among these candidates. A guess that proves too high is lowered.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gradwire.kernels.jit import jit
from gradwire.kernels.parallel import LARGE, split

_MAGNITUDE = np.int32(0x7FFFFFFF)
_INFINITY = np.int32(0x7F800000)
_NAN = np.int32(0x7F800001)  # stands for all of them
_CHUNK = 4096  # elements whose marks stay in the first cache
_DENSE = _CHUNK // 16  # marks in a chunk from which on it does not pay to look for eights without any
_LEAST, _MOST = 4096, 32768  # elements of the sample
_NO_VALUES = np.empty(0, np.int32)


def top(x: Tensor, k: int) -> Tensor:
    (rows, numel), bits = x.shape, _bits(x)
    if not 0 <= k <= numel:
        raise ValueError(f"top {k} of {numel} elements")
    if k in (0, numel):
        return torch.arange(k).expand(rows, k).contiguous()
    out = torch.empty((rows, k), dtype=torch.int64)
    chosen = out.numpy()
    if numel < LARGE:
        split(lambda a, b: _top_rows(bits[a // numel : b // numel], chosen[a // numel : b // numel]), x.numel(), numel)
    else:
        index, value = _buffers(numel)
        for r in range(rows):
            _top_large(bits[r], chosen[r], index, value)
    return out


def above(x: Tensor, threshold: Tensor) -> tuple[Tensor, Tensor]:
    bits, (index, _) = _bits(x), _buffers(x.shape[1])
    found = []
    for row, limit in zip(bits, threshold.tolist(), strict=True):
        count = _collect_large(row, _bound(limit), index, _NO_VALUES)
        found.append(torch.from_numpy(index[:count]).clone())
    counts = torch.tensor([f.numel() for f in found], dtype=torch.int64)
    out = torch.zeros((len(found), max(counts.tolist(), default=0)), dtype=torch.int64)
    for line, chosen in zip(out, found, strict=True):
        line[: chosen.numel()] = chosen
    return out, counts


def count_above(x: Tensor, thresholds: Tensor) -> Tensor:
    values, limits = x.detach().contiguous().numpy(), thresholds.detach().contiguous().numpy()
    counts = np.zeros(limits.shape, np.int64)
    for r in range(values.shape[0]):
        pieces: list[np.ndarray] = []
        split(lambda a, b: pieces.append(_count_above(values[r, a:b], limits[r])), values.shape[1])  # noqa: B023
        counts[r] = sum(pieces)
    return torch.from_numpy(counts)


def _bits(x: Tensor) -> np.ndarray:
    return x.detach().contiguous().view(torch.int32).numpy()


def _buffers(numel: int) -> tuple[np.ndarray, np.ndarray]:
    """Room for indices and bit patterns; torch's memory, which often is there already."""
    return torch.empty(numel, dtype=torch.int64).numpy(), torch.empty(numel, dtype=torch.int32).numpy()


def _bound(threshold: float) -> np.int32:
    """The largest bit pattern of a magnitude that is at most the threshold; −1 where none is."""
    if threshold < 0 or math.isnan(threshold):
        return np.int32(-1)
    return np.float32(abs(threshold)).view(np.int32)


def _top_large(bits: np.ndarray, out: np.ndarray, index: np.ndarray, value: np.ndarray) -> None:
    """One row of `top`, its one long pass cut over the threads."""
    sample = _sample(bits)
    rank = _rank(sample.size, out.size, bits.size)
    while True:
        bound = np.int32(_guess(sample, rank))
        count = _collect_large(bits, bound, index, value)
        if _finish(bits, bound, index, value, count, out):
            return
        rank *= 4


def _collect_large(bits: np.ndarray, bound: np.int32, index: np.ndarray, value: np.ndarray) -> int:
    """`_collect` over the threads: each writes behind its own start, then the pieces are moved together."""
    pieces: list[tuple[int, int]] = []
    split(lambda a, b: pieces.append((a, _collect(bits[a:b], bound, a, index[a:b], value[a:b]))), bits.size)
    total = 0
    for start, count in sorted(pieces):
        if start > total:
            for array in (index, value):
                array[total : total + count] = array[start : start + count]
        total += count
    return total


@jit
def _top_rows(bits: np.ndarray, out: np.ndarray) -> None:
    """`top` of short rows."""
    index, value = np.empty(bits.shape[1], np.int64), np.empty(bits.shape[1], np.int32)
    for r in range(bits.shape[0]):
        sample = _sample(bits[r])
        rank = _rank(sample.size, out.shape[1], bits.shape[1])
        done = False
        while not done:
            bound = _guess(sample, rank)
            count = _collect(bits[r], bound, int(np.int64(0)), index, value)
            done = _finish(bits[r], bound, index, value, count, out[r])
            rank *= 4


@jit
def _sample(bits: np.ndarray) -> np.ndarray:
    """Magnitudes from one place in each stretch of equal length; the place varies so that no period is met."""
    size = max(_LEAST, min(_MOST, bits.size // 256))
    stretch = max(1, bits.size // size)
    sample = np.empty(bits.size // stretch, np.int32)
    for i in range(sample.size):
        place = i if stretch == 1 else i * stretch + (i * 0x9E3779B1 >> 8) % stretch
        sample[i] = bits[place] & _MAGNITUDE
    return sample


@jit
def _rank(size: int, k: int, numel: int) -> int:
    """Which of the sample's magnitudes is probably a little below the k-th largest of all."""
    if size == numel:
        return k
    share = k / numel
    return int(size * share + 4 * math.sqrt(size * share * (1 - share)) + 4)


@jit
def _guess(sample: np.ndarray, rank: int) -> np.int32:
    """A bit pattern with about `rank` of the sample above it; 0, which cannot be too high, where the sample ends."""
    if rank > sample.size:
        return np.int32(0)
    return min(_kth_largest(sample, sample.size, rank)[0], _INFINITY)


@jit
def _collect(bits: np.ndarray, bound: np.int32, offset: int, index: np.ndarray, value: np.ndarray) -> int:
    """Where the magnitude's bits exceed `bound`, in order, and these bits unless `value` is empty; returns how many."""
    marks = np.empty(_CHUNK, np.uint8)
    eights = marks.view(np.uint64)
    count, dense = np.uint64(0), False
    for start in range(0, bits.size, _CHUNK):
        chunk, before, place = bits[start : start + _CHUNK], count, np.uint64(start + offset)
        for i in range(chunk.size):
            marks[i] = (chunk[i] & _MAGNITUDE) > bound
        whole = 0
        if not dense:
            whole = chunk.size // 8
            for i in range(whole):
                if eights[i]:
                    count = _append(marks, 8 * i, 8 * i + 8, place, index, count)
        count = _append(marks, 8 * whole, chunk.size, place, index, count)
        if value.size:
            for i in range(before, count):
                value[i] = min(bits[index[i] - offset] & _MAGNITUDE, _NAN)
        dense = count - before > _DENSE
    return int(np.int64(count))


@jit
def _append(marks: np.ndarray, start: int, stop: int, place: Any, index: np.ndarray, count: Any) -> Any:
    """The places from `start` to `stop` that carry a mark, behind the first `count` of `index`; returns the new count.

    Unsigned counters spare a test for negative ones at every access.
    """
    for i in range(np.uint64(start), np.uint64(stop)):
        index[count] = place + i
        count += np.uint64(marks[i])
    return count


@jit
def _finish(
    bits: np.ndarray, bound: np.int32, index: np.ndarray, value: np.ndarray, count: int, out: np.ndarray
) -> bool:
    """Choose among the `count` candidates above `bound`, or with those equal to it; False where even so too few."""
    if count < out.size:
        return bool(_finish_with_equals(bits, bound, index, count, out))
    last, missing = _kth_largest(value, count, out.size)
    i, kept = np.uint64(0), np.uint64(0)
    while missing > 0:  # equals are taken
        out[kept] = index[i]
        kept += np.uint64(value[i] >= last)
        missing -= value[i] == last
        i += np.uint64(1)
    while kept < out.size:  # equals are not
        out[kept] = index[i]
        kept += np.uint64(value[i] > last)
        i += np.uint64(1)
    return True


@jit
def _finish_with_equals(bits: np.ndarray, bound: np.int32, index: np.ndarray, count: int, out: np.ndarray) -> bool:
    """All candidates, and the first elements equal to `bound` as far as there is room."""
    missing, kept = out.size - count, 0
    for i in range(bits.size):
        magnitude = bits[i] & _MAGNITUDE
        if magnitude >= bound:
            out[kept] = i
            kept += 1
            missing -= magnitude == bound
            if missing == 0:
                for j in range(kept, out.size):
                    out[j] = index[count - out.size + j]
                return True
    return False


@jit
def _kth_largest(values: np.ndarray, size: int, k: int) -> tuple[np.int32, int]:
    """The k-th largest of the first `size` values, none negative, and its rank among its equals.

    Found digit by digit: 11 bits, then 10, then 10.
    """
    spare = np.empty(size, np.int32)
    counts = np.empty(2048, np.int32)
    left, digits = values, 2048
    for shift in (20, 10, 0):
        counts[:digits] = 0
        for i in range(size):
            counts[(left[i] >> shift) & (digits - 1)] += 1
        digit = digits - 1
        while counts[digit] < k:
            k -= counts[digit]
            digit -= 1
        kept = np.uint64(0)
        for i in range(size):
            spare[kept] = left[i]
            kept += np.uint64(((left[i] >> shift) & (digits - 1)) == digit)
        left, size, digits = spare, int(np.int64(kept)), 1024
    return left[0], k


@jit
def _count_above(values: np.ndarray, thresholds: np.ndarray) -> np.ndarray:
    counts = np.zeros(thresholds.size, np.int64)
    for start in range(0, values.size, _CHUNK):
        chunk = values[start : start + _CHUNK]
        for t in range(thresholds.size):
            threshold, count = thresholds[t], np.int32(0)
            for i in range(chunk.size):
                count = np.int32(count + np.int32(abs(chunk[i]) >= threshold))
            counts[t] += count
    return counts


# -------------------------------------------------------------------- where the gradient lies
