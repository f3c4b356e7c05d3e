"""Scattering in plain torch."""

from __future__ import annotations

from torch import Tensor


def scatter(values: Tensor, indices: Tensor, numel: int) -> Tensor:
    return values.new_zeros((values.shape[0], numel)).scatter_(1, indices, values)


def scatter_sum(values: Tensor, indices: Tensor, numel: int) -> Tensor:
    total = values.new_zeros((1, numel))
    for index, value in zip(indices, values, strict=True):  # row by row: the order of sums is fixed
        total[0].index_add_(0, index, value)
    return total
