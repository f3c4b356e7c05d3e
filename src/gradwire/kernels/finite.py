"""Whether a tensor is finite throughout, as a number that can be added: one read of it on the CPU."""

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
