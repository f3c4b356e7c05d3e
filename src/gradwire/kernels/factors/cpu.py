"""Small matrices, compiled: one call for all of them."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

from gradwire.kernels.backend import only
from gradwire.kernels.bitpack.cpu import flat as rows_of
from gradwire.kernels.factors.reference import SHIFT
from gradwire.kernels.jit import jit


@lru_cache(maxsize=4096)
def _table(shapes: tuple[tuple[int, int], ...]) -> np.ndarray:
    return np.array(shapes, np.int64).reshape(-1, 2)


@jit
def _unit(
    x: np.ndarray,
    stride: int,
    rows: int,
    table: np.ndarray,
    instead: np.ndarray,
    out: np.ndarray,
    largest: np.ndarray,
) -> None:
    for row in range(rows):
        at = 0
        for k in range(len(table)):
            size = table[k, 0] * table[k, 1]
            source, target = x[row * stride + at : row * stride + at + size], out[row, at : at + size]
            bits, most = source.view(np.uint32), np.uint32(0)
            for i in range(size):
                most = max(most, bits[i] & np.uint32(0x7FFFFFFF))  # NaN is the largest
            largest[row, k] = most
            by = largest[row, k : k + 1].view(np.float32)[0] if most else np.float32(1)
            source = source if most or not instead.size else instead[at : at + size]
            for i in range(size):
                target[i] = source[i] / by
            at += size


@jit
def _turn(a: np.ndarray, gram: np.ndarray, shift: float) -> None:
    """a := a L⁻ᵀ for the Cholesky factor L of aᵀa, shifted by a share of its trace. `gram` is room."""
    rank, trace = a.shape[1], 0.0
    for i in range(rank):
        for j in range(i + 1):
            total = 0.0
            for k in range(a.shape[0]):
                total += a[k, i] * a[k, j]
            gram[i, j] = total
        trace += gram[i, i]
    for i in range(rank):
        gram[i, i] += shift * trace if trace != 0 else 1.0
    for i in range(rank):  # L takes the place of the lower half
        for j in range(i + 1):
            total = gram[i, j]
            for k in range(j):
                total -= gram[i, k] * gram[j, k]
            gram[i, j] = np.sqrt(total) if i == j else total / gram[j, j]
    for k in range(a.shape[0]):  # a L⁻ᵀ by rows: forward substitution
        for i in range(rank):
            value = a[k, i]
            for j in range(i):
                value -= gram[i, j] * a[k, j]
            a[k, i] = value / gram[i, i]


@jit
def _orthonormal(x: np.ndarray, stride: int, rows: int, table: np.ndarray, shift: float, out: np.ndarray) -> None:
    most, widest = 0, 0
    for k in range(len(table)):
        most, widest = max(most, table[k, 0] * table[k, 1]), max(widest, table[k, 1])
    room, square = np.empty(most), np.empty(widest * widest)
    for row in range(rows):
        at = 0
        for k in range(len(table)):
            height, width = table[k, 0], table[k, 1]
            size = height * width
            for i in range(size):
                room[i] = x[row * stride + at + i]
            matrix = room[:size].reshape(height, width)
            gram = square[: width * width].reshape(width, width)
            _turn(matrix, gram, shift)
            _turn(matrix, gram, shift)
            for i in range(size):
                out[row, at + i] = np.float32(room[i])
            at += size


def _float32(flat: Tensor, shapes: tuple[tuple[int, int], ...], instead: Tensor | None = None) -> bool:
    return flat.dtype == torch.float32


@only(_float32)
def unit(flat: Tensor, shapes: tuple[tuple[int, int], ...], instead: Tensor | None = None) -> tuple[Tensor, Tensor]:
    out = torch.empty(flat.shape, dtype=torch.float32)
    largest = torch.empty((len(flat), len(shapes)), dtype=torch.float32)
    source, stride = rows_of(flat)
    given = np.empty(0, np.float32) if instead is None else instead[0].numpy()
    _unit(source, stride, len(flat), _table(shapes), given, out.numpy(), largest.numpy().view(np.uint32))
    return out, largest


@only(_float32)
def orthonormal(flat: Tensor, shapes: tuple[tuple[int, int], ...]) -> Tensor:
    out = torch.empty(flat.shape, dtype=torch.float32)
    source, stride = rows_of(flat)
    _orthonormal(source, stride, len(flat), _table(shapes), SHIFT, out.numpy())
    return out
