"""Kernels of a single part of the GPU's kernels each, for tests."""

from __future__ import annotations

import triton
import triton.language as tl

from gradwire.kernels.blockwise import gpu as blockwise
from gradwire.kernels.random import gpu as random
from gradwire.kernels.trits import gpu as trits


@triton.jit
def shares(a, scale, out, columns: tl.constexpr):
    at = tl.program_id(0) * columns + tl.arange(0, columns)[None, :]
    tl.store(out + at, blockwise.shares(tl.load(a + at), tl.load(scale + tl.program_id(0) + tl.arange(0, 1))))


@triton.jit
def halves(keys, first, out, rows: tl.constexpr, columns: tl.constexpr):
    at = tl.arange(0, rows)[:, None] * columns + tl.arange(0, columns)[None, :]
    tl.store(out + at, random.halves(tl.load(keys), tl.load(first), rows, columns))


@triton.jit
def load_trits(data, limit, out, block: tl.constexpr, rows: tl.constexpr, columns: tl.constexpr):
    column = tl.arange(0, columns)[None, :]
    at = tl.arange(0, rows)[:, None] * block + column
    found = trits.load_trits(data, tl.arange(0, rows), limit, block, rows, columns)
    tl.store(out + at, found, mask=column < block)
