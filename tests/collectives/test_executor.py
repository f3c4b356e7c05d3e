"""A lane's thread: jobs in their order, none after a failure, and it ends before the interpreter does."""

from __future__ import annotations

import subprocess
import sys
import threading

import pytest
import torch

from gradwire.collectives.executor import Executor
from gradwire.core.errors import ExchangeFailed

# What a lane's thread keeps for itself: its buffers. A process group that goes closes the lane.
KEEPS = """
import threading, time, weakref
import torch
from gradwire.collectives import executor

executor.SECONDS_AT_EXIT = 0.2 if {stuck} else 60.0
kept = threading.local()


class Group:
    pass


def fill():
    kept.tensors = {{i: torch.zeros(8) for i in range(20_000)}}


group, lane = Group(), executor.Executor("lane", torch.device("cpu"))
weakref.finalize(group, lane.close).atexit = False
lane.call(fill)
if {stuck}:
    lane.submit(lambda: time.sleep(600))
if {closed}:
    del group
"""


@pytest.mark.parametrize("closed, stuck", [(False, False), (True, False), (False, True)])
def test_a_process_ends_well_while_its_lane_holds_tensors(closed, stuck):
    source = KEEPS.format(closed=closed, stuck=stuck)
    done = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, timeout=300)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.fixture
def lane():
    lane = Executor("lane", torch.device("cpu"))
    yield lane
    lane.close()


def failing(text):
    def job():
        raise ValueError(text)

    return job


def test_jobs_run_in_the_order_in_which_they_came(lane):
    held, seen = threading.Event(), []
    lane.submit(held.wait)
    for number in range(20):
        lane.submit(lambda number=number: seen.append(number))
    held.set()
    lane.wait()
    assert seen == list(range(20))


def test_after_a_failure_nothing_runs_and_it_is_told_again(lane):
    """The ranks no longer agree on what comes next."""
    ran = []
    for job in (failing("the first"), lambda: ran.append(1), failing("the second")):
        lane.submit(job)
    for _ in range(2):
        with pytest.raises(ValueError, match="the first"):
            lane.wait()
    with pytest.raises(ValueError, match="the first"):
        lane.call(lambda: ran.append(2))
    assert ran == []


def test_what_a_peer_has_told_stays_the_reason(lane):
    """The job that waited for it fails later, for its own reasons."""
    begun, held, ended = (threading.Event() for _ in range(3))

    def job():
        begun.set()
        held.wait()
        ended.set()
        raise ValueError("the connection broke")

    lane.submit(job)
    assert begun.wait(30)
    lane._give_up(ExchangeFailed("rank 1 has stopped"))
    lane.join()  # at once
    assert not ended.is_set()
    held.set()
    with lane._idle:
        lane._idle.wait_for(lambda: lane._open == 0, 30)
    with pytest.raises(ExchangeFailed, match="rank 1 has stopped"):
        lane.wait()
