"""Which implementation of a kernel runs: Numba's on the CPU, Triton's on a GPU, or plain torch where they are missing.

A kernel is a folder: `reference.py` defines it in plain torch, `cpu.py` has functions of the same names in Numba,
`gpu.py` in Triton, and `run` chooses. Where there is one, `one_pass.py` has those of the CPU that read and write
gradients where they lie.

``GRADWIRE_KERNELS=reference`` in the environment, or `plain_torch` in a program, chooses plain torch everywhere.
``TRITON_INTERPRET=1`` in the environment and `interpreted` in a program run the GPU's kernels on the CPU, slowly.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from types import FunctionType
from typing import Any, ParamSpec, TypeVar

import torch
from torch import Tensor

from gradwire.core.errors import GradwireWarning
from gradwire.core.window import Feedback, Window

P = ParamSpec("P")
R = TypeVar("R")
CPU, GPU = "cpu", "gpu"
_MODULES = {CPU: ("cpu", "one_pass"), GPU: ("gpu",)}
_NUMBA = find_spec("numba") is not None
_NUMPY = find_spec("numpy") is not None
_TRITON = find_spec("triton") is not None
_plain = os.environ.get("GRADWIRE_KERNELS") == "reference"
_interpreted = False


def run(reference: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
    """Call a kernel: the fast function of the same name where it can treat all arguments, else `reference`.

    Args:
        reference: the function of a `reference.py`.
        args: its arguments; tensors and devices among them must all be of one kind for a fast one.
    """
    kind = kind_of(*args, *kwargs.values())
    if kind is not None:
        fast = fast_function(reference.__module__.rpartition(".")[0], reference.__name__, kind)
        if fast is not None and getattr(fast, "accepts", _anything)(*args, **kwargs):
            found: R = fast(*args, **kwargs)
            return found
    return reference(*args, **kwargs)


def only(accepts: Callable[..., bool]) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Mark a fast kernel that treats not all arguments: those that `accepts` takes."""

    def mark(function: Callable[P, R]) -> Callable[P, R]:
        function.accepts = accepts  # type: ignore[attr-defined]
        return function

    return mark


def fast(kernel: str, name: str, tensor: Tensor) -> Callable[..., Any]:
    """The fast function `name` of a kernel's package that treats such tensors; there must be one."""
    kind = kind_of(tensor)
    found: Callable[..., Any] | None = None if kind is None else fast_function(kernel, name, kind)
    assert found is not None, f"{kernel}: no fast {name} for a tensor on {tensor.device}"
    return found


@cache
def fast_function(kernel: str, name: str, kind: str) -> Any:
    """The function `name` of a kernel's package for CPUs or GPUs; None if there is none."""
    for module in _MODULES[kind]:
        if find_spec(f"{kernel}.{module}") is not None:
            found = getattr(import_module(f"{kernel}.{module}"), name, None)
            if isinstance(found, FunctionType):  # a kernel of the same name is for other kernels
                return found
    return None


def kind_of(*values: object) -> str | None:
    """Whose fast kernels can treat these values: the CPU's, the GPU's, or None's."""
    if _plain:
        return None
    if _interpreted:
        return GPU if all(map(_on_host_or_told, values)) else None
    if all(map(_on_host, values)):
        if _NUMBA:
            return CPU
        _say_slow()
    if not _TRITON:
        return None
    return GPU if any(map(_on_gpu, values)) and not any(map(_elsewhere, values)) else None


@cache
def _say_slow() -> None:
    """Once a process, and of a job by rank 0 alone."""
    if os.environ.get("RANK", "0") == "0":
        message = (
            "gradwire: without Numba codecs run in plain torch on the CPU, several times slower; pip install numba"
        )
        warnings.warn(message, GradwireWarning, stacklevel=2)


def compiled(*tensors: Tensor) -> bool:
    """Whether the Numba kernels can treat these tensors."""
    return kind_of(*tensors) == CPU


def numpy(tensor: Tensor) -> bool:
    """Whether NumPy can treat this tensor."""
    return _NUMPY and not _plain and tensor.device.type == "cpu"


def fused(device: torch.device) -> bool:
    """Whether Triton's kernels can run there."""
    return kind_of(device) == GPU


def _device(value: object) -> torch.device | None:
    """Where a value lies; None: everywhere."""
    if isinstance(value, Feedback):
        return value.out.device
    if isinstance(value, Window):
        return value.buffer.device
    if isinstance(value, Tensor):
        return value.device
    return value if isinstance(value, torch.device) else None


def _on_host_or_told(value: object) -> bool:
    device = _device(value)
    return device is None or device.type == "cpu"


def _on_host(value: object) -> bool:
    # a factor that is known on a device only is not for the host
    return _on_host_or_told(value) and not (isinstance(value, Feedback) and isinstance(value.decay, Tensor))


def _on_gpu(value: object) -> bool:
    device = _device(value)
    return device is not None and device.type == "cuda"


def _elsewhere(value: object) -> bool:
    device = _device(value)
    return device is not None and device.type != "cuda"


def _anything(*args: object, **kwargs: object) -> bool:
    return True


@contextmanager
def interpreted() -> Iterator[None]:
    """Inside, the GPU's kernels treat tensors of the CPU, in Triton's interpreter; for tests.

    ``TRITON_INTERPRET=1`` must be in the environment before they are imported.
    """
    global _interpreted
    before, _interpreted = _interpreted, True
    try:
        yield
    finally:
        _interpreted = before


@contextmanager
def plain_torch(wanted: bool = True) -> Iterator[None]:
    """Inside, kernels run their reference in plain torch; for comparisons, not for several threads."""
    global _plain
    before, _plain = _plain, wanted
    try:
        yield
    finally:
        _plain = before
