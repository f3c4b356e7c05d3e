"""How every compiled kernel is compiled: without the interpreter lock, and kept on disk for the next process.

Numba notices a change in the file of a kernel, not in another file whose functions it has inlined: after editing a
`cpu.py` that others import, run ``make clean-kernels``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from numba import njit


def jit(function: Callable[..., Any], **options: Any) -> Any:
    """Compile `function` when it is first called."""
    try:
        return njit(nogil=True, error_model="numpy", cache=True, **options)(function)
    except RuntimeError:  # no folder to keep anything in, as in a read-only container
        return njit(nogil=True, error_model="numpy", **options)(function)


def jit_sums(function: Callable[..., Any]) -> Any:
    """The same, for sums in any order: several elements at once, with one rounding a product and sum."""
    return jit(function, fastmath={"reassoc", "contract", "nsz"})
