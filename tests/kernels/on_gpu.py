"""Where the GPU's kernels run in tests: on a GPU, or in Triton's interpreter."""

from __future__ import annotations

import importlib.util
import warnings
from contextlib import contextmanager

import pytest
import torch

from gradwire.kernels import backend

CUDA = torch.cuda.is_available()
DEVICE = torch.device("cuda" if CUDA else "cpu")
needs_triton = pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="needs Triton")


@contextmanager
def on_gpu():
    """Inside, kernels are Triton's."""
    if CUDA:
        yield
        return
    with backend.interpreted(), warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # NumPy's, of values that are not finite
        yield


def here(x):
    """A tensor where the kernels run."""
    return x.to(DEVICE)


def back(x):
    """What came out, for comparison; numbers of 16 bits as they are in 32."""
    if isinstance(x, tuple):
        return tuple(map(back, x))
    return x.cpu().float() if x.is_floating_point() else x.cpu()
