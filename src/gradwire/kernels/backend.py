"""Which implementation of a kernel runs: the compiled one for the CPU where Numba is installed, else plain torch.

On a GPU everything is plain torch but the random numbers, which Triton makes where it is installed.

``GRADWIRE_KERNELS=reference`` in the environment, or `plain_torch` in a program, chooses plain torch everywhere.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec

import torch
from torch import Tensor

_NUMBA = find_spec("numba") is not None
_NUMPY = find_spec("numpy") is not None
_TRITON = find_spec("triton") is not None
_plain = os.environ.get("GRADWIRE_KERNELS") == "reference"


def compiled(*tensors: Tensor) -> bool:
    """Whether the Numba kernels can treat these tensors."""
    return _NUMBA and not _plain and all(t.device.type == "cpu" for t in tensors)


def numpy(tensor: Tensor) -> bool:
    """Whether NumPy can treat this tensor."""
    return _NUMPY and not _plain and tensor.device.type == "cpu"


def fused(device: torch.device) -> bool:
    """Whether Triton's kernels can run there."""
    return _TRITON and not _plain and device.type == "cuda"


@contextmanager
def plain_torch(wanted: bool = True) -> Iterator[None]:
    """Inside, kernels run their reference in plain torch; for comparisons, not for several threads."""
    global _plain
    before, _plain = _plain, wanted
    try:
        yield
    finally:
        _plain = before
