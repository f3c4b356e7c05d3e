"""Between float32 and half precision, rounding to nearest, ties to even.

On ARM torch converts element by element, and NumPy, where it is installed, uses the vector instructions; on x86 it is
the other way round.
"""

from __future__ import annotations

import platform

import torch
from torch import Tensor

from gradwire.kernels import backend
from gradwire.kernels.cast import reference

TORCH_IS_SLOW = platform.machine() in ("aarch64", "arm64")


def to_half(x: Tensor) -> Tensor:
    """float32 -> float16; too large becomes infinite."""
    if TORCH_IS_SLOW and backend.numpy(x):
        from gradwire.kernels.cast import cpu

        return cpu.to_half(x)
    return reference.to_half(x)


def from_half(x: Tensor) -> Tensor:
    """float16 -> float32, exactly."""
    if TORCH_IS_SLOW and backend.numpy(x):
        from gradwire.kernels.cast import cpu

        return cpu.from_half(x)
    return reference.from_half(x)


def cast_half(x: Tensor, out: Tensor) -> None:
    """`to_half` into `out`."""
    if TORCH_IS_SLOW and backend.numpy(x):
        from gradwire.kernels.cast import cpu

        cpu.copy(x, out)
    else:
        out.copy_(x)


def cast_back(x: Tensor, out: Tensor) -> None:
    """`from_half` into `out`, of any floating dtype."""
    if TORCH_IS_SLOW and backend.numpy(x) and out.dtype == torch.float32:
        from gradwire.kernels.cast import cpu

        cpu.copy(x, out)
    else:
        out.copy_(x)
