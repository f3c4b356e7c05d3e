"""Seconds of single exchanges, against numbers worked out by hand."""

from __future__ import annotations

import pytest

from gradwire.core.errors import ConfigError
from gradwire.planner import published
from gradwire.planner.cluster import Cluster, Link
from gradwire.planner.cost import WAYS, Cost, cost, together

B = 8e6  # bytes; 8e6 bytes at 1 Gbit/s take 64 ms


def cluster(gpus, per_node=1, latency=1e-3, inside=1e12):
    return Cluster(
        gpus=gpus,
        gpus_per_node=per_node,
        network=Link(latency_seconds=latency, bits_per_second=1e9),
        inside=Link(latency_seconds=1e-6, bits_per_second=inside),
    )


@pytest.mark.parametrize(
    ("kind", "way", "latencies", "payloads"),
    [
        ("sum", "ring", 6, 1.5),  # 2 (p-1), 2 (p-1)/p
        ("max", "ring", 6, 1.5),
        ("sum", "tree", 4, 2),
        ("sum", "hierarchical", 6, 1.5),
        ("sum", "parameter_server", 2, 6),
        ("gather", "ring", 3, 3),
        ("gather", "direct", 3, 3),
        ("gather", "hierarchical", 3, 3),
        ("gather", "parameter_server", 2, 12),
        ("scatter", "direct", 3, 0.75),
        ("route", "direct", 1, 1),
    ],
)
def test_four_hosts_with_one_gpu_each(kind, way, latencies, payloads):
    found = cost(kind, B, cluster(4), way)
    assert found.latency_seconds == pytest.approx(latencies * 1e-3)
    assert found.transfer_seconds == pytest.approx(payloads * 0.064)


def test_gpus_of_a_node_share_its_card():
    # 8 GPUs in nodes of 4: of a scatter, 4 GPUs send half of their rows each; of a ring, one flow leaves
    assert cost("scatter", B, cluster(8, 4)).transfer_seconds == pytest.approx(4 * 0.5 * 0.064)
    assert cost("gather", B, cluster(8, 4), "direct").transfer_seconds == pytest.approx(4 * 4 * 0.064)
    assert cost("gather", B, cluster(8, 4), "ring").transfer_seconds == pytest.approx(7 * 0.064)
    assert cost("sum", B, cluster(8, 4)).transfer_seconds == pytest.approx(2 * 7 / 8 * 0.064)
    assert cost("route", B, cluster(8, 4)).transfer_seconds == pytest.approx(4 * 0.064)
    inside = 2 * 3 / 4 * B * 8 / 1e12
    assert cost("sum", B, cluster(8, 4), "hierarchical").transfer_seconds == pytest.approx(inside + 0.064)


def test_inside_one_node_the_network_costs_nothing():
    found = cost("sum", B, cluster(4, 4))
    assert found.transfer_seconds == pytest.approx(1.5 * B * 8 / 1e12)
    assert found.latency_seconds == pytest.approx(6e-6)


def test_a_ring_passes_cards_and_links_inside():
    # 2 nodes of 4: of 14 hops a quarter leaves the node
    assert cost("sum", 0, cluster(8, 4)).latency_seconds == pytest.approx(14 * (0.25 * 1e-3 + 0.75 * 1e-6))


def test_one_gpu_exchanges_nothing():
    assert cost("sum", B, cluster(1)) == Cost(0.0, 0.0)


def test_the_published_ring_is_a_special_case():
    for gpus in (2, 8, 96):
        theirs = published.ring_all_reduce(25e6, gpus, 1e9, latency=1e-3)
        assert cost("sum", 25e6, cluster(gpus)).seconds == pytest.approx(theirs)


def test_exchanges_that_travel_together_share_bandwidth_and_wait_once():
    assert together([Cost(2.0, 1.0), Cost(1.0, 3.0)]) == 6.0
    assert together([]) == 0.0


def test_a_way_that_does_not_exist():
    with pytest.raises(ConfigError) as caught:
        cost("scatter", B, cluster(4), "tree")
    assert str(caught.value) == "gradwire: a scatter cannot go by 'tree'; known: direct"


@pytest.mark.parametrize("kind", WAYS)
def test_starting_costs_once(kind):
    base = cluster(4)
    slow = Link(latency_seconds=1e-3, bits_per_second=1e9, start_seconds=0.5)
    started = Cluster(gpus=4, network=slow, inside=base.inside)
    assert cost(kind, B, started).seconds - cost(kind, B, base).seconds == pytest.approx(0.5)
