r"""Integer codes −s…s of blocks, by their ranges: what the codecs on `kernels.grid` share.

A block of range R has the step R/s. Workers that agree on R first can add up their codes as integers, exactly.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from gradwire.core.exchange import Max, Program, Sum
from gradwire.kernels import bitpack, fields, grid, rows


def agree(ranges: Tensor) -> Program[Tensor]:
    """The largest range over the workers, block by block, (1, blocks); NaN where one of them has NaN.

    Backends drop a NaN from a maximum or keep it, as the order falls. Infinity always wins, so it stands for NaN.
    """
    largest = yield Max(ranges.nan_to_num(nan=math.inf, posinf=math.inf))
    return torch.where(largest.isinf(), torch.nan, largest)


def add_up(data: Tensor, levels: int, numel: int, workers: int) -> Program[Tensor]:
    """The exact sum over the workers of their packed codes: (1, numel) int64 from −n·s to n·s.

    A field of 32-bit words holds ceil(log2(2·n·s + 1)) bits, so that no sum spills into its neighbour.
    """
    width = fields.field_width(2 * levels * workers)
    codes = bitpack.unpack(data, grid.code_width(levels, levels), numel)
    total = yield Sum(fields.pack(codes, width))
    return fields.unpack(total, width, numel) - workers * levels


def values(codes: Tensor, step: Tensor, block: int) -> Tensor:
    """Every code times its block's step: (rows, numel) integers -> float32."""
    return (rows.blocks(codes.float(), block) * step.unsqueeze(2)).flatten(1)[:, : codes.shape[1]]
