"""Records of a user's training: lines of one run belong together, and make one record."""

from __future__ import annotations

import pytest

from gradwire.core.records import Quantiles, Record
from gradwire.core.training_records import KIND, UNIT, pooled, trainings


def line(step, samples, sent=100.0, *, time="2026-01-02T03:04:05+00:00", codec="topk", exposed=0.5, parts=None):
    outcome = {"step": step, "sent_bytes": sent, "plain_bytes": 400.0, "parts_seconds": parts}
    outcome |= {"hidden_seconds": None, "exposed_seconds": exposed}
    return Record(
        kind=KIND,
        what={"model": "net", "configuration": codec, "workers": 2, "options": [1]},
        command="train.py",
        time=time,
        commit="unknown",
        dirty=False,
        environment={},
        unit=UNIT,
        quantiles=Quantiles.of(samples),
        samples=tuple(samples),
        outcome=outcome,
    )


def test_lines_of_one_training_come_together_in_the_order_of_steps():
    first, second = line(200, [2.0]), line(100, [1.0])
    others = [line(100, [3.0], codec="qsgd"), line(100, [4.0], time="2026-01-03T00:00:00+00:00")]
    found = trainings([first, others[0], second, others[1]])
    assert found == [[second, first], [others[0]], [others[1]]]


def test_a_training_in_one_record_has_all_samples_and_means_by_their_number():
    parts = {"encode": 1.0, "communicate": 2.0, "decode": 3.0}
    lines = [line(3, [1.0, 2.0, 3.0], 100.0), line(4, [9.0], 200.0, exposed=None, parts=parts)]
    whole = pooled(lines)
    assert whole.samples == (1.0, 2.0, 3.0, 9.0)
    assert whole.quantiles.p50 == pytest.approx(2.5)
    assert whole.outcome["sent_bytes"] == pytest.approx(125.0)
    assert whole.outcome["exposed_seconds"] == 0.5
    assert whole.outcome["hidden_seconds"] is None
    assert whole.outcome["parts_seconds"] == parts
    assert whole.outcome["step"] == 4
