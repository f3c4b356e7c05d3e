"""What a codec costs, in `predict` and `advise`: measured here or given, and never guessed."""

from __future__ import annotations

import json

import pytest

from gradwire.cli import main

PLACE = ["--model", "resnet20", "--batch", "32", "--gpus", "4", "--bandwidth", "1gbit", "--backward", "9ms"]


def predicted(capsys, *arguments):
    assert main(["predict", *PLACE, *arguments]) == 0
    result = json.loads(capsys.readouterr().out)
    row = result["predictions"][-1]
    (source,) = [
        i["source"] for i in result["inputs"] if i["name"] == "encode and decode" and i["of"] == [row["codec"]]
    ]
    return row["parts_seconds"], source, result["notes"]


def test_given_costs_are_used_and_told(capsys):
    parts, source, notes = predicted(capsys, "--codec", "eightbit", "--encode-ms", "50", "--decode-ms", "0")
    assert parts["encode"] == pytest.approx(0.05)
    assert source == "assumed: given on the command line"
    assert "Costs of eightbit: as given on the command line." in notes


def test_measured_costs_are_used_and_told(capsys):
    parts, source, notes = predicted(capsys, "--codec", "eightbit()", "--measure")
    assert parts["encode"] > 0
    assert source == "measured: on this machine"
    told = "Costs of eightbit: measured on this machine's CPU, while all else is of h200: on a GPU they differ."
    assert told in notes


def test_advice_uses_them_too(capsys):
    costs = ["--codec", "eightbit", "--encode-ms", "5000", "--decode-ms", "0"]
    assert main(["advise", *PLACE, *costs, "--any"]) == 0
    advice = json.loads(capsys.readouterr().out)
    assert advice["verdict"]["kind"] == "not worth it"
    assert advice["remarks"][-1] == "Costs of eightbit: as given on the command line."


ONE = ["--codec", "eightbit"]


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["--codec", "thc(bits=2)", "--hardware", "v100-paper-measured"],
         "profile v100-paper-measured does not know what thc(bits=2) costs; measure it here with --measure, give "
         "--encode-ms and --decode-ms, or calibrate: gradwire calibrate --codec 'thc(bits=2)'"),
        ([*ONE, "--encode-ms", "1"],
         "predict: --decode-ms is missing: a step both encodes and decodes; give both, 0 if it is free"),
        ([*ONE, "--decode-ms", "1"],
         "predict: --encode-ms is missing: a step both encodes and decodes; give both, 0 if it is free"),
        ([*ONE, "--encode-ms", "-1", "--decode-ms", "0"],
         "predict: `--encode-ms` must be milliseconds, 0 or more, got -1.0"),
        ([*ONE, "--encode-ms", "nan", "--decode-ms", "0"],
         "predict: `--encode-ms` must be milliseconds, 0 or more, got nan"),
        ([*ONE, "--codec", "topk", "--encode-ms", "1", "--decode-ms", "0"],
         "predict: --encode-ms and --decode-ms are those of one codec, got 2"),
        ([*ONE, "--measure", "--encode-ms", "1", "--decode-ms", "0"],
         "predict: choose --measure, or --encode-ms with --decode-ms, not both"),
        (["--measure"], "predict: costs are those of a codec; name it with --codec"),
        (["--encode-ms", "1", "--decode-ms", "0"], "predict: costs are those of a codec; name it with --codec"),
    ],
)  # fmt: skip
def test_costs_that_cannot_be_used(capsys, arguments, message):
    assert main(["predict", *PLACE, *arguments]) == 2
    assert capsys.readouterr().err == f"gradwire: {message}\n"
