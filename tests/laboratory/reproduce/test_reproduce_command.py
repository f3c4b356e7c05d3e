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
from gradwire.laboratory.reproduce.catalogue import CLAIMS, EXHIBITS, PAPERS
from gradwire.laboratory.reproduce.study import Study
from trainings import training


@pytest.fixture(autouse=True)
def no_traces_needed(monkeypatch, tmp_path):
    """A model that answers at once, and no records but those that a test names."""
    monkeypatch.setattr(
        "gradwire.laboratory.reproduce.evidence.Study", partial(Study, predict=stand_in, encoding=ENCODING)
    )
    monkeypatch.setattr("gradwire.laboratory.reproduce.evidence.shipped_predict", None)
    monkeypatch.setattr("gradwire.laboratory.reproduce.testbed.modelled", lambda model, setting: None)
    monkeypatch.chdir(tmp_path)


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
    found = answer()
    assert [one["id"] for one in found] == ["claims", *PAPERS, *CLAIMS, *EXHIBITS]
    assert next(one for one in found if one["id"] == "A-batch") == {
        "id": "A-batch",
        "kind": "claim",
        "paper": "accordion",
        "what": CLAIMS["A-batch"].says,
    }


def test_columns_without_a_value_are_left_out_and_a_hint_says_why(monkeypatch):
    monkeypatch.setattr("gradwire.cli.output.wants_json", lambda as_json: as_json)
    shown = " ".join(run("table2").output.split())
    assert "what paper ───" in shown
    assert "Without a value here, so not shown: formula, our model, measured." in shown
    assert "No records were read, so nothing is measured: run this in a clone of the repository" in shown
    assert answer("table2", "--json")["columns"] == ["what", "paper", "formula", "our model", "measured"]
    records.append("some.jsonl", [training()])
    assert "No records were read" not in run("table2", "--records", "some.jsonl").output


@pytest.mark.parametrize("id", PAPERS)
def test_a_paper_is_all_its_claims(id):
    assert [row["id"] for row in answer(id)["rows"]] == [c.id for c in PAPERS[id].claims]


def test_all_claims_are_counted():
    found = answer("claims")
    assert [row["id"] for row in found["rows"]] == list(CLAIMS)
    assert {row["verdict"] for row in found["rows"]} <= {"reproduced", "contradicted", "not reproduced", "open"}
    assert found["notes"][1].startswith("Apart, fitted: ")


def test_one_claim_has_all_that_is_known(tmp_path):
    (tmp_path / "results").mkdir()
    place = {"task": "resnet9-cifar10", "time": "2026-01-01T00:00:00+00:00"}
    records.append(tmp_path / "results" / "accuracy_x.jsonl", [training("none", (50.0, 91.67), **place)])
    records.append(tmp_path / "results" / "rates_x.jsonl", [training("none", (50.0, 99.0), **place)])  # is not asked
    for arguments in ((), ("--records", tmp_path / "results")):
        found = {row["what"]: row["is"] for row in answer("G-baseline-resnet9", *arguments)["rows"]}
        assert (found["verdict"], found["found"], found["records"]) == ("reproduced", "91.67 %", "accuracy_x.jsonl")
    other = {row["what"]: row["is"] for row in answer("U-A2")["rows"]}
    assert (other["verdict"], other["paper"], other["basis"]) == ("reproduced", 470, "tested")


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
    with pytest.raises(ConfigError, match=r"reproduce: there is no file '.*none.jsonl'; check the name, or make some"):
        run("table2", "--records", tmp_path / "none.jsonl")


def test_csv_has_all_columns(tmp_path):
    run("utility", "--csv", tmp_path / "claims.csv")
    rows = list(csv.DictReader((tmp_path / "claims.csv").read_text().splitlines()))
    found = {r["id"]: r["verdict"] for r in rows}
    assert (found["U-A2"], found["U-D1"]) == ("reproduced", "open")
    assert all(r["why"] for r in rows)


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
    with pytest.raises(UnknownName, match=r"no paper, claim, table or figure 'claim'; did you mean claims\?"):
        run("claim")


@pytest.mark.parametrize("id", ["utility", "fig2"])
def test_people_get_a_table(monkeypatch, id):
    monkeypatch.setattr("gradwire.cli.output.wants_json", lambda as_json: as_json)
    shown = run(id).output
    assert "formula" in shown
    assert "{" not in shown
    assert ("more columns with --json or --csv" in shown) == (id == "utility")


def test_the_list_for_people(monkeypatch):
    monkeypatch.setattr("gradwire.cli.output.wants_json", lambda as_json: as_json)
    shown = run().output
    assert all(id in shown for id in (*PAPERS, *CLAIMS, *EXHIBITS))
