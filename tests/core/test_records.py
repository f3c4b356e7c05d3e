"""A record survives the file, refuses to be bent, and carries its birth certificate."""

from __future__ import annotations

import dataclasses
import doctest
import json
import math

import pytest

from gradwire.core import records
from gradwire.core.errors import ConfigError, GradwireWarning
from gradwire.core.records import Quantiles, Record


def a_record(**changes):
    samples = (0.3, 0.1, 0.2)
    values = {
        "kind": "demo",
        "what": {"configuration": "fp16", "workers": 4},
        "command": "gradwire demo --workers 4",
        "time": "2026-01-02T03:04:05+00:00",
        "commit": "unknown",
        "dirty": False,
        "environment": {"cpu": "a processor", "cores": 2},
        "unit": "seconds",
        "quantiles": Quantiles.of(samples),
        "samples": samples,
        "outcome": {"loss": 0.5},
    }
    return Record(**(values | changes))


def test_docstring_examples():
    result = doctest.testmod(records)
    assert result.attempted > 0
    assert result.failed == 0


def test_a_record_is_one_line_and_comes_back_equal():
    record = a_record(what={"label": "zwölf\nlines"})
    assert record.to_json().count("\n") == 0
    assert Record.from_json(record.to_json()) == record


def test_every_field_is_written():
    assert set(json.loads(a_record().to_json())) == {f.name for f in dataclasses.fields(Record)}


def test_files_are_appended_to(tmp_path):
    path = tmp_path / "new" / "results.jsonl"
    records.append(path, [a_record()])
    records.append(path, [a_record(commit="abc"), a_record(dirty=True)])
    assert [r.commit for r in records.load(path)] == ["unknown", "abc", "unknown"]


def test_nothing_is_written_if_one_record_cannot_be(tmp_path):
    path = tmp_path / "results.jsonl"
    with pytest.raises(ValueError, match="Out of range float"):
        records.append(path, [a_record(), a_record(outcome={"loss": math.nan})])
    assert not path.exists()


def test_quantiles_lie_between_neighbours():
    assert Quantiles.of([4.0, 1.0, 3.0, 2.0, 5.0, 6.0]) == Quantiles(p20=2.0, p50=3.5, p80=5.0)
    assert Quantiles.of([7.0]) == Quantiles(p20=7.0, p50=7.0, p80=7.0)


def test_no_quantile_of_nothing():
    with pytest.raises(ConfigError) as caught:
        Quantiles.of([])
    assert str(caught.value) == "Quantiles: there is no quantile of no samples; measure at least one"


def test_a_bent_line_is_named(tmp_path):
    path = tmp_path / "results.jsonl"
    line = json.loads(a_record().to_json())
    del line["commit"]
    path.write_text(a_record().to_json() + "\n" + json.dumps(line | {"extra": 1}) + "\n")
    with pytest.raises(ConfigError) as caught:
        records.load(path)
    assert str(caught.value) == (
        "results.jsonl, line 2: a record was wanted, got one without ['commit'] and with unknown ['extra']; records "
        "are never edited, so take the file from its source again"
    )


def test_another_format_is_refused():
    with pytest.raises(ConfigError) as caught:
        Record.from_json(json.dumps(dataclasses.asdict(a_record(format_version=2))))
    assert str(caught.value) == "a record of format 1 was wanted, got 2; use its own version"


def test_a_torn_last_line_is_left_out_with_a_warning(tmp_path):
    """A run that is killed while it writes leaves one; the next one goes on behind what is whole."""
    path = tmp_path / "results.jsonl"
    whole, torn = a_record().to_json(), a_record(unit="µs").to_json().encode().partition(b"\xb5")[0]  # inside a letter
    path.write_bytes(whole.encode() + b"\n" + torn)
    with pytest.warns(GradwireWarning) as warned:
        assert records.load(path) == [a_record()]
    assert [str(w.message) for w in warned] == [
        "results.jsonl, line 2: the last line is torn and was left out; the run that wrote it was probably killed"
    ]
    records.append(path, [a_record(kind="other")])
    assert records.load(path) == [a_record(), a_record(kind="other")]


def test_a_last_line_without_its_end_that_is_whole_counts(tmp_path):
    path = tmp_path / "results.jsonl"
    path.write_text(a_record().to_json())
    assert records.load(path) == [a_record()]
    records.append(path, [a_record()])
    assert records.load(path) == [a_record()] * 2


def test_empty_lines_are_no_records(tmp_path):
    path = tmp_path / "results.jsonl"
    path.write_text(f"\n{a_record().to_json()}\n\n")
    assert records.load(path) == [a_record()]
