"""Gradients of half precision: codecs see float32, and results keep what the gradient's type can hold."""

from __future__ import annotations

import pytest
import torch

import gradwire
from gradwire.core.window import Feedback, Window

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
@pytest.mark.parametrize("memory", ["none", "error_feedback", "error_feedback(bits=8)"])
def test_codecs_see_float32_whatever_the_gradient_is(dtype, memory):
    SEEN.clear()
    cluster = gradwire.VirtualCluster(workers=2, codec=Looks(), memory=memory, tensors="all")
    for _ in range(2):
        result = cluster.reduce({"w": [torch.ones(5, 5, dtype=dtype)] * 2})["w"]
        assert result.dtype == dtype
    assert set(SEEN) == {torch.float32}
    assert all(kept is None or kept.dtype == torch.float32 for kept in cluster.memory("w"))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_what_a_memory_adds_is_added_in_float32(dtype):
    x = torch.randn(1, 1000, generator=torch.Generator().manual_seed(0)).to(dtype)
    error = torch.randn(1, 1000, generator=torch.Generator().manual_seed(1))
    for kept, decay, gain, wanted in (
        (None, 1.0, 1.0, x.float()),
        (None, 1.0, 0.3, x.float() * 0.3),
        (error, 1.0, 1.0, x.float() + error),
        (error, 0.7, 0.3, error * 0.7 + x.float() * 0.3),
    ):
        out = Feedback(torch.empty(1, 1000), kept, decay, gain).compensated(Window.whole(x))
        assert torch.equal(out, wanted)


VALUES = {torch.bfloat16: (1e30, 3e30), torch.float16: (60000.0, 60000.0), torch.float64: (1 + 2.0**-40, 1 + 2.0**-41)}


@pytest.mark.parametrize("codec", ["topk(ratio=0.5)", "dgc(momentum=0)"])
@pytest.mark.parametrize("dtype", VALUES)
def test_what_travels_as_it_is_keeps_its_type_and_its_range(codec, dtype):
    cluster = gradwire.VirtualCluster(workers=2, codec=codec, tensors="matrices")
    vectors = [torch.full((60,), value, dtype=dtype) for value in VALUES[dtype]]
    result = cluster.reduce({"w": [torch.ones(40, 40, dtype=dtype)] * 2, "b": vectors})["b"]
    assert result.dtype == dtype
    if dtype == torch.float64 and "dgc" in codec:  # a momentum is kept in float32
        vectors = [v.float().double() for v in vectors]
    assert torch.equal(result, (vectors[0] / 2 + vectors[1] / 2))
    assert cluster.engine.skipped_steps == 0


def test_momenta_of_vectors_are_kept_in_float32():
    """1 + 2^-20 is nothing that half precision has."""
    cluster, value = gradwire.VirtualCluster(workers=2, codec="dgc(momentum=0.5)", tensors="matrices"), 1 + 2.0**-20
    grads = {"w": [torch.ones(40, 40)] * 2, "b": [torch.full((60,), value)] * 2}
    assert torch.equal(cluster.reduce(grads)["b"], torch.full((60,), value))
    assert torch.equal(cluster.reduce(grads)["b"], torch.full((60,), 1.5 * value))


def test_errors_of_half_precision_are_measured_in_float32():
    """Their squares are beyond its range, or below it."""
    for size in (1000.0, 1e-5):
        cluster = gradwire.VirtualCluster(workers=2, codec="topk(ratio=0.5)", tensors="all", nmse_every=1)
        gradient = torch.cat([torch.full((500,), size), torch.full((500,), size / 2)]).half()
        cluster.reduce({"w": [gradient] * 2})
        assert cluster.nmse() == pytest.approx(0.2, rel=0.02)


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
