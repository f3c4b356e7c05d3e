"""Values back to their places."""

from __future__ import annotations

from torch import Tensor

from gradwire.kernels.scatter import reference


def scatter(values: Tensor, indices: Tensor, numel: int) -> Tensor:
    """(rows, k) values at (rows, k) int64 indices, distinct within a row -> (rows, numel), zero elsewhere."""
    return reference.scatter(values, indices, numel)


def scatter_sum(values: Tensor, indices: Tensor, numel: int) -> Tensor:
    """The same, summed over the rows, first to last: (1, numel)."""
    return reference.scatter_sum(values, indices, numel)
