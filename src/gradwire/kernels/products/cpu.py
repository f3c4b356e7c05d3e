"""Products with thin factors, compiled: all small matrices in one call, where they lie, in blocks of whole rows.

Large ones are left to torch, whose products are quicker there. Matrix k is row k of a table: its place, height, width,
rank, and the places of its factors P and Qᵀ. Blocks are (matrix, first row, last row); for Pᵀ M, which sums over the
rows, (matrix, first column, last column). What lies between the matrices is matrices of rank 0.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gradwire.core.window import Feedback, Flag, Window, nonfinite_flag
from gradwire.kernels.backend import only
from gradwire.kernels.jit import jit, jit_sums
from gradwire.kernels.parallel import split
from gradwire.kernels.products.matrices import Matrices
from gradwire.kernels.products.reference import Stacked
from gradwire.kernels.window import one_pass
from gradwire.kernels.window.cpu import Memory, Spans, load, memory_of, spans_of, store

SMALL = 1 << 18  # elements of a matrix up to which these kernels are quicker than torch's products
BLOCK = 1 << 13  # elements of a matrix: they stay in the first cache
COLUMNS = 1 << 10  # of a block of columns
_NOTHING, _NOWHERE = np.empty(0, np.float32), (np.zeros(1, np.int64), np.empty(0, np.int64))
PLACE, HEIGHT, WIDTH, RANK, LEFT, RIGHT = range(6)


@dataclass(frozen=True)
class Table:
    """The small matrices as arrays, their blocks, how many elements they and their factors have; and the large ones."""

    matrices: np.ndarray
    rows: np.ndarray  # blocks of rows; those of what lies between come last
    columns: np.ndarray
    factored: int  # blocks of rows before them
    numel: int
    left: int
    right: int
    large: Matrices


@lru_cache(maxsize=4096)
def table_of(matrices: Matrices) -> Table:
    small, large = matrices.parted(SMALL)
    found, left, right = [], 0, 0
    for place, (height, width), rank in zip(small.places, small.shapes, small.ranks, strict=True):
        found.append((place, height, width, rank, left, right))
        left, right = left + height * rank, right + rank * width
    for first, last in small.between:
        found += [(start, 1, min(BLOCK, last - start), 0, 0, 0) for start in range(first, last, BLOCK)]
    rows, columns = [], []
    for k, (_, height, width, rank, _, _) in enumerate(found):
        step = max(1, BLOCK // width)
        rows += [(k, first, min(first + step, height)) for first in range(0, height, step)]
        if rank:
            columns += [(k, first, min(first + COLUMNS, width)) for first in range(0, width, COLUMNS)]
    table, blocks, others = (np.array(a, np.int64).reshape(-1, n) for a, n in ((found, 6), (rows, 3), (columns, 3)))
    factored, numel = sum(table[k, RANK] > 0 for k, _, _ in rows), sum(h * w for _, h, w, *_ in found)
    return Table(table, blocks, others, factored, numel, left, right, large)


@jit_sums
def _dots(m: np.ndarray, q: np.ndarray, width: int, rank: int, out: np.ndarray) -> None:
    """The products of a row of a matrix with the `rank` rows of Qᵀ."""
    zero = np.float32(0)
    full = rank // 4 * 4
    for r in range(0, full, 4):
        a, b, c, d = zero, zero, zero, zero
        q0, q1 = q[r * width : (r + 1) * width], q[(r + 1) * width : (r + 2) * width]
        q2, q3 = q[(r + 2) * width : (r + 3) * width], q[(r + 3) * width : (r + 4) * width]
        for j in range(width):
            value = m[j]
            a += value * q0[j]
            b += value * q1[j]
            c += value * q2[j]
            d += value * q3[j]
        out[r], out[r + 1], out[r + 2], out[r + 3] = a, b, c, d
    for r in range(full, rank):
        a, q0 = zero, q[r * width : (r + 1) * width]
        for j in range(width):
            a += m[j] * q0[j]
        out[r] = a


@jit
def _times(
    table: np.ndarray,
    blocks: np.ndarray,
    x: np.ndarray,
    spans: Spans,
    memory: Memory,
    out: np.ndarray,
    right: np.ndarray,
    left: np.ndarray,
    first: int,
    last: int,
) -> None:
    """Read the gradient into `out`, if there is one, else it is there; and take its products with Qᵀ."""
    for b in range(first, last):
        k, top, bottom = blocks[b, 0], blocks[b, 1], blocks[b, 2]
        place, width, rank = table[k, PLACE], table[k, WIDTH], table[k, RANK]
        m = out[place + top * width : place + bottom * width]
        if x.size:
            load(x, spans, memory, place + top * width, m)
        q = right[table[k, RIGHT] : table[k, RIGHT] + rank * width]
        p = left[table[k, LEFT] + top * rank : table[k, LEFT] + bottom * rank]
        for i in range(bottom - top):
            _dots(m[i * width : (i + 1) * width], q, width, rank, p[i * rank : (i + 1) * rank])


@jit
def _transposed(
    table: np.ndarray, blocks: np.ndarray, x: np.ndarray, left: np.ndarray, right: np.ndarray, first: int, last: int
) -> None:
    """Pᵀ M, a block of columns after the other."""
    for b in range(first, last):
        k, low, high = blocks[b, 0], blocks[b, 1], blocks[b, 2]
        place, height, width, rank = table[k, PLACE], table[k, HEIGHT], table[k, WIDTH], table[k, RANK]
        p = left[table[k, LEFT] : table[k, LEFT] + height * rank]
        size, full = high - low, height // 4 * 4
        for r in range(rank):
            target = right[table[k, RIGHT] + r * width + low : table[k, RIGHT] + r * width + high]
            for j in range(size):
                target[j] = np.float32(0)
        for i in range(0, full, 4):
            at = place + i * width + low
            m0, m1 = x[at : at + size], x[at + width : at + width + size]
            m2, m3 = x[at + 2 * width : at + 2 * width + size], x[at + 3 * width : at + 3 * width + size]
            for r in range(rank):
                target = right[table[k, RIGHT] + r * width + low : table[k, RIGHT] + r * width + high]
                p0, p1 = p[i * rank + r], p[(i + 1) * rank + r]
                p2, p3 = p[(i + 2) * rank + r], p[(i + 3) * rank + r]
                for j in range(size):
                    target[j] += (p0 * m0[j] + p1 * m1[j]) + (p2 * m2[j] + p3 * m3[j])
        for i in range(full, height):
            m0 = x[place + i * width + low : place + i * width + high]
            for r in range(rank):
                target, p0 = right[table[k, RIGHT] + r * width + low :], p[i * rank + r]
                for j in range(size):
                    target[j] += p0 * m0[j]


@jit_sums
def _product(p: np.ndarray, q: np.ndarray, width: int, rank: int, low: int, size: int, out: np.ndarray) -> None:
    """Columns `low` on, `size` of them, of as many rows of P Qᵀ as P has here."""
    full = rank // 4 * 4
    for i in range(p.size // rank):
        target = out[i * size : (i + 1) * size]
        for j in range(0 if full else size):
            target[j] = np.float32(0)
        for r in range(0, full, 4):
            p0, p1, p2, p3 = p[i * rank + r], p[i * rank + r + 1], p[i * rank + r + 2], p[i * rank + r + 3]
            at = r * width + low
            q0, q1 = q[at : at + size], q[at + width : at + width + size]
            q2, q3 = q[at + 2 * width : at + 2 * width + size], q[at + 3 * width : at + 3 * width + size]
            if r == 0:
                for j in range(size):
                    target[j] = (p0 * q0[j] + p1 * q1[j]) + (p2 * q2[j] + p3 * q3[j])
            else:
                for j in range(size):
                    target[j] += (p0 * q0[j] + p1 * q1[j]) + (p2 * q2[j] + p3 * q3[j])
        for r in range(full, rank):
            p0, q0 = p[i * rank + r], q[r * width + low : r * width + low + size]
            for j in range(size):
                target[j] += p0 * q0[j]


@jit
def _write(
    table: np.ndarray,
    blocks: np.ndarray,
    left: np.ndarray,
    right: np.ndarray,
    x: np.ndarray,
    spans: Spans,
    error: np.ndarray,
    first: int,
    last: int,
) -> None:
    """P Qᵀ to where the matrices lie in `x`, if there is one; else it is taken off `error`."""
    tile = np.empty(BLOCK, np.float32)
    for b in range(first, last):
        k, top, bottom = blocks[b, 0], blocks[b, 1], blocks[b, 2]
        place, width, rank = table[k, PLACE], table[k, WIDTH], table[k, RANK]
        q = right[table[k, RIGHT] : table[k, RIGHT] + rank * width]
        p = left[table[k, LEFT] + top * rank : table[k, LEFT] + bottom * rank]
        for low in range(0, width, BLOCK):  # more than one only where a block is a part of a row
            size = min(BLOCK, width - low)
            part, at = tile[: size * (bottom - top)], place + top * width + low
            _product(p, q, width, rank, low, size, part)
            if x.size:
                store(part, np.float32(1), x, spans, at)
            else:
                target = error[at : at + part.size]
                for j in range(part.size):
                    target[j] -= part[j]


class InPlace:
    """The matrices of a gradient, where they lie."""

    def __init__(self, source: Window, feedback: Feedback | None, matrices: Matrices) -> None:
        self.x = source.read() if feedback is None else feedback.out
        self._source, self._feedback = source, feedback
        self._table = table_of(matrices)
        self._large: Stacked | None = None
        if self._table.large.places:
            self.x = self.x if feedback is None else feedback.compensated(source)
            self._large = Stacked(self.x, feedback, self._table.large)
        self._compensated = feedback is None or self._large is not None  # else with the first product

    def times(self, right: Tensor) -> Tensor:
        left, spans = torch.empty((len(self.x), self._table.left)), spans_of(self._source)
        for row in range(len(self.x)):
            x, (memory, _) = self._source.buffer[row].numpy(), memory_of(self._feedback, row)
            into = right[0].numpy(), left[row].numpy()
            blocks = self._table.rows[: self._table.factored] if self._compensated else self._table.rows
            x = x[:0] if self._compensated else x
            self._each(_times, blocks, x, spans, memory, self.x[row].numpy(), *into)
        self._compensated = True
        if self._large is None:
            return left
        return torch.cat([left, self._large.times(right[:, self._table.right :])], 1)

    def transposed(self, left: Tensor) -> Tensor:
        right = torch.empty((len(self.x), self._table.right))
        for row in range(len(self.x)):
            self._each(_transposed, self._table.columns, self.x[row].numpy(), left[0].numpy(), right[row].numpy())
        if self._large is None:
            return right
        return torch.cat([right, self._large.transposed(left[:, self._table.left :])], 1)

    def write(self, left: Tensor, right: Tensor, target: Window, own: Tensor | None = None) -> Flag:
        if own is not None:
            self._keep(left, own)
        if target.buffer.dtype != torch.float32:
            mean = torch.zeros((target.rows, target.numel))
            self._write(left, right, Window.whole(mean))
            target.write_(mean)
        else:
            self._write(left, right, target)
        if self._large is not None:
            large = left[:, self._table.left :], right[:, self._table.right :], target
            self._large.write(*large, None if own is None else own[:, self._table.right :])
        return nonfinite_flag(left) + nonfinite_flag(right)

    def _write(self, left: Tensor, right: Tensor, target: Window) -> None:
        spans, blocks = spans_of(target), self._table.rows[: self._table.factored]
        for row in range(target.rows):
            into = target.buffer[row].numpy(), spans, _NOTHING
            self._each(_write, blocks, left[0].numpy(), right[row].numpy(), *into)

    def _keep(self, left: Tensor, own: Tensor) -> None:
        assert self._feedback is not None
        blocks = self._table.rows[: self._table.factored]
        for row, error in enumerate(self._feedback.out):
            self._each(_write, blocks, left[0].numpy(), own[row].numpy(), _NOTHING, _NOWHERE, error.numpy())

    def _each(self, kernel: Callable[..., None], blocks: np.ndarray, *arrays: Any) -> None:
        """Call a kernel for ranges of blocks, in threads if there is much to do."""
        count, size = len(blocks), -(-self._table.numel // max(1, len(blocks)))  # blocks are about of one size

        def work(start: int, stop: int) -> None:
            kernel(self._table.matrices, blocks, *arrays, start // size, stop // size)

        if count:
            split(work, count * size, size)


def _accepts(source: Window, feedback: Feedback | None, matrices: Matrices) -> bool:
    return one_pass(source, feedback)


@only(_accepts)
def see(source: Window, feedback: Feedback | None, matrices: Matrices) -> InPlace:
    return InPlace(source, feedback, matrices)
