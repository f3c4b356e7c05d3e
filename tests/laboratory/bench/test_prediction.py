"""Predictions of committed measurements are as near as is said, and the pages' figures follow from records."""

from __future__ import annotations

import json
import statistics
from pathlib import Path

import pytest

from gradwire.core import records
from gradwire.laboratory.bench import prediction
from gradwire.planner import calibrate, validate
from gradwire.planner.calibrate import Place

ROOT = Path(__file__).parents[3]
MEASURED = ROOT / "results" / "validation_xeon_2026-11-15.jsonl"
PREDICTED = ROOT / "results" / "prediction_xeon_2026-11-15.jsonl"
PLACE = Place(4, 1, 5e8)


@pytest.fixture(scope="module")
def predictions():
    """Of one model only: what is traced for it is enough to see whether the model still works."""
    found = [r for r in records.load(MEASURED) if r.what.get("model", "shapes") == "shapes"]
    profile = calibrate.fit(found, prediction.workload_of, name="x", description="", place=PLACE)
    return prediction.predict_all(found, profile, PLACE)


def test_blind_predictions_are_near(predictions):
    assert len(predictions) == 8 * 14
    assert all(Place.of(r.what) != PLACE for r in predictions)
    errors = {e.what: e for e in validate.by(predictions, validate.family)}
    assert errors["fp32 DDP"].median < 0.03
    assert errors["fp16 DDP"].median < 0.03
    assert errors["codecs"].median < 0.10


def test_they_are_records(predictions):
    one = predictions[0]
    assert one.kind == "prediction"
    assert one.outcome["error"] == pytest.approx(one.samples[0] / one.outcome["measured_seconds"] - 1)
    assert records.Record.from_json(one.to_json()) == one


def test_shipped_accuracy_follows_from_committed_predictions():
    """After new predictions: make profiles."""
    kept = json.loads((ROOT / "src" / "gradwire" / "planner" / "data" / "accuracy.json").read_text())
    assert kept == validate.accuracy(records.load(PREDICTED))


def test_committed_predictions_are_of_committed_measurements():
    found, made = records.load(MEASURED), records.load(PREDICTED)
    medians = {(r.time, json.dumps(dict(r.what), sort_keys=True)): r.quantiles.p50 for r in found if r.kind == "step"}
    assert len(made) >= 40
    for r in made:
        key = (r.outcome["measured_time"], json.dumps(dict(r.what), sort_keys=True))
        assert r.outcome["measured_seconds"] == medians[key]
    assert statistics.median(abs(r.outcome["error"]) for r in made) < 0.06


def test_a_gradient_alone_is_a_workload_too():
    what = {"hosts": 4, "ranks_per_host": 1, "bits_per_second": 1e9, "codec": "signsgd", "strategy": "all_gather"}
    found = prediction.workload_of(what | {"elements": 4096})
    (unit,) = found.units
    assert (unit.elements, unit.strategy, unit.exchanges[0].num_bytes) == (4096, "all_gather", 513)
