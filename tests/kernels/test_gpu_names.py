"""Functions of a GPU's kernels are called in place of those of the same names in plain torch: they must be such."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from types import FunctionType

import pytest
import torch
from exact import normal, same
from on_gpu import back, here, needs_triton, on_gpu

import gradwire.kernels
from gradwire.core.random import Stream
from gradwire.kernels import blockwise, random

pytestmark = needs_triton
PACKAGES = [m.name for m in pkgutil.iter_modules(gradwire.kernels.__path__) if m.ispkg]


@pytest.mark.parametrize("package", PACKAGES)
def test_functions_of_one_name_take_the_same_arguments(package):
    try:
        gpu = importlib.import_module(f"gradwire.kernels.{package}.gpu")
        reference = importlib.import_module(f"gradwire.kernels.{package}.reference")
    except ModuleNotFoundError:
        return
    for name, found in vars(gpu).items():
        simple = getattr(reference, name, None)
        if isinstance(found, FunctionType) and isinstance(simple, FunctionType) and found is not simple:
            wanted, taken = (inspect.signature(f).parameters for f in (simple, found))
            assert list(taken)[: len(wanted)] == list(wanted), name
            more = list(taken.values())[len(wanted) :]
            assert all(p.default is not p.empty for p in more), name


def test_a_kernel_for_kernels_is_not_called_for_a_reference_of_its_name():
    x = normal(2, 100)
    with on_gpu():
        found = blockwise.abs_max(here(x), 16)
    assert same(back(found), blockwise.reference.abs_max(x, 16))


def test_words():
    stream = Stream((5, 2**64 - 3), (1, 4000))
    with on_gpu():
        found = random.words(stream, (2, 9), here(torch.zeros(1)).device)
    assert found.cpu().equal(random.reference.words(stream, (2, 9), torch.device("cpu")))
