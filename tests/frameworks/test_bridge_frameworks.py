"""The bridge with arrays of JAX and TensorFlow, in eager mode and inside compiled programs."""

from __future__ import annotations

import pytest
import steps
from bridged import check
from ranks import Failure

pytestmark = [pytest.mark.frameworks, pytest.mark.dist]
each = pytest.mark.parametrize("framework", ["jax", "tensorflow"])
both = pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
LIMIT = {"timeout": 120.0, "deadline": 240.0}  # TensorFlow takes its time to load


@each
@both
def test_same_results_as_virtual_workers(pool, framework, compiled):
    check(pool, framework, 2, channels_last=True, compiled=compiled)


@each
def test_same_results_as_four_virtual_workers(pool, framework):
    check(pool, framework, 4, channels_last=True)


@each
def test_none_is_the_mean_that_the_framework_takes(pool, framework):
    assert pool.run(2, steps.own_mean, framework, **LIMIT) == [True, True]


@pytest.mark.parametrize("ranks, wanted", [(1, [2.0, 0.0, 5.0]), (2, [2.0, 0.0, 5.5])])
def test_rows_that_tensorflow_lists_become_an_array(pool, ranks, wanted):
    """Of one rank, too: Keras' Adam would square a row that is listed twice in parts, and train otherwise."""
    assert pool.run(ranks, steps.of_listed_rows, **LIMIT) == [wanted] * ranks


@each
def test_a_resumed_bridge_goes_on_bit_for_bit(pool, framework, tmp_path):
    assert pool.run(2, steps.resumed, framework, str(tmp_path), **LIMIT) == [True, True]


@each
def test_all_ranks_begin_as_the_first(pool, framework):
    assert pool.run(2, steps.started, framework, **LIMIT) == [([[0, 1, 2], [3, 4, 5]], 7, True)] * 2


@each
def test_arrays_change_hands_without_a_copy(pool, framework):
    for given, seen, back in pool.run(1, steps.addresses, framework, **LIMIT):
        assert given == seen == back


@each
@both
def test_ranks_with_other_shapes_are_told(pool, framework, compiled):
    for found in pool.outcomes(2, steps.of_other_shapes, framework, compiled, **LIMIT):
        assert isinstance(found, Failure)
        assert "Incompatible" in found.kind + found.message
        assert "gradients ['w'] float32[64, 64]; rank 1 has" in found.message


@each
@both
def test_a_dead_rank_ends_the_others(pool, framework, compiled):
    # nobody waits until the time of the process group is up
    survivor, dead = pool.outcomes(2, steps.dying, framework, compiled, timeout=900.0, deadline=240.0)
    assert dead.kind == "Died"
    assert survivor.kind != "Hung"
    assert "ExchangeFailed" in survivor.kind + survivor.message
