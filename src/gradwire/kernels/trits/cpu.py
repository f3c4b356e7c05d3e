"""Trits byte by byte."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from gradwire.kernels.jit import jit
from gradwire.kernels.parallel import split
from gradwire.kernels.trits import reference

_CODES = reference.unpack(torch.arange(256, dtype=torch.uint8).unsqueeze(1), 5).contiguous().numpy()


def pack(codes: Tensor) -> Tensor:
    rows, numel = codes.shape
    out = torch.empty((rows, -(-numel // 5)), dtype=torch.uint8)
    source = codes.byte() if codes.dtype == torch.bool else codes
    array, packed = source.detach().contiguous().numpy(), out.numpy()
    split(lambda a, b: _pack(array, packed, a // 5, -(-b // 5)), numel, 5)
    return out


def unpack(data: Tensor, numel: int) -> Tensor:
    out = torch.empty((data.shape[0], numel), dtype=torch.uint8)
    packed, codes = data.detach().contiguous().numpy(), out.numpy()
    split(lambda a, b: _unpack(packed, codes, a // 5, -(-b // 5)), numel, 5)
    return out


@jit
def _pack(codes: np.ndarray, out: np.ndarray, start: int, stop: int) -> None:
    """Bytes from `start` to `stop` of all rows."""
    numel = codes.shape[1]
    whole = min(stop, numel // 5)
    for r in range(codes.shape[0]):
        row = codes[r]
        for j in range(np.uint64(start), np.uint64(whole)):
            at = np.uint64(5) * np.uint64(j)
            upper = 81 * row[at] + 27 * row[at + np.uint64(1)] + 9 * row[at + np.uint64(2)]
            out[r, j] = np.uint8(upper + 3 * row[at + np.uint64(3)] + row[at + np.uint64(4)])
        if stop > whole:
            last = 0
            for i in range(5 * whole, 5 * stop):
                last = 3 * last + (row[i] if i < numel else 1)
            out[r, whole] = last


@jit
def _unpack(data: np.ndarray, out: np.ndarray, start: int, stop: int) -> None:
    numel = out.shape[1]
    whole = min(stop, numel // 5)
    for r in range(out.shape[0]):
        row = out[r]
        for j in range(np.uint64(start), np.uint64(whole)):
            byte, at = data[r, j], np.uint64(5) * np.uint64(j)
            for c in range(np.uint64(5)):
                row[at + c] = _CODES[byte, c]
        for i in range(5 * whole, min(5 * stop, numel)):
            row[i] = _CODES[data[r, whole], i - 5 * whole]


@jit
def pack_trits(codes: np.ndarray, out: np.ndarray) -> None:
    """Codes of a row from a multiple of five on -> the first ceil(codes/5) bytes of `out`."""
    whole = codes.size // 5
    for j in range(np.uint64(whole)):
        at = np.uint64(5) * np.uint64(j)
        upper = 81 * codes[at] + 27 * codes[at + np.uint64(1)] + 9 * codes[at + np.uint64(2)]
        out[j] = np.uint8(upper + 3 * codes[at + np.uint64(3)] + codes[at + np.uint64(4)])
    if codes.size > 5 * whole:
        last = 0
        for i in range(5 * whole, 5 * whole + 5):
            last = 3 * last + (codes[i] if i < codes.size else 1)
        out[whole] = last


@jit
def unpack_trits(data: np.ndarray, codes: np.ndarray) -> None:
    """The inverse of `pack_trits`."""
    whole = codes.size // 5
    for j in range(np.uint64(whole)):
        at, byte = np.uint64(5) * np.uint64(j), data[j]
        for i in range(5):
            codes[at + np.uint64(i)] = _CODES[byte, i]
    for i in range(5 * whole, codes.size):
        codes[i] = _CODES[data[whole], i - 5 * whole]
