"""The short form of `make faults`: one fault of the worst kind, and the training ends as if nothing had been."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2]))
import faults

pytestmark = [pytest.mark.dist, pytest.mark.usefixtures("lab")]


def test_a_training_goes_on_from_the_checkpoint_before_one_that_was_torn(tmp_path):
    outcome = faults.campaign(0, names=["tear"], hosts=2, pause=0.05, timeout=60.0, grace=120.0, folder=tmp_path)
    assert faults.verdict(outcome) == []
    assert outcome["faults"] == {"tear": 1}
    assert outcome["refused_checkpoints"] == outcome["resumed"] == outcome["restarts"] == 1


SAVED = {"time": 1.0, "attempt": 0, "event": "saved", "step": 20, "digest": "a", "lost": 0.0}
RESUMED = {"time": 2.0, "attempt": 1, "event": "resumed", "step": 20, "same": True}
FAILED = {"time": 3.0, "attempt": 0, "event": "failed", "rank": 0, "kind": "ExchangeFailed", "said": "timed out"}
CUT = faults.Happened("cut_for_long", 0, 1.0, began=0.5, saved_after=2.0)


def judged(log=(SAVED, RESUMED), calm=(SAVED,), happened=(CUT,), code=0):
    found = faults.found(log, calm, happened, code)
    return faults.verdict(found | {"ends": faults.ends(log, happened), "timeout": 10.0})


def test_what_must_not_happen_is_told():
    assert judged() == []
    assert judged(code=1) == ["the training ended with exit code 1"]
    assert judged(happened=[faults.Happened("kill", 1, 0.0, 0.5, None)]) == ["1 hangs"]
    assert judged([SAVED, RESUMED | {"same": False}]) == ["a restart did not resume bit for bit"]
    assert judged([SAVED | {"digest": "b"}]) == ["a checkpoint differs from the undisturbed"]
    assert judged([SAVED | {"lost": 0.5}]) == ["0.5 of the gradients was lost"]
    late = judged([SAVED, FAILED | {"time": 99.0}])
    assert late == ["ranks ended after the time-out: {'cut_for_long': 98.5}"]
