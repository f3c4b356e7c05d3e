"""How often a step goes over the whole gradient: torch's operations and compiled kernels, counted.

A pass is an operation, or a kernel, that touches at least nine tenths of the elements. The owner of a shard reads the
codes of all workers for it, as many as the gradient has elements: one pass more for codecs that go by
scatter-reduce-gather, which the kernels' own count does not show.
"""

from __future__ import annotations

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from gradwire.collectives import trace
from gradwire.core.layout import Layout
from gradwire.core.random import Random
from gradwire.engine import Engine
from gradwire.kernels import backend
from gradwire.kernels.parallel import counted
from gradwire.kernels.random import normal

pytestmark = pytest.mark.skipif(not backend.compiled(), reason="counts the compiled kernels, which need Numba")

LAYOUT = Layout.of([("a", (512, 300)), ("bias", (300,)), ("b", (400, 700)), ("c", (256, 3, 3, 64)), ("d", (64,))])
LARGE = 0.9 * LAYOUT.numel
MOST = {
    "efsignsgd": 4,
    "signsgd": 4,
    "blockint": 4,
    "qsgd": 4,
    "terngrad(clip=None)": 4,
    "topk": 6,
    "topkc": 6,
    "threshold(value=0.003)": 6,
    "dgc": 6,
    "powersgd": 8,
}


class Operations(TorchDispatchMode):
    """Counts torch's operations that touch most of the gradient; views touch nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []
        self.elements = 0  # touched by all operations

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        alias = func._schema.returns[0].alias_info if func._schema.returns else None
        if alias is None or alias.is_write:
            flat, _ = torch.utils._pytree.tree_flatten((args, kwargs, out))
            largest = max((t.numel() for t in flat if isinstance(t, torch.Tensor)), default=0)
            self.elements += largest if "empty" not in str(func) else 0
            if largest >= LARGE and "empty" not in str(func):
                self.found.append(str(func))
        return out


def passes(codec: str) -> tuple[list[str], list[int], int]:
    """Of the third step: operations, kernels, and elements that torch's operations touch in all."""
    memory = "error_feedback" if codec not in ("signsgd", "dgc") else "default"
    engine = Engine(codec, memory=memory, workers=4)
    with torch.no_grad():
        for step in range(3):
            x = 1e-3 * normal(Random(step=step).common("passes"), (1, LAYOUT.numel), torch.device("cpu"))
            with Operations() as operations, counted() as kernels:
                _, result = trace.run(engine.reduce(x, LAYOUT, x, scratch=True), 4)
                engine.finish_step([result])
    owner = [LAYOUT.numel] if engine.strategy_for(LAYOUT) is not None else []
    return operations.found, [n for n in kernels if n >= LARGE] + owner, operations.elements


@pytest.mark.filterwarnings("ignore:.*error feedback over an unbiased codec")
@pytest.mark.parametrize("codec", MOST)
def test_a_step_goes_over_the_gradient_a_few_times(codec):
    operations, kernels, elements = passes(codec)
    assert len(operations) + len(kernels) <= MOST[codec], (operations, kernels)
    assert elements <= MOST[codec] * LAYOUT.numel  # nor in pieces


def test_the_count_sees_what_a_simple_codec_does():
    operations, kernels, _ = passes("onebit")
    assert len(operations) + len(kernels) > 8
