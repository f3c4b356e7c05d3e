"""The short form of `make soak`: one codec for some hundred steps, and what the long form would tell."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
import soak


@pytest.mark.dist
def test_replicas_stay_equal_and_memory_flat():
    ranks = soak.on_device("topk(ratio=0.01)", 300, "cpu", workers=2)
    found = soak.outcome(ranks, "cpu")
    assert soak.verdict("topk", found | {"drift": 1.0}) == []  # times of so short a run say nothing
    assert found["equal"] == found["checks"] == 2 * soak.CHECKS
    assert found["steps"] == 300 + soak.WARM


def rank(**seen):
    """A process that saw nothing wrong, but for what it is told."""
    steady = {"equal": [True], "seconds": [1.0], "processor_seconds": [1.0], "bytes": [1], "device_bytes": [0]}
    return {name: values * soak.CHECKS for name, values in steady.items()} | {
        **{"finite": True, "graphs": None, "steps": 1},
        **seen,
    }


def test_what_must_not_happen_is_told():
    def judged(**seen):
        return soak.verdict("topk", soak.outcome([rank(), rank(**seen)], "cpu"))

    half = soak.CHECKS // 2
    assert judged() == []
    assert judged(equal=[True] * 99 + [False]) == ["topk: replicas differ"]
    assert judged(finite=False) == ["topk: parameters are not finite"]
    assert judged(bytes=[0] * half + [10**8] * half) == ["topk: a process grew by 100,000,000 bytes"]
    assert judged(device_bytes=[0] * half + [512] * half) == ["topk: the GPU's memory grew by 512 bytes"]
    slower = judged(processor_seconds=[1.0] * half + [1.5] * half)
    assert slower == ["topk: steps became 1.50 times as slow"]
    assert judged(seconds=[1.0] * half + [1.5] * half) == []  # others were at work on this machine
