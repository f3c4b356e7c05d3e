"""How every compiled kernel is compiled: without the interpreter lock, and kept on disk for the next process.

Numba notices a change in the file of a kernel, not in another file whose functions it has inlined: after editing a
`cpu.py` that others import, run ``make clean-kernels``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from numba import njit


def jit(function: Callable[..., Any]) -> Any:
    """Compile `function` when it is first called."""
    try:
        return njit(nogil=True, error_model="numpy", cache=True)(function)
    except RuntimeError:  # no folder to keep anything in, as in a read-only container
        return njit(nogil=True, error_model="numpy")(function)
