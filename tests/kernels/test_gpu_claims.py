"""What `gradwire codecs` says of a GPU: a codec without a reason for plain torch has none that touches its gradient."""

from __future__ import annotations

import importlib
import math
import pkgutil
import warnings

import pytest
import torch
from on_gpu import CUDA, here, needs_triton, on_gpu
from torch.utils._python_dispatch import TorchDispatchMode

import gradwire
import gradwire.kernels
from gradwire.collectives import trace
from gradwire.core.layout import Layout
from gradwire.engine import Engine
from gradwire.kernels import launch

pytestmark = needs_triton
LAYOUT = Layout.of([("w", (64, 96)), ("b", (48,)), ("v", (96, 70))])
FREE = {"empty", "empty_like", "new_empty", "zeros", "view", "_unsafe_view", "slice", "split", "expand", "as_strided"}
FREE |= {"t", "permute", "transpose", "unsqueeze", "squeeze", "select", "detach", "alias", "reshape"}
DEFAULT = ("blockint", "randomk")  # others take long in the interpreter
FEW = ("none", "bf16")  # of such passes, though no kernel does them
EACH = [n if n in DEFAULT else pytest.param(n, marks=pytest.mark.sweep) for n in gradwire.codec_names()]
EACH += [pytest.param(f"thc(aggregation='{a}')", marks=pytest.mark.sweep) for a in ("sum", "saturate")]


class Passes(TorchDispatchMode):
    """Counts operations that touch about a gradient, beside those of launches and of the answers to exchanges."""

    def __init__(self, monkeypatch):
        super().__init__()
        self.count, self._elsewhere = 0, 0
        start, echo = launch.launch, trace.echo
        monkeypatch.setattr(trace, "echo", self._uncounted(echo))
        for module in pkgutil.iter_modules(gradwire.kernels.__path__):
            try:
                kernels = importlib.import_module(f"gradwire.kernels.{module.name}.gpu")
            except ModuleNotFoundError:
                continue
            if hasattr(kernels, "launch"):
                monkeypatch.setattr(kernels, "launch", self._uncounted(start))

    def _uncounted(self, function):
        def call(*args, **kwargs):
            self._elsewhere += 1
            try:
                return function(*args, **kwargs)
            finally:
                self._elsewhere -= 1

        return call

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        found = func(*args, **(kwargs or {}))
        large = isinstance(found, torch.Tensor) and math.prod(found.shape) >= LAYOUT.numel // 3
        self.count += bool(large and not self._elsewhere and func.overloadpacket.__name__ not in FREE)
        return found


@pytest.mark.parametrize("name", EACH)
def test_passes_of_plain_torch(name, monkeypatch):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # codecs of large variance are scaled, and say so
        engine = Engine(name, workers=4, strategy="auto", graphs=False)
    # Small, so that codecs with a threshold send little: the interpreter is slow.
    x = here(0.003 * torch.randn(1, LAYOUT.numel, generator=torch.Generator().manual_seed(1)))
    passes = Passes(monkeypatch)
    with on_gpu(), torch.no_grad():
        for step in range(3):
            program = engine.reduce(x, LAYOUT, torch.empty_like(x))
            if step == 2:
                with passes:
                    _, result = trace.run(program, 4)
            else:
                _, result = trace.run(program, 4)
            engine.finish_step([result])
    plain = gradwire.codec(name).plain_on_gpu
    if not plain:
        assert passes.count <= 5  # votes of a gather are read as bits and written by plain torch
    elif name not in FEW and not CUDA:
        assert passes.count > 5
