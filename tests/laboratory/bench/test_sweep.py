"""A sweep skips what is done, runs baselines beside what is missing, and goes on after an interruption."""

from __future__ import annotations

import pytest

from gradwire.core import records
from gradwire.core.errors import ConfigError, LabFailed
from gradwire.laboratory.bench.sweep import LOOPBACK, Group, Measured, Sweep


def a_sweep(settings=("a", "b"), hosts=(2, 4), rates=(LOOPBACK,), fail_at=None):
    calls = []

    def measure(place, wanted):
        calls.append((place.hosts, [s["codec"] for s in wanted]))
        if fail_at is not None and len(calls) == fail_at:
            raise LabFailed("somebody pulled the plug")
        return [Measured(s, (1.0, 2.0, 3.0), {"sent_bytes": 10.0}) for s in wanted]

    group = Group("a group", tuple({"codec": s} for s in settings), ({"codec": "baseline"},))
    sweep = Sweep(
        kind="test",
        command="gradwire bench test",
        unit="seconds",
        hosts=hosts,
        rates=rates,
        per_host=1,
        groups=(group,),
        measure=measure,
    )
    return sweep, calls


def test_everything_is_measured_once_and_written_as_it_is_done(tmp_path):
    path, heard = tmp_path / "r.jsonl", []
    sweep, calls = a_sweep()
    found = sweep.run(path, lambda title, runs: heard.append((title, runs)))
    assert calls == [(2, ["baseline", "a", "b"]), (4, ["baseline", "a", "b"])]
    assert heard == [("2 hosts, loopback, a group", True), ("4 hosts, loopback, a group", True)]
    assert records.load(path) == found
    assert found[1].what == {"hosts": 2, "ranks_per_host": 1, "bits_per_second": None, "codec": "a"}
    assert (found[1].quantiles.p50, found[1].outcome["sent_bytes"]) == (2.0, 10.0)

    again, calls = a_sweep()
    heard.clear()
    assert again.run(path, lambda title, runs: heard.append(runs)) == found
    assert (calls, heard) == ([], [False, False])


def test_an_interruption_costs_one_group(tmp_path):
    path = tmp_path / "r.jsonl"
    sweep, _ = a_sweep(fail_at=2)
    with pytest.raises(LabFailed):
        sweep.run(path)
    assert len(records.load(path)) == 3
    sweep, calls = a_sweep()
    assert len(sweep.run(path)) == 6
    assert calls == [(4, ["baseline", "a", "b"])]


def test_a_new_setting_is_measured_beside_fresh_baselines(tmp_path):
    path = tmp_path / "r.jsonl"
    a_sweep(hosts=(2,))[0].run(path)
    sweep, calls = a_sweep(settings=("b", "c"), hosts=(2,))
    found = sweep.run(path)
    assert calls == [(2, ["baseline", "c"])]
    assert [r.what["codec"] for r in found] == ["baseline", "b", "baseline", "c"]


def test_records_of_another_commit_do_not_count(tmp_path, monkeypatch):
    path = tmp_path / "r.jsonl"
    monkeypatch.setattr("gradwire.core.environment.commit", lambda: ("aaaa", False))
    a_sweep(hosts=(2,))[0].run(path)
    monkeypatch.setattr("gradwire.core.environment.commit", lambda: ("bbbb", False))
    sweep, calls = a_sweep(hosts=(2,))
    assert len(sweep.run(path)) == 3
    assert len(calls) == 1


@pytest.mark.parametrize(
    "wanted, message",
    [
        ({"hosts": (1,)}, "bench test: `hosts` must be a whole number of at least 2, got 1"),
        (
            {"rates": ("fast",)},
            "gradwire: a rate needs a number above 0 and a unit, as in 100mbit or 1gbit; got 'fast'",
        ),
    ],
)
def test_what_cannot_be_run_is_refused_before_anything_is_measured(wanted, message):
    with pytest.raises(ConfigError) as caught:
        a_sweep(**wanted)
    assert str(caught.value) == message
