"""Values back to their places."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from gradwire.core.window import Flag, Window
from gradwire.kernels.backend import fast, run
from gradwire.kernels.scatter import reference


def scatter(values: Tensor, indices: Tensor, numel: int) -> Tensor:
    """(rows, k) values at (rows, k) int64 indices, distinct within a row -> (rows, numel), zero elsewhere.

    Args:
        values: the values.
        indices: where they belong.
        numel: elements of a row.

    Example:
        >>> import torch
        >>> scatter(torch.tensor([[-5.0, 3.0]]), torch.tensor([[1, 3]]), 4)
        tensor([[ 0., -5.,  0.,  3.]])
    """
    return run(reference.scatter, values, indices, numel)


def scatter_sum(values: Tensor, indices: Tensor, numel: int, groups: int = 1) -> Tensor:
    """The same, summed over the rows of each of `groups` equal groups, first to last: (groups, numel)."""
    return run(reference.scatter_sum, values, indices, numel, groups)


def mean(values: Tensor, indices: Tensor, numel: int, groups: int = 1) -> Tensor:
    """`scatter_sum` of rows whose indices ascend, divided by how many rows a group has."""
    return run(reference.mean, values, indices, numel, groups)


def put_to(rows: Sequence[tuple[Tensor, Tensor]], shard: int, target: Window, factor: float) -> None:
    """Rows of values at ascending indices, the shards of one vector, times `factor`, into a `one_pass` window."""
    fast(__name__, "put_to", target.buffer)(rows, shard, target, factor)


def put_rows_to(values: Tensor, indices: Tensor, shard: int, target: Window, factor: float) -> Flag:
    """`put_to` of rows of as many values each: both (rows, k)."""
    flag: Flag = fast(__name__, "put_rows_to", target.buffer)(values, indices, shard, target, factor)
    return flag


def sums_to(
    values: Tensor, indices: Tensor, shards: int, shard: int, among: int, target: Window, factor: float
) -> Flag:
    """Sums of rows of values at ascending indices, divided by `among`, times `factor`, into a window. On a GPU only.

    Equal groups of neighbours are added, first to last: one for each of the `shards` shards of each of its rows.
    """
    flag: Flag = fast(__name__, "sums_to", target.buffer)(values, indices, shards, shard, among, target, factor)
    return flag


def mean_to(values: Tensor, indices: Tensor, target: Window, factor: float) -> Flag:
    """The mean of rows of values at ascending indices, times `factor`, into a `one_pass` window; zero elsewhere."""
    flag: Flag = fast(__name__, "mean_to", target.buffer)(values, indices, target, factor)
    return flag
