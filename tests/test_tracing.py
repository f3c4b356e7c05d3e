"""Exact bytes without sending: the published volumes."""

from __future__ import annotations

import pytest

import gradwire
from gradwire import models
from gradwire.tracing import trace


def traced(model, codec, **options):
    return trace(codec, [(n, p.shape) for n, p in models.build(model).named_parameters()], **options)


@pytest.mark.parametrize(
    "model, rank, floats, millions",
    [
        ("resnet18-cifar10", 1, 36_325 + 9_610, 1350.489),
        ("resnet18-cifar10", 2, 2 * 36_325 + 9_610, 2418.444),
        ("resnet18-cifar100", 1, 36_415 + 9_700, 1355.781),
        ("resnet18-cifar100", 2, 2 * 36_415 + 9_700, 2426.382),
        ("vgg19bn-cifar10", 1, 53_029 + 17_546, 2074.905),
        ("vgg19bn-cifar10", 4, 4 * 53_029 + 17_546, 6752.063),
    ],
)
def test_accordions_volumes(model, rank, floats, millions):
    """Floats a step, and over 300 epochs of 98 steps, as in Accordion's table of volumes."""
    payload = traced(model, f"powersgd(rank={rank})").payload_bytes
    assert payload == 4 * floats
    assert payload / 4 * 29_400 / 1e6 == pytest.approx(millions, abs=5e-4)


@pytest.mark.parametrize(
    "model, bits",
    [
        ("vgg19-200", {1: 0.02417, 4: 0.08717, 16: 0.33917, 64: 1.3464}),
        ("bert-large", {1: 0.07959, 4: 0.21645, 16: 0.76351, 64: 2.95173}),
    ],
)
def test_powersgd_bits_per_coordinate(model, bits):
    for rank, wanted in bits.items():
        assert traced(model, f"powersgd(rank={rank})").bits_per_element == pytest.approx(wanted, abs=6e-5)


@pytest.mark.parametrize("workers", [3, 4, 8, 16])
def test_scatter_reduce_gather_sends_two_payloads_whatever_the_number_of_workers(workers):
    srg = traced("resnet50", "signsgd", workers=workers, strategy="scatter_reduce_gather", tensors="all")
    gather = traced("resnet50", "signsgd", workers=workers, strategy="all_gather", tensors="all")
    payload = 25_557_032 / 8
    assert srg.sent_bytes == pytest.approx(2 * (workers - 1) / workers * payload, rel=1e-4)
    assert gather.sent_bytes == pytest.approx((workers - 1) * payload, rel=1e-4)
    assert srg.payload_bytes == pytest.approx(payload, rel=1e-4)


@pytest.mark.parametrize("nodes, per_node", [(2, 8), (4, 4), (8, 2)])
def test_on_nodes_each_rank_sends_its_part_and_keeps_the_rest_inside(nodes, per_node):
    strategy = f"hierarchical(per_node={per_node}, across='scatter_reduce_gather')"
    alone = traced("resnet50", "signsgd", workers=nodes, strategy="scatter_reduce_gather", tensors="all")
    shared = traced("resnet50", "signsgd", workers=nodes * per_node, strategy=strategy, tensors="all")
    assert shared.sent_bytes == pytest.approx(alone.sent_bytes / per_node, rel=2e-3)
    assert shared.payload_bytes == pytest.approx(alone.payload_bytes / per_node, rel=2e-3)
    assert shared.node_bytes == pytest.approx(2 * 4 * 25_557_032 * (per_node - 1) / per_node, rel=2e-3)
    assert [(e.kind, e.node_bytes > 0) for e in shared.exchanges] == [
        ("scatter", True), ("scatter", False), ("gather", False), ("gather", True),
    ]  # fmt: skip
    assert alone.node_bytes == 0


def test_low_rank_factors_of_whole_layers_are_shared_out():
    """No layer of a ResNet is cut, so that the ranks of a node send no more than one alone would, in sum."""
    alone = traced("resnet50", "powersgd(rank=4)", workers=2)
    shared = traced("resnet50", "powersgd(rank=4)", workers=8, strategy="hierarchical(per_node=4)")
    assert alone.sent_bytes / 4 < shared.sent_bytes < alone.sent_bytes / 2


def test_the_order_and_kind_of_exchanges():
    kinds = [(e.kind, e.round) for e in trace("topkc", [("w", (64, 64)), ("b", (64,))]).exchanges]
    assert kinds == [("sum", 0), ("sum", 0), ("sum", 1)]  # energies with the vector, then values
    kinds = [(e.kind, e.round) for e in trace("qsgd", [("w", (2048, 2048))], workers=8).exchanges]
    assert kinds == [("scatter", 0), ("gather", 1)]


def test_a_codec_that_cannot_run_on_meta_tensors_is_traced_on_real_ones():
    class HostSync(type(gradwire.codec("fp16"))):
        def encode(self, x, rng):
            assert float(x.abs().max()) >= 0
            return super().encode(x, rng)

    assert trace(HostSync(), [("w", (64, 64))], workers=4).sent_bytes == 2 * 64 * 64 * 2 * 3 // 4


def test_one_worker_sends_nothing():
    assert all(trace(name, [("w", (64, 64))], workers=1).sent_bytes == 0 for name in gradwire.codec_names())


@pytest.mark.parametrize("workers", [0, -1, 2.5, True])
def test_wrong_number_of_workers(workers):
    message = f"^trace: `workers` must be a whole number of at least 1, got {workers}$"
    with pytest.raises(gradwire.ConfigError, match=message):
        trace("none", [("w", (4, 4))], workers=workers)
