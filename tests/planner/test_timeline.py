"""Timelines that fit on a sheet of paper."""

from __future__ import annotations

import pytest

from gradwire.planner.timeline import COMPUTE, EXCHANGE, Job, Overlap, Stage, simulate

ALONE = Overlap()


def send(seconds, ready=1.0):
    return Job(ready, (Stage(EXCHANGE, seconds),))


def full(encode, exchange, decode, ready=1.0):
    return Job(ready, (Stage(COMPUTE, encode), Stage(EXCHANGE, exchange), Stage(COMPUTE, decode)))


def test_nothing_to_exchange():
    line = simulate(2.0, [], ALONE, one_lane=True)
    assert (line.backward_seconds, line.end_seconds) == (2.0, 2.0)


def test_after_the_backward_pass_everything_adds_up():
    assert simulate(2.0, [full(1, 3, 0.5)], ALONE, one_lane=True).end_seconds == pytest.approx(6.5)


def test_an_early_bucket_hides_behind_the_rest():
    # ready at 0.5 and 2.0; each takes 1: the first is done at 1.5, the last at 3
    assert simulate(2.0, [send(1, 0.25), send(1, 1.0)], ALONE, one_lane=False).end_seconds == pytest.approx(3.0)


def test_buckets_wait_for_the_network():
    # the first occupies the network until 0.5 + 4
    assert simulate(2.0, [send(4, 0.25), send(1, 1.0)], ALONE, one_lane=False).end_seconds == pytest.approx(5.5)


def test_lanes():
    """With one lane the next unit begins when the last is decoded; otherwise it is sent meanwhile."""
    jobs = [full(1, 1, 1), full(1, 1, 1)]
    assert simulate(0.0, jobs, ALONE, one_lane=True).end_seconds == pytest.approx(6.0)
    # encode 1 | encode 2 beside send 1 | decode 1 beside send 2 | decode 2
    assert simulate(0.0, jobs, ALONE, one_lane=False).end_seconds == pytest.approx(4.0)


def test_an_exchange_slows_backward_only_while_it_lasts():
    # backward 2, half done at 1; then 0.75 s of sending at half the speed does 0.375 of the second half
    line = simulate(2.0, [send(0.75, 0.5)], Overlap(network_slowdown=2.0), one_lane=True)
    assert line.backward_seconds == pytest.approx(1 + 0.75 + (1 - 0.375))
    assert line.end_seconds == line.backward_seconds
    late = simulate(2.0, [send(0.75)], Overlap(network_slowdown=2.0), one_lane=True)
    assert late.end_seconds == pytest.approx(2.75)  # nothing overlaps, nothing is slower


def test_encode_and_backward_take_turns():
    job = Job(0.5, (Stage(COMPUTE, 0.5),))
    line = simulate(2.0, [job], Overlap(compute_sharing=1.0), one_lane=True)
    assert line.backward_seconds == pytest.approx(2.5)  # both together took as long as one after the other
    free = simulate(2.0, [job], Overlap(compute_sharing=0.0), one_lane=True)
    assert free.end_seconds == pytest.approx(2.0)


def test_many_buckets_end_in_time():
    jobs = [full(1e-4, 1e-3, 1e-4, (i + 1) / 300) for i in range(300)]
    line = simulate(0.1, jobs, Overlap(1.07, 1.0), one_lane=True)
    assert line.end_seconds == pytest.approx(300 * 1.2e-3 + 0.1 / 300, rel=0.1)
    assert line.end_seconds >= 300 * 1.2e-3


@pytest.mark.parametrize("one_lane", [True, False])
def test_a_backward_pass_of_a_microsecond_ends_too(one_lane):
    """Shares of it are then as small as what floats are off by."""
    late = [Job(1.0, (Stage(EXCHANGE, 1.0), Stage(EXCHANGE, 1.0))), send(1.0, 0.999)]
    assert simulate(1e-6, late, ALONE, one_lane=one_lane).end_seconds == pytest.approx(3.0)
