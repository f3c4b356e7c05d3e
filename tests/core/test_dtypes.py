"""Gradients of half precision: codecs see float32, and results keep what the gradient's type can hold."""

from __future__ import annotations

import pytest
import torch

import gradwire
from gradwire.core.window import Window

SEEN: list[torch.dtype] = []


class Looks(gradwire.Codec):
    """Sends what it gets, and remembers its type."""

    name, family, paper = "looks", "baseline", "none"
    traits = gradwire.Traits(combine=gradwire.Combine.ROUNDS, delta=1.0)

    def reduce(self, x, ctx):
        SEEN.append(x.dtype)
        mean = yield gradwire.Sum(x / ctx.workers)
        return mean, x


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("memory", ["none", "error_feedback"])
def test_codecs_see_float32_whatever_the_gradient_is(dtype, memory):
    SEEN.clear()
    cluster = gradwire.VirtualCluster(workers=2, codec=Looks(), memory=memory, tensors="all")
    result = cluster.reduce({"w": [torch.ones(5, 5, dtype=dtype)] * 2})["w"]
    assert set(SEEN) == {torch.float32}
    assert result.dtype == dtype


@pytest.mark.parametrize("spec", ["none", "topk(ratio=1)", "blockint(bits=8)", "powersgd(rank=4)"])
@pytest.mark.parametrize("size", [3e5, 1e30, 1e-20])
def test_bf16_gradients_keep_their_range(spec, size):
    """Half precision has neither 3e5 nor 1e-20."""
    cluster = gradwire.VirtualCluster(workers=2, codec=spec, tensors="all")
    gradients = [torch.full((64, 64), factor * size).to(torch.bfloat16) for factor in (1, 3)]
    result = cluster.reduce({"w": gradients})["w"]
    assert cluster.engine.skipped_steps == 0
    assert torch.allclose(result.float(), torch.full((64, 64), 2 * size), rtol=0.02, atol=0)


def test_a_window_reads_float32_and_writes_its_own_type():
    window = Window.whole(torch.full((1, 3), 1e30, dtype=torch.bfloat16))
    assert window.read().dtype == torch.float32
    window.write_(torch.full((1, 3), 2e30))
    assert window.buffer.dtype == torch.bfloat16
    assert torch.allclose(window.buffer.float(), torch.full((1, 3), 2e30), rtol=0.01)
