"""Between float32 and half precision, rounding to nearest, ties to even.

torch converts element by element on some CPUs; NumPy, where it is installed, uses the vector instructions.
"""

from __future__ import annotations

from torch import Tensor

from gradwire.kernels import backend
from gradwire.kernels.cast import reference


def to_half(x: Tensor) -> Tensor:
    """float32 -> float16; too large becomes infinite."""
    if backend.numpy(x):
        from gradwire.kernels.cast import cpu

        return cpu.to_half(x)
    return reference.to_half(x)


def from_half(x: Tensor) -> Tensor:
    """float16 -> float32, exactly."""
    if backend.numpy(x):
        from gradwire.kernels.cast import cpu

        return cpu.from_half(x)
    return reference.from_half(x)
