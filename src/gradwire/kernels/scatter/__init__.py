"""Values back to their places."""

from __future__ import annotations

import torch
from torch import Tensor

from gradwire.kernels.backend import compiled
from gradwire.kernels.scatter import reference


def scatter(values: Tensor, indices: Tensor, numel: int) -> Tensor:
    """(rows, k) values at (rows, k) int64 indices, distinct within a row -> (rows, numel), zero elsewhere."""
    if compiled(values, indices) and values.dtype == torch.float32:
        from gradwire.kernels.scatter import cpu

        return cpu.scatter(values, indices, numel)
    return reference.scatter(values, indices, numel)


def scatter_sum(values: Tensor, indices: Tensor, numel: int) -> Tensor:
    """The same, summed over the rows, first to last: (1, numel)."""
    if compiled(values, indices) and values.dtype == torch.float32:
        from gradwire.kernels.scatter import cpu

        return cpu.scatter_sum(values, indices, numel)
    return reference.scatter_sum(values, indices, numel)
