"""Between float32 and half precision, rounding to nearest, ties to even.

torch converts element by element on some CPUs; NumPy, where it is installed, uses the vector instructions.
"""

from __future__ import annotations

from importlib.util import find_spec

from torch import Tensor

from gradwire.kernels.cast import reference

_NUMPY = find_spec("numpy") is not None


def to_half(x: Tensor) -> Tensor:
    """float32 -> float16; too large becomes infinite."""
    if _NUMPY and x.device.type == "cpu":
        from gradwire.kernels.cast import cpu

        return cpu.to_half(x)
    return reference.to_half(x)


def from_half(x: Tensor) -> Tensor:
    """float16 -> float32, exactly."""
    if _NUMPY and x.device.type == "cpu":
        from gradwire.kernels.cast import cpu

        return cpu.from_half(x)
    return reference.from_half(x)
