"""How much a worker encodes and decodes: what the tracer counts, for numbers of workers that were traced and others."""

from __future__ import annotations

import pytest

from gradwire.planner.own_workloads import CARRIERS, Counting, counted, inside
from gradwire.planner.workload import ANCHORS, shipped
from gradwire.tracing import trace


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


@pytest.mark.parametrize("ranks", [2, 3, 8, 12])
def test_what_goes_on_inside_a_node_is_traced(ranks):
    before, after = shipped().inside(ranks)
    exact = trace(Counting(), [("matrix", (480, 500))], workers=2 * ranks, strategy=f"hierarchical(per_node={ranks})")
    within = [e for e in exact.exchanges if e.node_bytes]
    assert [e.kind for e in before + after] == [e.kind for e in within] == ["scatter", "gather"]
    assert (len(before), len(after)) == (1, 1)
    for told, wanted in zip(before + after, within, strict=True):
        assert told.num_bytes * 480 * 500 == pytest.approx(wanted.handed_bytes, rel=0.001)
        assert told.sent_bytes(ranks) * 480 * 500 == pytest.approx(wanted.node_bytes, rel=0.001)


def test_shipped_traces_of_nodes_are_up_to_date():
    made = inside()
    assert shipped().content()["inside"] == made
    assert shipped().content()["work"] == {s: {str(n): list(counted(s, n)) for n in ANCHORS} for s in CARRIERS}
