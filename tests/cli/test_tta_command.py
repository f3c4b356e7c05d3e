"""`gradwire tta`, by itself: the table, JSON, files, and sentences for what is wrong."""

from __future__ import annotations

import csv
import json
import subprocess
import sys
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from gradwire.cli import main
from gradwire.cli.tta import tta
from gradwire.core.errors import ConfigError
from gradwire.core.records import append
from gradwire.planner.model import predict

sys.path.insert(0, str(Path(__file__).parent.parent))
from trainings import perplexity, training

WARMED = "warmup(codec='topk')"
CHOSEN = (None, "error_feedback")
MEASURED = "measured: 4 hosts at 200 Mbit/s"


def run(*arguments):
    app = typer.Typer()
    app.command()(tta)
    result = CliRunner().invoke(app, [str(a) for a in arguments])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == 0, result.output
    return result.output


@pytest.fixture
def some(tmp_path):
    """A file of four trainings, one of them with two seeds."""
    path = tmp_path / "some.jsonl"
    records = [training(seed=s) for s in (0, 1)]
    records += [training("none"), training("signsgd", (40.0, 60.0, 80.0))]
    append(path, [*records, training("topk", (45.0, 82.0, 90.5), memory="error_feedback()")])
    return path


def test_json_for_the_usual_cluster(some):
    found = json.loads(run(some))
    assert found["time_label"] == "modelled: h200, 16 GPUs, 10 Gbit/s"
    assert (found["task"], found["baseline"], found["targets"]) == ("resnet9-cifar10", "fp16", [89.5, 89.0, 88.0])
    by_codec = {r["codec"]: r for r in found["runs"]}
    assert set(by_codec) == {"fp16", "none", "signsgd", "topk"}
    half = predict(model="resnet9", batch=64, gpus=16, bandwidth="10gbit", codec="fp16").step_seconds
    assert by_codec["fp16"]["seconds_per_round"] == pytest.approx(half)
    assert by_codec["fp16"]["seeds"] == [0, 1]
    assert by_codec["signsgd"]["to_target"]["88.0"] is None
    reached = by_codec["topk"]["to_target"]["89.5"]
    assert reached["seconds"] == pytest.approx(reached["rounds"] * by_codec["topk"]["seconds_per_round"])
    other = by_codec["fp16"]["to_target"]["89.5"]["seconds"]
    assert reached["speed_up"] == pytest.approx(other / reached["seconds"])
    assert any("assumed" in a for a in found["assumptions"])


def test_the_cluster_is_as_described(some):
    place = ("--gpus", 8, "--gpus-per-node", 4, "--bandwidth", "1gbit", "--latency", "50us", "--batch", 128)
    found = json.loads(run(some, *place, "--target", 85, "--target", 70))
    assert found["time_label"] == "modelled: h200, 8 GPUs, 4 a node, 1 Gbit/s, 50 us"
    assert found["targets"] == [85.0, 70.0]
    own = predict(
        model="resnet9", batch=128, gpus=8, gpus_per_node=4, bandwidth="1gbit", latency=5e-5, codec="topk"
    ).step_seconds
    assert next(r for r in found["runs"] if r["codec"] == "topk")["seconds_per_round"] == pytest.approx(own)


def test_measured_seconds_are_taken_where_no_cluster_is_described(tmp_path):
    append(tmp_path / "it.jsonl", [training(clock=MEASURED), training("topk", clock=MEASURED, seconds=[1.0, 2.0, 3.0])])
    found = json.loads(run(tmp_path / "it.jsonl"))
    assert found["time_label"] == MEASURED
    assert [r["seconds_per_round"] for r in found["runs"]] == [pytest.approx(0.5), pytest.approx(0.1)]
    assert [r["standing"] for r in found["runs"]] == [None, "lossy"]
    assert found["runs"][1]["to_target"]["89.5"]["speed_up"] == pytest.approx(5.0)
    assert json.loads(run(tmp_path / "it.jsonl", "--gpus", 4))["time_label"].startswith("modelled")


def test_a_table_for_people(some, people):
    shown = run(some, "--target", 85)
    lines = shown.splitlines()
    assert max(map(len, lines)) <= 80
    assert lines[0].startswith("resnet9-cifar10: CIFAR-10, 8 workers, batch 64 a worker, 3 epochs")
    row = next(line for line in lines if line.strip().startswith("signsgd"))
    assert row.split()[1:4] == ["(lossy)", "80.00", "-10.00"]
    assert row.split()[-1] == "-"
    assert next(line for line in lines if line.strip().startswith("fp16")).split()[-1] == "1.00x"
    told = " ".join(shown.split())
    assert "2x: twice as soon as fp16; -: not reached; lossy: lost over 0.5 points, or 1 % of a" in told
    assert "- quality over rounds is that of 8 workers" in shown


def test_what_cannot_be_modelled_is_told(tmp_path, people):
    append(tmp_path / "it.jsonl", [training(), training("natural")])
    shown = run(tmp_path / "it.jsonl", "--hardware", "v100-paper-measured", "--backward", "20ms")
    told = "- natural: no time, because profile v100-paper-measured does not know what natural costs"
    assert told in " ".join(shown.split())


def test_files_by_suffix(some, tmp_path):
    found = json.loads(run(some, "--plot", tmp_path / "it.html", "--csv", tmp_path / "it.csv"))
    assert found["files"] == [str(tmp_path / "it.html"), str(tmp_path / "it.csv")]
    page = (tmp_path / "it.html").read_text()
    assert "resnet9-cifar10: time to accuracy" in page
    assert "resnet9-cifar10: error over time" in page
    rows = list(csv.DictReader((tmp_path / "it.csv").read_text().splitlines()))
    assert len(rows) == 5 * 3
    assert {(r["codec"], r["seed"]) for r in rows} >= {("fp16", "0"), ("fp16", "1"), ("topk", "0")}
    assert {r["top-1 accuracy"] for r in rows if r["codec"] == "topk"} == {"45.0", "82.0", "90.5"}


def test_rolling_and_patience(some):
    assert next(r for r in json.loads(run(some, "--rolling", 20))["runs"] if r["codec"] == "fp16")["best"] == 85.0
    stopped = json.loads(run(some, "--patience", 1, "--min-delta", 20, "--target", 40))
    assert next(r for r in stopped["runs"] if r["codec"] == "fp16")["best"] == 90.0
    assert next(r for r in stopped["runs"] if r["codec"] == "signsgd")["best"] == 60.0


def test_one_set_up_is_chosen(tmp_path):
    path = tmp_path / "it.jsonl"
    append(path, [training(), training(workers=4), perplexity()])
    assert json.loads(run(path, "--task", "resnet9-cifar10", "--workers", 4))["setup"]["workers"] == 4
    found = json.loads(run(path, "--task", "bert-small-wikitext2"))
    assert (found["unit"], found["higher_is_better"], found["targets"]) == ("perplexity", False, [101.0, 102.0, 104.0])
    asked = "--task resnet9-cifar10 --epochs 9"
    there = "--task resnet9-cifar10 --workers 8, --task resnet9-cifar10 --workers 4"
    with pytest.raises(ConfigError) as caught:
        run(path, *asked.split())
    assert str(caught.value) == f"tta: no training has {asked}; there are: {there}"
    with pytest.raises(ConfigError) as caught:
        run(path, "--task", "mine")
    tasks = "--task resnet9-cifar10, --task bert-small-wikitext2"
    assert str(caught.value) == f"tta: no training has --task mine; there are: {tasks}"


def test_several_set_ups_are_listed_with_the_options_that_choose_one(tmp_path, capsys, people, monkeypatch):
    path, first = tmp_path / "it.jsonl", training()
    append(path, [first, training("topk"), training(batch=512), perplexity()])
    assert main(["tta", str(path), "--json"]) == 2
    setups = json.loads(capsys.readouterr().out)["setups"]
    assert [s["task"] for s in setups] == ["resnet9-cifar10", "resnet9-cifar10", "bert-small-wikitext2"]
    assert (setups[0]["codecs"], setups[0]["trainings"], setups[0]["data"]) == (2, 2, first.what["data"])
    assert main(["tta", str(path)]) == 2
    shown = capsys.readouterr().out
    assert shown.startswith("3 set-ups cannot be compared with each other; choose one of them.\n")
    assert max(map(len, shown.splitlines())) <= 80
    monkeypatch.setenv("COLUMNS", "120")
    assert main(["tta", str(path)]) == 2
    shown = capsys.readouterr().out
    chosen = "--task resnet9-cifar10 --trained-batch 512"
    assert chosen in shown
    assert f" --task bert-small-wikitext2 {' ' * 5}" in shown  # by its task alone
    assert main(["tta", str(path), *chosen.split()]) == 0


@pytest.mark.parametrize(
    "asked, expected",
    [
        (("--memory", "default"), {("topk", "error_feedback"), ("qsgd", "none"), CHOSEN}),
        (("--memory", "none"), {("topk", "none"), ("qsgd", "none")}),
        (("--memory", "none", "--codec", "topk"), {("topk", "none")}),
        (("--memory", "none", "--memory", "default", "--codec", "qsgd"), {("qsgd", "none")}),
    ],
)
def test_memories_are_chosen_and_baselines_stay(tmp_path, asked, expected):
    path, kept = tmp_path / "it.jsonl", "error_feedback()"
    both = [training(codec, memory=memory) for codec in ("topk", "qsgd") for memory in ("none", kept)]
    append(path, [*both, training("fp16"), training("none"), training(None, memory=kept, controller=WARMED)])
    rows = json.loads(run(path, *asked))["runs"]
    assert {(r["codec"], r["memory"]) for r in rows} == {("fp16", "none"), ("none", "none"), *expected}


def test_a_memory_that_nobody_had(some):
    with pytest.raises(ConfigError, match="no training with memory warm; there are: none, error_feedback, and default"):
        run(some, "--memory", "warm")


def test_what_is_wrong_is_said(tmp_path, capsys):
    path = tmp_path / "it.jsonl"
    append(path, [training(model="vgg16-cifar10")])
    assert main(["tta", str(path)]) == 2
    assert "has no times of 'vgg16-cifar10'" in capsys.readouterr().err
    assert main(["tta", str(path), "--backward", "20ms"]) == 0
    capsys.readouterr()
    assert main(["tta", str(tmp_path / "none.jsonl")]) == 2
    assert "none.jsonl'; check the name, or make some, as in: gradwire bench" in capsys.readouterr().err
    append(tmp_path / "other.jsonl", [training(kind="rates")])
    assert main(["tta", str(tmp_path / "other.jsonl")]) == 2
    assert "no training in" in capsys.readouterr().err
    assert main(["tta", str(path), "--plot", "it.pdf"]) == 2
    assert "a picture is written as .png" in capsys.readouterr().err


def test_it_answers_without_torch(some):
    code = f"import sys; from gradwire.cli import main; print(main(['tta', {str(some)!r}]), 'torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stdout.splitlines()[-1] == "0 False", done.stderr
