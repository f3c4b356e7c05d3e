"""Which implementation of a kernel runs: the compiled one for the CPU where Numba is installed, else plain torch.

A kernel is a folder: `reference.py` defines it in plain torch, `cpu.py` has functions of the same names in Numba, and
`run` chooses. Where there is one, `one_pass.py` has those that read and write gradients where they lie. On a GPU
everything is plain torch but the random numbers, which Triton makes where it is installed.

``GRADWIRE_KERNELS=reference`` in the environment, or `plain_torch` in a program, chooses plain torch everywhere.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from typing import Any, ParamSpec, TypeVar

import torch
from torch import Tensor

from gradwire.core.window import Feedback

P = ParamSpec("P")
R = TypeVar("R")
_NUMBA = find_spec("numba") is not None
_NUMPY = find_spec("numpy") is not None
_TRITON = find_spec("triton") is not None
_plain = os.environ.get("GRADWIRE_KERNELS") == "reference"


def run(reference: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
    """Call a kernel: the compiled function of the same name where it can treat all arguments, else `reference`.

    Args:
        reference: the function of a `reference.py`.
        args: its arguments; tensors and devices among them must be the CPU's for the compiled one.
    """
    values = [*args, *kwargs.values()]
    if _NUMBA and not _plain and all(map(_on_host, values)):
        compiled_one = compiled_function(reference.__module__.rpartition(".")[0], reference.__name__)
        if compiled_one is not None and getattr(compiled_one, "accepts", _anything)(*args, **kwargs):
            found: R = compiled_one(*args, **kwargs)
            return found
    return reference(*args, **kwargs)


def only(accepts: Callable[..., bool]) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Mark a compiled kernel that treats not all arguments: those that `accepts` takes."""

    def mark(function: Callable[P, R]) -> Callable[P, R]:
        function.accepts = accepts  # type: ignore[attr-defined]
        return function

    return mark


@cache
def compiled_function(kernel: str, name: str) -> Any:
    """The compiled function `name` of a kernel's package, from `cpu.py` or `one_pass.py`; None if there is none."""
    for module in ("cpu", "one_pass"):
        if find_spec(f"{kernel}.{module}") is not None:
            found = getattr(import_module(f"{kernel}.{module}"), name, None)
            if found is not None:
                return found
    return None


def compiled(*tensors: Tensor) -> bool:
    """Whether the Numba kernels can treat these tensors."""
    return _NUMBA and not _plain and all(map(_on_host, tensors))


def numpy(tensor: Tensor) -> bool:
    """Whether NumPy can treat this tensor."""
    return _NUMPY and not _plain and tensor.device.type == "cpu"


def fused(device: torch.device) -> bool:
    """Whether Triton's kernels can run there."""
    return _TRITON and not _plain and device.type == "cuda"


def _on_host(value: object) -> bool:
    if isinstance(value, Feedback):  # a factor that is known on a device only is not for the host
        return value.out.device.type == "cpu" and not isinstance(value.decay, Tensor)
    if isinstance(value, Tensor):
        return value.device.type == "cpu"
    return not isinstance(value, torch.device) or value.type == "cpu"


def _anything(*args: object, **kwargs: object) -> bool:
    return True


@contextmanager
def plain_torch(wanted: bool = True) -> Iterator[None]:
    """Inside, kernels run their reference in plain torch; for comparisons, not for several threads."""
    global _plain
    before, _plain = _plain, wanted
    try:
        yield
    finally:
        _plain = before
