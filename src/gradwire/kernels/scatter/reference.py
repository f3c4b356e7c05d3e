"""Scattering in plain torch."""

from __future__ import annotations

from torch import Tensor

from gradwire.kernels import rows


def scatter(values: Tensor, indices: Tensor, numel: int) -> Tensor:
    return values.new_zeros((values.shape[0], numel)).scatter_(1, indices, values)


def scatter_sum(values: Tensor, indices: Tensor, numel: int, groups: int) -> Tensor:
    total = values.new_zeros((groups, numel))
    value, index = (t.view(groups, t.shape[0] // groups, t.shape[1]) for t in (values, indices))
    for i in range(value.shape[1]):  # row by row: the order of sums is fixed
        total.scatter_add_(1, index[:, i], value[:, i])
    return total


def mean(values: Tensor, indices: Tensor, numel: int, groups: int) -> Tensor:
    return rows.divided(scatter_sum(values, indices, numel, groups), values.shape[0] // groups)
