r"""The nearest entries of a table of magnitudes, in shares of a block's scale: one byte an element.

.. math::  k = \#\{j : m_j < |x|/s\}, \qquad c = k \ \text{ or, where } x < 0 < k,\ \min(k, 127) + 128

The m, `midpoints`, ascend from 0 on, at most 255 of them; a share on a midpoint belongs to the entry below, and one
that is NaN to the last. Decoding gives ``table[c] * s`` for a table of 256 values. Midpoints and table are tuples,
which the kernels bring into their own form once.
"""

from __future__ import annotations

from torch import Tensor

from gradwire.kernels.backend import run
from gradwire.kernels.fused import Fused
from gradwire.kernels.lookup import reference


def encode(x: Tensor, scale: Tensor, block: int, midpoints: tuple[float, ...]) -> Tensor:
    """(rows, numel) float32 and (rows, blocks) scales, which are not zero -> (rows, numel) uint8."""
    return run(reference.encode, x, scale, block, midpoints)


def decode(codes: Tensor, scale: Tensor, block: int, table: tuple[float, ...]) -> Tensor:
    """The values: (rows, numel) float32."""
    return run(reference.decode, codes, scale, block, table)


def decode_sum(codes: Tensor, scale: Tensor, block: int, table: tuple[float, ...], groups: int = 1) -> Tensor:
    """The values summed over the rows of each of `groups` equal groups, first to last: (groups, numel) float32."""
    return run(reference.decode_sum, codes, scale, block, table, groups)


def fused(block: int, midpoints: tuple[float, ...], table: tuple[float, ...]) -> Fused:
    """The launches for rows as they travel: the largest magnitude of each block, its scale, then the codes."""
    return Fused(__name__, reference.Shares(block, midpoints, table))
