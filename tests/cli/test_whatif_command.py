"""`gradwire whatif`, by itself: rows, tables, files, and sentences for what is wrong."""

from __future__ import annotations

import csv
import json
import subprocess
import sys

import pytest
import typer
from typer.testing import CliRunner

from gradwire import planner
from gradwire.cli.whatif import whatif
from gradwire.core.errors import ConfigError, UnknownName
from gradwire.planner.quality import standing

HARDWARE = "v100-paper-measured"
POWER = "powersgd(rank=4)"
SWEEP = ("--sweep", "bandwidth=1gbit:30gbit")
GRID = ("--sweep", "bandwidth=1gbit:30gbit", "--sweep", "gpus=4:64", "--gpus-per-node", "4")
USUAL = ("--model", "resnet101", "--batch", "64", "--hardware", HARDWARE, "--codec", POWER)


def run(*arguments):
    app = typer.Typer()
    app.command()(whatif)
    result = CliRunner().invoke(app, [str(a) for a in arguments])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == 0, result.output
    return result.output


def test_json_has_every_point_and_the_crossovers():
    found = json.loads(run(*USUAL, *SWEEP, "--gpus", 64, "--metric", "sync"))
    own = planner.whatif(
        sweep={"bandwidth": "1gbit:30gbit"}, codecs=[POWER], model="resnet101", batch=64, gpus=64, hardware=HARDWARE
    )
    assert found["rows"] == own.rows("sync")
    assert len(found["rows"]) == 3 * 25
    assert found["crossovers"] == [
        {"codec": POWER, "baseline": c.baseline, "at": c.at, "faster_below": True} for c in own.crossovers
    ]
    assert found["sentences"] == own.sentences()
    told = f"{POWER} in our trainings: {standing(POWER, 'images').sentence}."
    assert found["quality"] == own.quality() == [told]
    assert (found["metric"], found["hardware"], found["files"], found["notes"]) == ("sync", HARDWARE, [], [])
    assert {"name", "value", "source"} == set(found["inputs"][0])
    assert found["inputs_of"] == {"codec": "powersgd", "batch": 64, "gpus": 64, "gpus_per_node": 1}


def test_a_table_is_thinned_and_says_so(people):
    lines = run(*USUAL, *SWEEP, "--gpus", 64, "--codec", "signsgd").splitlines()
    assert max(map(len, lines)) <= 80
    assert " ".join(lines[:2]).split() == (
        f"resnet101, batch 64, 64 GPUs: step time, predicted with profile {HARDWARE}".split()
    )
    points = [line for line in lines if line.lstrip()[:1].isdigit() and "Gbit/s" in line]
    assert len(points) == 13
    assert points[0].split()[:2] == ["1", "Gbit/s"]
    assert points[-1].split()[:2] == ["30", "Gbit/s"]
    assert all(line.count("x") == 2 for line in points)  # a speed-up for each codec
    text = " ".join(" ".join(lines).split())
    assert "2x: twice as fast as the faster of FP32 and FP16 DDP; 13 of 25 points, all with --csv or --json" in text
    assert f"{POWER} is faster than FP16 DDP below" in text


def test_a_gap_is_a_dash_with_a_note(people):
    shown = run(*USUAL, "--sweep", "gpus=4,6,8", "--gpus-per-node", 4, "--bandwidth", "10gbit")
    assert next(line for line in shown.splitlines() if line.split()[0:1] == ["6"]).split() == ["6", "-", "-", "-"]
    assert "No value at 6 GPUs: 6 GPUs do not fill nodes of 4." in shown


def test_two_quantities_give_grids(people):
    shown = run(*USUAL, *GRID)
    lines = shown.splitlines()
    assert max(map(len, lines)) <= 80
    assert f"{POWER}: times as fast as FP16 DDP" in shown
    assert "30 of 50 points, all with --csv or --json" in shown
    legend = " ".join(shown.partition("the fastest choice")[2].split())
    assert legend.startswith(f"(A FP32 DDP, B FP16 DDP, C {POWER})")
    of_64 = [line.split() for line in lines if line.split()[0:1] == ["64"]]
    assert len(of_64) == 2
    assert [float(r) > 1 for r in of_64[0][1:]] == [letter == "C" for letter in of_64[1][1:]]


def test_files_by_suffix(tmp_path):
    for suffix in ("html", "svg", "csv", "json"):
        path = tmp_path / f"it.{suffix}"
        found = json.loads(run(*USUAL, *SWEEP, "--gpus", 64, "--plot", path))
        assert found["files"] == [str(path)]
        assert "step time" in path.read_text()
    page = (tmp_path / "it.html").read_text()
    assert "What if: bandwidth of a node from 1 Gbit/s to 30 Gbit/s" in page
    assert "resnet101, batch 64, 64 GPUs: step time by bandwidth of a node" in page
    assert "even with FP16 DDP at " in page
    run(*USUAL, *GRID, "--plot", tmp_path / "map.png")
    assert (tmp_path / "map.png").read_bytes().startswith(b"\x89PNG")


def test_csv_has_every_point(tmp_path):
    found = json.loads(run(*USUAL, *GRID, "--csv", tmp_path / "it.csv"))
    rows = list(csv.DictReader((tmp_path / "it.csv").read_text().splitlines()))
    assert len(rows) == len(found["rows"]) == 3 * 10 * 5
    assert [float(r["speedup_over_fp16"]) for r in rows] == [r["speedup_over_fp16"] for r in found["rows"]]
    assert set(rows[0]) == set(found["rows"][0])
    assert {r["codec"] for r in rows} == {"none", "fp16", POWER}


def test_it_answers_without_torch():
    arguments = [str(a) for a in (*USUAL, *SWEEP, "--gpus", 64, "--json")]
    code = (
        "import sys, typer; from gradwire.cli.whatif import whatif\n"
        "app = typer.Typer(); app.command()(whatif)\n"
        f"app({arguments!r}, standalone_mode=False)\n"
        "print('torch' in sys.modules, file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert done.stderr.split() == ["False"]


@pytest.mark.parametrize(
    "arguments, problem, message",
    [
        (
            ("--sweep", "bandwith=1gbit:30gbit"),
            UnknownName,
            "whatif: no quantity named 'bandwith'; did you mean bandwidth or batch?",
        ),
        (
            ("--sweep", "bandwidth"),
            ConfigError,
            "whatif: a sweep is written QUANTITY=FROM:TO or QUANTITY=A,B,C, as in bandwidth=1gbit:30gbit or "
            "gpus=8,16,32; got 'bandwidth'",
        ),
        (
            ("--sweep", "bandwidth=30gbit:1gbit"),
            ConfigError,
            "whatif: the range bandwidth=30gbit:1gbit runs backwards; type bandwidth=1gbit:30gbit, or another range, "
            "as in bandwidth=1gbit:30gbit",
        ),
        (
            ("--sweep", "bandwidth="),
            ConfigError,
            "whatif: bandwidth has no values; type a range or a list, as in bandwidth=1gbit:30gbit",
        ),
        (
            ("--sweep", "bandwidth=1gbit:2gbit", "--sweep", "bandwidth=4gbit"),
            ConfigError,
            "whatif: bandwidth is swept twice; give one --sweep bandwidth=... with all values",
        ),
        (
            ("--sweep", "ratio=1:2", "--sweep", "latency=1us:2us", "--sweep", "bandwidth=4gbit"),
            ConfigError,
            "whatif: one or two quantities are swept at a time, got ratio, latency, bandwidth",
        ),
        (
            ("--sweep", "ratio=1:2"),
            ConfigError,
            "whatif: a set-up needs bandwidth; give --bandwidth 10gbit, or sweep it: --sweep bandwidth=1gbit:30gbit",
        ),
        (
            ("--sweep", "bandwidth=1gbit:2gbit", "--bandwidth", "1gbit"),
            ConfigError,
            "whatif: bandwidth is swept and given as '1gbit'; leave one of the two out",
        ),
        (
            (*SWEEP, "--gpus-per-node", "5"),
            ConfigError,
            "gradwire: 64 GPUs do not fill nodes of 5; type a multiple, such as 60 or 65, or --gpus-per-node 1",
        ),
        (
            (*SWEEP, "--metric", "time"),
            ConfigError,
            "whatif: `metric` must be 'step' or 'sync', got 'time'",
        ),
        (
            (*SWEEP, "--plot", "it.gif"),
            ConfigError,
            "chart: a picture is written as .png, .svg, .html, .csv or .json, got 'it.gif'; choose one of these "
            "endings",
        ),
        ((*SWEEP, "--codec", "powersg"), UnknownName, "no codec named 'powersg'; did you mean powersgd?"),
        (
            (*SWEEP, "--model", "bert"),
            UnknownName,
            "no model named 'bert'; did you mean bert-base?",
        ),
    ],
)
def test_wrong_input_gets_a_sentence(arguments, problem, message):
    with pytest.raises(problem) as caught:
        run(*USUAL, "--gpus", 64, *arguments)
    assert str(caught.value) == message
