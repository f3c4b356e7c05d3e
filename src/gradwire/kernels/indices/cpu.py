"""Index sets by loops over their members; bits of fixed width by the bitpack kernels."""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from gradwire.kernels import bitpack, rows
from gradwire.kernels.indices.reference import BLOCK, block_count, block_counts, index_width, parts
from gradwire.kernels.jit import jit

_DE_BRUIJN = np.uint64(0x03F79D71B4CB0A89)  # the upper six bits of its shifts by 0 … 63 are all different
_PLACES = np.empty(64, np.int64)
_PLACES[[(int(_DE_BRUIJN) << i) % 2**64 >> 58 for i in range(64)]] = np.arange(64)


def encode(indices: Tensor, numel: int, coding: str) -> Tensor:
    if coding == "packed":
        return bitpack.pack(indices, index_width(numel))
    if coding == "blocks":
        return rows.join(block_counts(indices, numel), indices.to(torch.int16))
    if coding == "bitmap":
        return _marks(indices, numel, 0, 0)
    low, length = parts(numel, indices.shape[1])
    upper = _marks(indices, length, low, 1)
    return rows.join(bitpack.pack(indices & ((1 << low) - 1), low), upper) if low else upper


def decode(data: Tensor, numel: int, count: int, coding: str) -> Tensor:
    if coding == "packed":
        return bitpack.unpack(data, index_width(numel), count).long()
    if coding == "blocks":
        return _from_blocks(data, numel, count)
    if coding == "bitmap":
        return _places(data, numel, count, 0, 0)
    low, length = parts(numel, count)
    start = bitpack.packed_bytes(count, low)
    out = _places(data[:, start:], length, count, low, 1)
    return out.add_(bitpack.unpack(data[:, :start], low, count)) if low else out


def _marks(indices: Tensor, length: int, low: int, step: int) -> Tensor:
    """A string of `length` bits in which index i sets bit (index >> low) + step·i."""
    out = torch.zeros((indices.shape[0], bitpack.packed_bytes(length, 1)), dtype=torch.uint8)
    _set_bits(indices.detach().contiguous().numpy(), out.numpy(), length, low, step)
    return out


def _places(data: Tensor, length: int, count: int, low: int, step: int) -> Tensor:
    """The inverse, with zeros for the lower bits."""
    size = bitpack.packed_bytes(length, 1)
    words = F.pad(data[:, :size], (0, -size % 8)).contiguous().numpy().view(np.uint64)
    out = torch.empty((data.shape[0], count), dtype=torch.int64)
    _find_bits(words, out.numpy(), length, low, step)
    return out


def _from_blocks(data: Tensor, numel: int, count: int) -> Tensor:
    counts, start = rows.take(data, 0, block_count(numel), torch.int32)
    offsets, _ = rows.take(data, start, count, torch.int16)
    out = torch.empty((data.shape[0], count), dtype=torch.int64)
    _join_blocks(counts.numpy(), offsets.numpy().view(np.uint16), out.numpy())
    return out


@jit
def _set_bits(indices: np.ndarray, out: np.ndarray, length: int, low: int, step: int) -> None:
    for r in range(indices.shape[0]):
        for i in range(indices.shape[1]):
            place = (indices[r, i] >> low) + step * i
            if not 0 <= place < length:
                raise IndexError("an index lies outside the row")
            out[r, np.uint64(place >> 3)] |= np.uint8(1 << (place & 7))


@jit
def _find_bits(words: np.ndarray, out: np.ndarray, length: int, low: int, step: int) -> None:
    """Ones are found from the lowest on; where there are too few, the end of the string stands for the others."""
    for r in range(out.shape[0]):
        row, found = out[r], 0
        for w in range(words.shape[1]):
            word = words[r, w]
            if length < 64 * w + 64:
                word &= (np.uint64(1) << np.uint64(length - 64 * w)) - np.uint64(1)
            while word and found < row.size:
                lowest = word & (~word + np.uint64(1))
                place = 64 * w + _PLACES[(lowest * _DE_BRUIJN) >> np.uint64(58)]
                row[found] = (place - step * found) << low
                word ^= lowest
                found += 1
        for i in range(found, row.size):
            row[i] = (length - step * i) << low


@jit
def _join_blocks(counts: np.ndarray, offsets: np.ndarray, out: np.ndarray) -> None:
    """Blocks in turn; what the counts leave over lies behind the last."""
    for r in range(out.shape[0]):
        done = 0
        for b in range(counts.shape[1] + 1):
            end = out.shape[1] if b == counts.shape[1] else min(done + counts[r, b], out.shape[1])
            for i in range(done, end):
                out[r, i] = b * BLOCK + offsets[r, i]
            done = max(done, end)
