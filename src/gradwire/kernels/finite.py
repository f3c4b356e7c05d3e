"""Whether a tensor is finite throughout, as a number that can be added."""

from __future__ import annotations

import torch
from torch import Tensor

from gradwire.kernels import blockwise
from gradwire.kernels.backend import compiled

BLOCK = 1 << 15


def nonfinite_flag(x: Tensor) -> Tensor:
    """0 where `x` is finite throughout, NaN otherwise: add it to make one bad element visible everywhere."""
    if not x.numel():
        return x.new_zeros(())
    if x.dtype == torch.float32 and compiled(x):
        return blockwise.abs_max(x.reshape(1, -1), BLOCK).amax() * 0
    return (x * 0).sum()


def poisoned(x: Tensor) -> Tensor:
    """`x`, or all NaN if one element is not finite. On an accelerator the host does not wait to know which."""
    bad = nonfinite_flag(x)
    return x if x.device.type == "cpu" and not bool(bad.isnan()) else x + bad
