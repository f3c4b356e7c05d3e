"""Sums of rows in one read."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from gradwire.kernels.jit import jit


def sums(data: Tensor, lengths: Tensor | None) -> Tensor:
    rows, width = data.shape
    out = torch.empty((rows, 2), dtype=torch.int64)
    counts = torch.full((rows,), width) if lengths is None else lengths.contiguous()
    _sums(data.detach().contiguous().numpy(), counts.numpy(), out.numpy())
    return out


@jit
def _sums(data: np.ndarray, lengths: np.ndarray, out: np.ndarray) -> None:
    for r in range(data.shape[0]):
        row, length = data[r], lengths[r]
        first, second = np.uint64(length), np.uint64(0)
        for i in range(np.uint64(length // 8)):
            at = np.uint64(8) * np.uint64(i)
            word = np.uint64(0)
            for b in range(np.uint64(8)):
                word |= np.uint64(row[at + b]) << (np.uint64(8) * b)
            first += word
            second += (np.uint64(i) + np.uint64(1)) * word
        word, whole = np.uint64(0), length // 8
        for b in range(8 * whole, length):
            word |= np.uint64(row[b]) << np.uint64(8 * (b - 8 * whole))
        first += word
        second += np.uint64(whole + 1) * word
        out[r, 0], out[r, 1] = first, second
