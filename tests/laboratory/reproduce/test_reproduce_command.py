"""`gradwire reproduce`, by itself."""

from __future__ import annotations

import csv
import json
from functools import partial

import pytest
import typer
from stand_in import ENCODING, record, stand_in
from typer.testing import CliRunner

from gradwire.cli.reproduce import reproduce
from gradwire.core import records
from gradwire.core.errors import ConfigError, UnknownName
from gradwire.laboratory.reproduce.catalogue import EXHIBITS
from gradwire.laboratory.reproduce.study import Study


@pytest.fixture(autouse=True)
def no_traces_needed(monkeypatch):
    monkeypatch.setattr(
        "gradwire.laboratory.reproduce.study.Study", partial(Study, predict=stand_in, encoding=ENCODING)
    )


def run(*arguments):
    app = typer.Typer()
    app.command()(reproduce)
    result = CliRunner().invoke(app, [str(a) for a in arguments])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


def answer(*arguments):
    return json.loads(run(*arguments).output)


def test_without_an_id_everything_is_listed():
    assert [one["id"] for one in answer()] == list(EXHIBITS)


def test_rows_are_dictionaries_by_column():
    found = answer("fig3")
    assert found["columns"] == ["what", "paper", "formula", "our model", "measured"]
    assert found["rows"][0]["paper"] == "8.2"
    assert found["rows"][0]["formula"] == pytest.approx(8.226, rel=1e-3)
    assert found["pictures"][0]["x"]["unit"] == "rate"


def test_records_are_read(tmp_path):
    path = tmp_path / "encode.jsonl"
    what = {"codec": "topk", "device": "cuda", "elements": 25_557_032}
    records.append(path, [record("encode", what, 0.007, {})])
    rows = {r["what"]: r["measured"] for r in answer("table2", "--records", path)["rows"]}
    assert rows["TopK 1%, ms"] == pytest.approx(7)
    with pytest.raises(ConfigError, match=r"reproduce: `--records` .* cannot be read .*; name a file that is there"):
        run("table2", "--records", tmp_path / "none.jsonl")


def test_csv_has_all_columns(tmp_path):
    run("claims", "--csv", tmp_path / "claims.csv")
    rows = list(csv.DictReader((tmp_path / "claims.csv").read_text().splitlines()))
    assert {r["id"]: r["verdict"] for r in rows}["D1"] == "reproduced"
    assert all(r["reason"] for r in rows)


@pytest.mark.parametrize("suffix", ["svg", "html"])
def test_curves_are_drawn(tmp_path, suffix):
    path = tmp_path / f"fig3.{suffix}"
    run("fig3", "--plot", path)
    assert "ResNet-101" in path.read_text()


def test_a_table_has_nothing_to_draw(tmp_path):
    with pytest.raises(
        ConfigError, match=r"reproduce: table2 has no curves to draw; write its rows with --csv instead"
    ):
        run("table2", "--plot", tmp_path / "x.svg")


def test_an_unknown_id_names_near_ones():
    with pytest.raises(UnknownName, match=r"no table or figure 'claim'; did you mean claims\?"):
        run("claim")


@pytest.mark.parametrize("id", ["claims", "fig2"])
def test_people_get_a_table(monkeypatch, id):
    monkeypatch.setattr("gradwire.cli.output.wants_json", lambda as_json: as_json)
    shown = run(id).output
    assert "formula" in shown
    assert "{" not in shown
    assert ("more columns with --json or --csv" in shown) == (id == "claims")


def test_the_list_for_people(monkeypatch):
    monkeypatch.setattr("gradwire.cli.output.wants_json", lambda as_json: as_json)
    shown = run().output
    assert all(id in shown for id in EXHIBITS)
