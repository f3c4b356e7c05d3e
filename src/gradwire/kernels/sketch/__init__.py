r"""Count-Sketch: a vector folded into a table of `rows` × `columns` sums, and estimates of its elements from there.

.. math::  S_{jb} = \sum_{i:\ h_j(i) = b} \sigma_j(i)\, x_i, \qquad
           \hat x_{ji} = \sigma_j(i)\, S_{j,\,h_j(i)}, \qquad \hat x_i = \operatorname{median}_j \hat x_{ji}

Linear in x. Over the hashes, each row's estimate has mean x_i and a variance of at most ‖x‖²/columns. h_j(i) and σ_j(i)
come from word i of row j of a stream of random words: its upper 31 bits, brought down to the columns by a
multiplication, and its lowest bit.

An element's place in a row is one number, 2·h + (1 if σ = −1), so that a table of positive and negative sums side by
side needs no multiplication by signs.

Charikar, Chen, Farach-Colton: Finding frequent items in data streams. ICALP 2002.
"""

from __future__ import annotations

import torch
from torch import Tensor

from gradwire.core.random import Stream
from gradwire.kernels.backend import run
from gradwire.kernels.sketch import reference

LARGEST = 1 << 30  # columns


def places(stream: Stream, numel: int, rows: int, columns: int, device: torch.device) -> Tensor:
    """Where each element goes in each row, and with which sign: (rows, numel) int32."""
    return run(reference.places, stream, numel, rows, columns, device)


def fold(x: Tensor, where: Tensor, columns: int) -> Tensor:
    """The sketch of the flat vector `x`, in its dtype: (rows, columns).

    On the CPU sums are taken in the order of the elements; on an accelerator in no fixed order, so that two runs may
    differ in the last bits. Workers that share the sum of their sketches agree all the same.
    """
    return run(reference.fold, x, where, columns)


def row_estimates(table: Tensor, where: Tensor) -> Tensor:
    """What each row says about each element: (rows, numel)."""
    return reference.row_estimates(table, where)


def estimate(table: Tensor, where: Tensor) -> Tensor:
    """The median of the rows' estimates, their number being odd: (numel,); NaN if one of them is."""
    return run(reference.estimate, table, where)
