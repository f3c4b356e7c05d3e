"""Studies: records as they are made, runs that are done or cut off, and several at a time."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
from dataclasses import replace

import pytest
from small import shrink

from gradwire.core import environment, records
from gradwire.core.errors import ConfigError, LaunchFailed
from gradwire.laboratory.bench import accuracy, jobs
from gradwire.laboratory.bench.accuracy import Study
from gradwire.laboratory.bench.training import Plan

BASE = Plan(task="shapes", codec="none", workers=2, batch=32, epochs=2)  # 8 rounds an epoch, of a small task
PLANS = tuple(replace(BASE, codec=c) for c in ("fp16", "topk", "efsignsgd"))
WHAT = {
    "task", "model", "data", "codec", "memory", "strategy", "controller", "workers", "batch", "epochs", "seed",
    "learning_rate", "momentum", "precision", "compress",
}  # fmt: skip


@pytest.fixture
def small(monkeypatch):
    shrink(monkeypatch.setattr)


def study(plans=PLANS, **options):
    return Study(plans=tuple(plans), command="gradwire bench accuracy", **options)


def test_a_record_for_each_run_as_it_ends(small, tmp_path):
    path, started, seen = tmp_path / "new" / "r.jsonl", [], []
    runs = study().run(
        path,
        lambda plan, runs: started.append((plan.codec, runs)),
        lambda plan, h: seen.append((plan.codec, h.rounds[-1])),
    )
    first = next(runs)
    assert records.load(path) == [first]
    found = [first, *runs]
    assert records.load(path) == found
    assert started == [("fp16", True), ("topk", True), ("efsignsgd", True)]
    assert seen == [(c, r) for c in ("fp16", "topk", "efsignsgd") for r in (8, 16)]
    for record, plan in zip(found, PLANS, strict=True):
        assert (record.kind, record.unit, set(record.what)) == ("accuracy", "%", WHAT)
        assert record.what == plan.what("synthetic: drawn shapes")
        assert len(record.samples) == len(record.outcome["rounds"]) == len(record.outcome["seconds"]) == 2
        assert record.environment["backend"] == "virtual workers on one device"
        assert record == records.Record.from_json(record.to_json())
    assert found[1].what["memory"] == "error_feedback"

    started.clear()
    assert list(study((*PLANS[1:], PLANS[0])).run(path, lambda plan, runs: started.append((plan.codec, runs)))) == [
        found[1],
        found[2],
        found[0],
    ]
    assert started == [("topk", False), ("efsignsgd", False), ("fp16", False)]
    assert records.load(path) == found


def test_other_commits_and_other_parameters_are_other_runs(small, tmp_path, monkeypatch):
    path = tmp_path / "r.jsonl"
    monkeypatch.setattr(environment, "commit", lambda: ("aaaa", False))
    list(study(PLANS[:1]).run(path))
    list(study([replace(PLANS[0], seed=1)]).run(path))
    assert len(records.load(path)) == 2
    monkeypatch.setattr(environment, "commit", lambda: ("bbbb", True))
    list(study(PLANS[:1]).run(path))
    assert [(r.commit, r.dirty, r.what["seed"]) for r in records.load(path)] == [
        ("aaaa", False, 0),
        ("aaaa", False, 1),
        ("bbbb", True, 0),
    ]


def test_what_diverges_is_still_a_record_that_json_can_hold(small, tmp_path):
    (record,) = study([replace(BASE, learning_rate=1e9, nmse_every=1)]).run(tmp_path / "r.jsonl")
    assert record.outcome["diverged"]
    assert record.outcome["train_loss"] == [None]
    assert json.loads(record.to_json())["outcome"]["nmse_gradient"] == [None]


def test_a_run_that_was_cut_off_goes_on_from_its_last_epoch(small, tmp_path):
    path, saved, epochs = tmp_path / "r.jsonl", tmp_path / "saved", []

    def pull_the_plug(plan, history):
        epochs.append((plan.codec, history.epochs[-1]))
        if epochs[-1] == ("topk", 2.0):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        list(study(PLANS[:2], checkpoints=saved).run(path, on_progress=pull_the_plug))
    assert len(records.load(path)) == 1
    assert [p.suffix for p in saved.iterdir()] == [".pt"]
    epochs.clear()
    found = list(study(PLANS[:2], checkpoints=saved).run(path, on_progress=lambda p, h: epochs.append(h.epochs)))
    assert epochs == [[1.0, 2.0]]
    assert list(saved.iterdir()) == []
    whole = list(study(PLANS[1:2]).run())
    assert found[1].samples == whole[0].samples


def test_data_are_loaded_once_for_all_runs_of_a_task(small, monkeypatch):
    opened = []
    open_data = accuracy.open_data
    monkeypatch.setattr(accuracy, "open_data", lambda *a: opened.append(a) or open_data(*a))
    list(study([replace(p, epochs=1) for p in PLANS[:2]]).run())
    assert len(opened) == 1


# -------------------------------------------------------------------- several at a time: the children's task is whole


FEW = replace(BASE, batch=1025, epochs=1)  # one round


def told(record):
    """All that does not depend on when and how fast."""
    outcome = {k: v for k, v in record.outcome.items() if k != "seconds"}
    return json.dumps([record.what, record.samples, outcome], sort_keys=True)


def test_several_at_a_time_give_the_same_records_and_a_failure_does_not_stop_the_others(tmp_path):
    path = tmp_path / "r.jsonl"
    sign, half = (replace(FEW, codec=c) for c in ("efsignsgd", "fp16"))
    bad = replace(FEW, codec="topk(ratio=5)")
    alone = [*study([half]).run(path), *study([sign]).run()]
    started = []
    runs = jobs.run(study([bad, half, sign]), 2, path, lambda plan, runs: started.append((plan.codec, runs)))
    found = [next(runs), next(runs)]
    with pytest.raises(LaunchFailed) as caught:
        next(runs)
    first, *lines = str(caught.value).splitlines()
    assert first == "bench accuracy: 1 of 3 runs failed:"
    assert lines[0].startswith("topk(ratio=5), memory default: Traceback")
    assert lines[-1].endswith("topk: `ratio` must be the share kept, in (0, 1], got 5")
    assert sorted(started) == [("efsignsgd", True), ("fp16", False)]
    assert sorted(map(told, found)) == sorted(map(told, alone))
    assert list(map(told, records.load(path))) == list(map(told, alone))  # the new one behind the old


def test_a_process_that_dies_is_told():
    def kill(plan, runs):
        for child in multiprocessing.active_children():
            if isinstance(child, multiprocessing.context.SpawnProcess):
                os.kill(child.pid, signal.SIGKILL)

    with pytest.raises(LaunchFailed) as caught:
        list(jobs.run(study([replace(BASE, epochs=50)]), 1, on_start=kill))
    assert str(caught.value) == (
        "bench accuracy: a process ended with exit code -9 in the middle of a run, out of memory, say; what was done "
        "before is recorded, start again with fewer --jobs"
    )


def test_no_jobs_are_refused():
    with pytest.raises(ConfigError, match="`jobs` must be a whole number of at least 1, got 0"):
        next(jobs.run(study(), 0))
