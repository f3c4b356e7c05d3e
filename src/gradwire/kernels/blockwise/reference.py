"""Statistics of blocks in plain torch."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from gradwire.kernels import rows


def abs_max(x: Tensor, block: int) -> Tensor:
    return rows.blocks(x.abs(), block).amax(2) if x.shape[1] else x


def abs_sum(x: Tensor, block: int) -> Tensor:
    return _folded(rows.blocks(x.abs(), block))


def square_sum(x: Tensor, block: int) -> Tensor:
    return _folded(rows.blocks(x.square(), block))


def _folded(blocks: Tensor) -> Tensor:
    width = blocks.shape[2]
    size = 1 << (width - 1).bit_length()
    blocks = F.pad(blocks, (0, size - width))
    while size > 1:
        size //= 2
        blocks = blocks[..., :size] + blocks[..., size:]
    return blocks[..., 0]
