"""`handle.layers()`: bytes add up to what is sent, errors to what is measured."""

from __future__ import annotations

import math

import pytest
import torch
from given import message, network, train
from ranks import Pool
from torch.nn.parallel import DistributedDataParallel

import gradwire
from gradwire.integrations.layers import Layers


def trained(rank: int, codec: str, options: dict) -> tuple[Layers, dict, str]:
    model = DistributedDataParallel(network(), bucket_cap_mb=0.01)
    handle = gradwire.attach(model, codec, **options)
    train(model, torch.optim.SGD(model.parameters(), lr=0.1), range(3))
    layers = handle.layers()
    return layers, handle.stats(), message(gradwire.UnknownName, layers.__getitem__, "0.weigth")


@pytest.mark.dist
@pytest.mark.parametrize("codec", ["eightbit", "topk(ratio=0.05)", "powersgd(rank=2)", "none"])
@pytest.mark.parametrize("mode", ["overlap", "after_backward"])
def test_bytes_add_up(pool: Pool, codec: str, mode: str) -> None:
    layers, stats, unknown = pool.run(2, trained, codec, {"mode": mode})[0]
    # the first of the steps had other buckets, before DDP rebuilt them
    assert sum(layer.sent_bytes for layer in layers) == pytest.approx(stats["sent_bytes_per_step"], rel=1e-3)
    assert [layer.name for layer in layers] == [name for name, _ in network().named_parameters()]
    assert [layer.elements for layer in layers] == [p.numel() for p in network().parameters()]
    assert all(layer.error is None for layer in layers)
    assert unknown == "layers: there is no parameter named '0.weigth'; did you mean 0.weight or 4.weight or 3.weight?"
    assert layers["0.weight"] is layers[0]
    assert repr(layers).splitlines()[-1].startswith("Errors are not measured: attach(..., nmse_every=100)")


@pytest.mark.dist
@pytest.mark.parametrize("codec", ["topk(ratio=0.05)", "powersgd(rank=2)"])
def test_errors_are_those_of_the_last_measured_step(pool: Pool, codec: str) -> None:
    found = pool.run(2, trained, codec, {"nmse_every": 2})
    layers, stats, _ = found[0]
    assert layers.step == 2
    compressed = [layer for layer in layers if layer.codec != "-"]
    assert {layer.name for layer in compressed} == {"0.weight", "2.weight"}
    assert all(0 < layer.error < 1.5 for layer in compressed)
    assert all(layer.error == 0 for layer in layers if layer.codec == "-")
    assert [layer.error for layer in layers] == [layer.error for layer in found[1][0]]
    assert math.isfinite(stats["nmse"])
    assert "Errors are of step 2" in repr(layers)


@pytest.mark.dist
def test_one_measured_step_gives_the_errors_that_stats_tell(pool: Pool) -> None:
    layers, stats, _ = pool.run(2, trained, "topk(ratio=0.05)", {"nmse_every": 100, "tensors": "all"})[0]
    assert layers.step == 0
    assert min(layer.error for layer in layers) ** 2 <= stats["nmse"] <= max(layer.error for layer in layers) ** 2


def trained_by_itself(rank: int) -> tuple[str, Layers]:
    model = DistributedDataParallel(network(), bucket_cap_mb=0.01)
    handle = gradwire.attach(model)
    train(model, torch.optim.SGD(model.parameters(), lr=0.1), range(20))
    return repr(handle), handle.layers()


@pytest.mark.dist
def test_under_the_autopilot_they_are_of_the_codec_whose_turn_it_is(pool: Pool) -> None:
    shown, layers = pool.run(2, trained_by_itself)[0]
    first, now, *_ = shown.splitlines()
    assert first.startswith("gradwire.Autopilot: is trying, among none, ")
    assert first.endswith("; 2 ranks, 20 steps, 0 trials")
    codec = layers["2.weight"].codec
    assert now.startswith(f"now gradwire.Handle: {codec}, ")
