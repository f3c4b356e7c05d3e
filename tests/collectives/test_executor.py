"""The thread of a lane ends before the interpreter does."""

from __future__ import annotations

import subprocess
import sys

import pytest

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
