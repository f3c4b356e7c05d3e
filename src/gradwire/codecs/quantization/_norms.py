"""Euclidean norms of blocks."""

from __future__ import annotations

import torch
from torch import Tensor

from gradwire.kernels import blockwise, rows


def euclidean(x: Tensor, largest: Tensor, block: int) -> Tensor:
    """The norm of each block, (rows, blocks), given its largest magnitude, by which squares are kept from overflow."""
    parts = (rows.blocks(x, block) / largest.unsqueeze(2)).flatten(1)
    return torch.maximum(largest, largest * blockwise.square_sum(parts, block).sqrt())
