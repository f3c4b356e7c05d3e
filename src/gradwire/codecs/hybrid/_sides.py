"""The largest positive elements of a vector, as their mean and their places."""

from __future__ import annotations

import torch
from torch import Tensor

from gradwire.kernels.blockwise import abs_sum
from gradwire.kernels.select import top


def largest_positive(x: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """The mean of the k largest positive elements of each row, (rows, 1), and their indices, ascending.

    Where there are fewer, indices behind the end of the row, from its length on, fill up.
    """
    positive = x.clamp(min=0)
    where = top(positive, k)
    values = positive.gather(1, where)
    there = values.le(0).logical_not_()
    mean = abs_sum(values / there.sum(1, keepdim=True).clamp(min=1), k)
    empty = x.shape[1] + torch.arange(k, device=x.device)
    return mean, torch.where(there, where, empty).sort(dim=1).values
