"""Two sums of a row of bytes, by which two rows can be told apart without sending either.

A row is cut into words of 8 bytes, w₀ … w_{m-1}, the last one filled up with zeros. With L bytes in the row,

    first = L + Σ wᵢ        second = Σ (i + 1)·wᵢ        both modulo 2⁶⁴

Any change within one word changes `first`; words that have changed places change `second`. Other changes go unseen
with a chance of about 2⁻⁶⁴. It is no defence against somebody who wants to be unseen.
"""

from __future__ import annotations

from torch import Tensor

from gradwire.kernels.backend import run
from gradwire.kernels.checksum import reference

SUM_BYTES = 16  # of a row


def sums(data: Tensor, lengths: Tensor | None = None) -> Tensor:
    """The sums of each row: (rows, bytes) uint8 -> (rows, 2) int64.

    Args:
        data: rows of bytes.
        lengths: bytes of each row that count, int64 on the CPU; None: all of them.

    Example:
        >>> import torch
        >>> sums(torch.tensor([[1, 0, 0, 0, 0, 0, 0, 0, 2], [2, 0, 0, 0, 0, 0, 0, 0, 1]], dtype=torch.uint8))
        tensor([[12,  5],
                [12,  4]])
    """
    return run(reference.sums, data, lengths)
