"""Clusters that cannot be, and what to type instead."""

from __future__ import annotations

import pytest

from gradwire.core.errors import ConfigError
from gradwire.planner.cluster import Cluster, Link, check_gpus, check_rate

LINK = Link(latency_seconds=1e-5, bits_per_second=1e10)


@pytest.mark.parametrize(
    ("gpus", "per_node", "sentence"),
    [
        (0, 1, "gradwire: `gpus` must be a whole number of at least 1, got 0"),
        (-4, 1, "gradwire: `gpus` must be a whole number of at least 1, got -4"),
        (8, 0, "gradwire: `gpus_per_node` must be a whole number of at least 1, got 0"),
        (2.5, 1, "gradwire: `gpus` must be a whole number of at least 1, got 2.5"),
        (
            10,
            4,
            "gradwire: 10 GPUs do not fill nodes of 4; type a multiple, such as 8 or 12, or --gpus-per-node 1",
        ),
        (3, 8, "gradwire: 3 GPUs do not fill nodes of 8; type a multiple, such as 8, or --gpus-per-node 1"),
    ],
)
def test_impossible_numbers_of_gpus(gpus, per_node, sentence):
    with pytest.raises(ConfigError) as caught:
        check_gpus(gpus, per_node)
    assert str(caught.value) == sentence


@pytest.mark.parametrize("bandwidth", ["10", "-1gbit", "0gbit", "fast", -5.0, 0, True, None, "10 GB/s"])
def test_impossible_rates(bandwidth):
    with pytest.raises(
        ConfigError, match=r"such as '10gbit'|as in 100mbit or 1gbit|got bytes in '10 GB/s'; write 80Gbit/s"
    ):
        check_rate(bandwidth)


def test_a_slow_switch_is_shared_by_the_nodes():
    cluster = Cluster(gpus=8, gpus_per_node=2, network=LINK, inside=LINK, switch_bits_per_second=2e10)
    assert cluster.nodes == 4
    assert cluster.link("sum").bits_per_second == 5e9
    wide = Cluster(gpus=8, gpus_per_node=2, network=LINK, inside=LINK, switch_bits_per_second=1e12)
    assert wide.link("sum").bits_per_second == 1e10


def test_kinds_have_links_of_their_own():
    slow = Link(latency_seconds=1e-3, bits_per_second=1e10, efficiency=0.5)
    cluster = Cluster(gpus=4, network=LINK, inside=LINK, kinds={"gather": slow})
    assert cluster.link("gather").payload_rate == 5e9
    assert cluster.link("sum") == LINK
    with pytest.raises(ConfigError, match="`kinds` must be 'sum' or 'gather'"):
        Cluster(gpus=4, network=LINK, inside=LINK, kinds={"broadcast": slow})


@pytest.mark.parametrize(
    "values",
    [{"latency_seconds": -1.0}, {"efficiency": 0.0}, {"bits_per_second": 0.0}, {"bits_per_second": float("inf")}],
)
def test_impossible_links(values):
    with pytest.raises(ConfigError, match="link: "):
        Link(**{"latency_seconds": 0.0, "bits_per_second": 1e9} | values)
