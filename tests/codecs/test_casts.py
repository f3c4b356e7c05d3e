"""Casts: half the bytes, and sums on the wire or in float32."""

from __future__ import annotations

import pytest
import torch

import gradwire

WORKERS = 65


@pytest.mark.parametrize("name", ["bf16", "fp16"])
def test_a_sum_in_float32_is_rounded_once_and_not_at_each_worker(name):
    small = 2.0 ** (-9 if name == "bf16" else -12)  # lost beside 1
    gradients = {"w": [torch.ones(40, 30), *[torch.full((40, 30), small)] * (WORKERS - 1)]}
    exact = (1 + (WORKERS - 1) * small) / WORKERS
    on_wire, in_float32 = (
        gradwire.VirtualCluster(WORKERS, spec).reduce(gradients)["w"] for spec in (name, f"{name}(sum='float32')")
    )
    rounding = 2.0 ** (-8 if name == "bf16" else -11)
    assert (in_float32 - exact).abs().max() <= rounding * exact
    assert (on_wire - exact).abs().min() > 4 * rounding * exact


@pytest.mark.parametrize("name", ["bf16", "fp16"])
def test_it_is_the_cast_itself_where_nobody_adds_on_the_way(name):
    gradients = {"w": [torch.randn(33, 65) for _ in range(4)]}
    specs = (name, f"{name}(sum='float32')")
    clusters = [gradwire.VirtualCluster(4, spec, strategy="scatter_reduce_gather") for spec in specs]
    plain, other = (cluster.reduce(gradients)["w"] for cluster in clusters)
    assert plain.equal(other)
    assert clusters[0].sent_bytes == clusters[1].sent_bytes


@pytest.mark.parametrize("name", ["bf16", "fp16"])
def test_only_two_types_can_be_asked_for(name):
    with pytest.raises(gradwire.ConfigError, match=f"{name}: `sum` must be '.*' or 'float32', got 'float64'"):
        gradwire.codec(f"{name}(sum='float64')")
