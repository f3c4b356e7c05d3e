"""How much a worker encodes and decodes: what the tracer counts, for numbers of workers that were traced and others."""

from __future__ import annotations

import pytest

from gradwire.planner.own_workloads import CARRIERS, counted
from gradwire.planner.workload import ANCHORS, shipped


@pytest.mark.parametrize("workers", [1, 2, 3, 8, 12, 64, 96])
@pytest.mark.parametrize("strategy", CARRIERS)
def test_work_is_what_a_strategy_does(strategy, workers):
    assert shipped().work(strategy, workers) == pytest.approx(counted(strategy, workers), rel=0.01)  # shards are padded
    if workers in ANCHORS:
        assert shipped().work(strategy, workers) == counted(strategy, workers)


@pytest.mark.parametrize("across", CARRIERS)
def test_a_node_does_together_what_its_only_worker_would(across):
    """The tracer asks every rank of a node; the model gives each of them an equal share of this."""
    assert counted(f"hierarchical(per_node=4, across='{across}')", 16) == shipped().work(across, 4)


def test_sums_and_own_rounds_are_measured_as_a_whole():
    assert shipped().work("all_reduce", 8) == shipped().work("rounds", 8) == (1.0, 1.0)
