"""Between float32 and half precision, rounding to nearest, ties to even.

On ARM torch converts element by element, and NumPy, where it is installed, uses the vector instructions; on x86 it is
the other way round.
"""

from __future__ import annotations

import platform

from torch import Tensor

from gradwire.core.window import Window
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


def half_from(source: Window, share: float, out: Tensor) -> None:
    """`share` times the elements of `source`, in half precision, into `out` of shape (rows, numel)."""
    backend.run(reference.half_from, source, share, out)


def half_to(half: Tensor, target: Window) -> Tensor:
    """Write one row of half precision, (1, numel), to `target`; returns 0 where all of it is finite, else NaN."""
    return backend.run(reference.half_to, half, target)
