"""Runs in one pass, without a branch that depends on the data."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from gradwire.core.errors import CorruptPayload
from gradwire.kernels.jit import jit
from gradwire.kernels.parallel import split
from gradwire.kernels.runs.reference import FIRST, LONGEST, ZEROS

_PIECE = FIRST - 2  # a piece of r becomes _PIECE + r


def encode(data: Tensor) -> tuple[Tensor, Tensor]:
    rows, numel = data.shape
    out, lengths = torch.empty_like(data, memory_format=torch.contiguous_format), torch.zeros(rows, dtype=torch.int64)
    source, coded, length = data.detach().contiguous().numpy(), out.numpy(), lengths.numpy()
    _by_rows(lambda a, b: _encode(source, coded, length, a, b), rows, numel)
    width = max(lengths.tolist(), default=0)
    for line, size in zip(out, lengths.tolist(), strict=True):
        line[size:width] = 0
    return out[:, :width].contiguous(), lengths


def decode(data: Tensor, lengths: Tensor, count: int) -> Tensor:
    out, held = torch.full((data.shape[0], count), ZEROS, dtype=torch.uint8), torch.zeros_like(lengths)
    coded, length, whole, sizes = data.detach().contiguous().numpy(), lengths.numpy(), out.numpy(), held.numpy()
    _by_rows(lambda a, b: _decode(coded, length, whole, sizes, a, b), data.shape[0], count)
    for i, size in enumerate(held.tolist()):
        if size != count:
            raise CorruptPayload(f"its runs hold {size:,} bytes, not {count:,}", i)
    return out


def _by_rows(work: Callable[[int, int], object], rows: int, numel: int) -> None:
    if numel:
        split(lambda a, b: work(a // numel, b // numel), rows * numel, numel)
    else:
        work(0, rows)


@jit
def _encode(data: np.ndarray, out: np.ndarray, lengths: np.ndarray, first: int, last: int) -> None:
    """Rows from `first` to `last`. The code of a growing piece is written again with each byte that joins it."""
    for r in range(first, last):
        size, piece = np.uint64(0), 0
        for i in range(data.shape[1]):
            zero = data[r, i] == ZEROS
            joins = zero & (np.uint64(piece - 1) < np.uint64(LONGEST - 1))
            piece = piece + 1 if joins else int(zero)
            size += np.uint64(1 - joins)
            out[r, size - np.uint64(1)] = _PIECE + piece if joins else data[r, i]
        lengths[r] = size


@jit
def _decode(data: np.ndarray, lengths: np.ndarray, out: np.ndarray, sizes: np.ndarray, first: int, last: int) -> None:
    """Rows from `first` to `last`, over an output filled with the byte of the runs."""
    for r in range(first, last):
        size, end = np.uint64(0), np.uint64(out.shape[1])
        for i in range(min(lengths[r], data.shape[1])):
            code = data[r, i]
            if size < end:
                out[r, size] = ZEROS if code >= FIRST else code
            size += np.uint64(code - _PIECE if code >= FIRST else 1)
        sizes[r] = size
