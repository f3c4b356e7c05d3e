"""Merges of the workers' largest elements, read and written where they lie on a GPU, against plain torch."""

from __future__ import annotations

import math

import pytest
from exact import normal, same
from on_gpu import back, here, mostly, needs_triton, on_gpu

import gradwire
from gradwire.core.codec import Codec
from gradwire.kernels import backend

pytestmark = needs_triton
SHAPES = {"a": (40, 30), "b": (17,), "c": (70, 41), "d": (9,)}


@pytest.mark.parametrize("bad", mostly(math.nan, None, -math.inf))
@pytest.mark.parametrize("memory", mostly("default", "none", "momentum_correction", always=2))
@pytest.mark.parametrize(
    "spec", ["gtopk(ratio=0.05)", pytest.param("gtopk(ratio=0.3, value_bits=16)", marks=pytest.mark.sweep)]
)
def test_whole_steps_are_those_of_plain_torch(spec, memory, bad, monkeypatch):
    """Three workers, of which one is a guest; a gradient that is not finite, in the second of three steps."""

    def run():
        cluster = gradwire.VirtualCluster(3, spec, memory=memory, seed=3)
        seen = []
        for step in range(3):
            gradients = {
                name: [here(normal(1, math.prod(shape), 10 * step + worker).view(shape)) for worker in range(3)]
                for name, shape in SHAPES.items()
            }
            if step == 1 and bad is not None:
                gradients["c"][2][1, 1] = bad
            seen += cluster.reduce(gradients).values()
            seen += [kept.clone() for name in SHAPES for kept in cluster.memory(name) if kept is not None]
        return [back(tensor) for tensor in seen]

    with backend.plain_torch():
        wanted = run()
    monkeypatch.setattr(Codec, "reduce_to", None)  # out of reach
    with on_gpu():
        found = run()
    assert len(found) == len(wanted) > 0
    assert all(same(one, other) for one, other in zip(found, wanted, strict=True))
