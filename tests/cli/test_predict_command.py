"""`gradwire predict`, by itself: rows beside baselines, inputs with their sources, sentences for what is wrong."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace

import pytest
import typer
from typer.testing import CliRunner

from gradwire import planner
from gradwire.cli.predict import predict
from gradwire.core.errors import ConfigError, UnknownName
from gradwire.planner.profile import Profile

HARDWARE = "v100-paper-measured"
GIVEN = {"--model": "resnet101", "--batch": "64", "--gpus": "64", "--bandwidth": "10gbit", "--hardware": HARDWARE}
POWER = "powersgd(rank=4)"


def run(*more, **instead):
    """The command, with some of the usual options given otherwise."""
    app = typer.Typer()
    app.command()(predict)
    options = GIVEN | {f"--{name.replace('_', '-')}": value for name, value in instead.items()}
    result = CliRunner().invoke(app, [part for pair in options.items() for part in pair] + list(more))
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == 0, result.output
    return result.output


def answer(*more, **instead):
    return json.loads(run(*more, **instead))


def test_rows_are_predictions_beside_baselines():
    found = answer("--codec", POWER, "--codec", "signsgd", gpus_per_node="4")
    rows = found["predictions"]
    assert [r["label"] for r in rows] == ["FP32 DDP", "FP16 DDP", "BF16 DDP", POWER, "signsgd"]
    asked = {"model": "resnet101", "batch": 64, "gpus": 64, "gpus_per_node": 4, "bandwidth": "10gbit"}
    for row in rows:
        own = planner.predict(codec=row["codec"], hardware=HARDWARE, **asked)
        assert (row["step_seconds"], row["sync_seconds"]) == (own.step_seconds, own.sync_seconds)
        assert (row["sent_bytes"], row["memory_bytes"], row["fits"]) == (own.sent_bytes, own.memory_bytes, own.fits)
        assert row["parts_seconds"] == own.parts
        parts = own.parts["forward"] + own.parts["backward"] + own.parts["wait"] + own.parts["optimizer"]
        assert own.step_seconds == pytest.approx(parts)  # as the caption of the table says
    full, half, _, codec, _ = rows
    assert codec["step_speedup_over_fp32"] == full["step_seconds"] / codec["step_seconds"]
    assert codec["step_speedup_over_fp16"] == half["step_seconds"] / codec["step_seconds"]
    assert codec["sync_speedup_over_fp16"] == half["sync_seconds"] / codec["sync_seconds"]
    assert found["setup"]["bits_per_second"] == 1e10
    assert found["notes"] == []


def test_every_option_reaches_the_model():
    options = {
        "gpus_per_node": "4",
        "latency": "0.5ms",
        "mode": "after_backward",
        "strategy": "hierarchical",
        "accumulate": "2",
        "backward": "120ms",
    }
    found = answer("--codec", "signsgd", **options)
    own = planner.predict(
        model="resnet101",
        batch=64,
        gpus=64,
        bandwidth="10gbit",
        hardware=HARDWARE,
        codec="signsgd",
        gpus_per_node=4,
        latency=5e-4,
        mode="after_backward",
        strategy="hierarchical",
        accumulate=2,
        backward=0.12,
    )
    row = found["predictions"][-1]
    assert row["step_seconds"] == own.step_seconds
    assert (row["mode"], row["strategy"]) == ("after_backward", "hierarchical")
    assert found["predictions"][0]["strategy"] == "auto"  # DDP chooses by itself


def test_inputs_come_once_with_their_source():
    inputs = answer("--codec", POWER)["inputs"]
    assert len({(i["name"], i["value"], i["source"]) for i in inputs}) == len(inputs)
    shared = {i["name"]: i["source"].partition(":")[0] for i in inputs if i["of"] is None}
    assert shared == {
        "backward": "inferred",
        "forward": "inferred",
        "network": "inferred",
        "latency": "inferred",
        "contention": "published",
    }
    own = {(i["name"], *i["of"]): i["source"].partition(":")[0] for i in inputs if i["of"]}
    assert own[("encode and decode", POWER)] == "published"
    assert own[("bytes", POWER)] == own[("bytes", "fp16", "bf16")] == "traced"


def test_a_baseline_that_was_not_measured_is_left_out_and_that_is_said(monkeypatch):
    whole = Profile.load(HARDWARE)
    partial = replace(whole, codecs={k: v for k, v in whole.codecs.items() if k not in ("fp16", "bf16")})
    monkeypatch.setattr("gradwire.planner.profile._load", lambda name: partial)
    found = answer("--codec", POWER)
    assert [r["codec"] for r in found["predictions"]] == ["none", POWER]
    assert found["predictions"][1]["step_speedup_over_fp16"] is None
    assert found["notes"] == [
        f"FP16 DDP is left out: profile {HARDWARE} does not know what fp16 costs.",
        f"BF16 DDP is left out: profile {HARDWARE} does not know what bf16 costs.",
    ]


def test_out_of_memory_and_sizes_of_noise_are_said(monkeypatch):
    whole = planner.predict

    def small(**setup):
        return replace(whole(**setup), fits=setup["codec"] != "threshold", memory_bytes=2e9)

    monkeypatch.setattr("gradwire.planner.predict", small)
    found = answer("--codec", "threshold", hardware="h200")
    assert found["predictions"][-1]["fits"] is False
    assert found["notes"] == [
        "threshold is predicted to run out of memory: beside the training its exchange needs 2 GB, on a device of "
        "141 GB; choose a smaller batch, or a strategy that gathers less.",
        "Sizes of threshold depend on the data; they were taken from noise.",
    ]


def test_people_get_tables_that_fit(people):
    shown = run("--codec", POWER, "--codec", "signsgd", gpus_per_node="4")
    lines = shown.splitlines()
    assert max(map(len, lines)) <= 80
    assert lines[0] == f"resnet101, batch 64, 64 GPUs, 4 a node, 10 Gbit/s; profile {HARDWARE}"
    row = planner.predict(
        model="resnet101", batch=64, gpus=64, gpus_per_node=4, bandwidth="10gbit", codec=POWER, hardware=HARDWARE
    )
    times = next(line for line in lines if line.split()[0:1] == [POWER])
    assert times.split()[1] == f"{1e3 * row.step_seconds:.0f}"
    for word in ("optimizer", "extra memory", "not known", "published: Agarwal", "traced: exact"):
        assert word in shown, word


def test_it_answers_without_torch():
    arguments = ["--model", "resnet50", "--batch", "64", "--gpus", "16", "--bandwidth", "10gbit", "--codec", POWER]
    code = (
        "import sys\n"
        "import typer; from gradwire.cli.predict import predict\n"
        "app = typer.Typer(); app.command()(predict)\n"
        f"app({arguments!r}, standalone_mode=False)\n"
        "print('torch' in sys.modules, 'matplotlib' in sys.modules, file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["setup"]["hardware"] == "h200"
    assert done.stderr.split() == ["False", "False"]


def test_a_model_of_your_own_is_traced(monkeypatch, tmp_path):
    (tmp_path / "predict_nets.py").write_text("from torch import nn\ndef small():\n    return nn.Linear(640, 320)\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GRADWIRE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(sys, "path", list(sys.path))
    found = answer("--codec", "fp16", model="predict_nets:small", backward="10ms", gpus="2")
    sent = {r["codec"]: r["sent_bytes"] for r in found["predictions"]}
    assert sent["none"] == 2 * sent["fp16"] == 4 * (640 * 320 + 320)


@pytest.mark.parametrize(
    "instead, problem, message",
    [
        (
            {"bandwidth": "-10gbit"},
            ConfigError,
            "gradwire: a rate needs a number above 0 and a unit, as in 100mbit or 1gbit; got '-10gbit'",
        ),
        (
            {"bandwidth": "10"},
            ConfigError,
            "gradwire: a rate needs a number above 0 and a unit, as in 100mbit or 1gbit; got '10'",
        ),
        ({"gpus": "0"}, ConfigError, "gradwire: `gpus` must be a whole number of at least 1, got 0"),
        ({"batch": "0"}, ConfigError, "gradwire: `batch` must be a whole number of at least 1, got 0"),
        (
            {"gpus_per_node": "0"},
            ConfigError,
            "gradwire: `gpus_per_node` must be a whole number of at least 1, got 0",
        ),
        (
            {"gpus": "10", "gpus_per_node": "4"},
            ConfigError,
            "gradwire: 10 GPUs do not fill nodes of 4; type a multiple, such as 8 or 12, or --gpus-per-node 1",
        ),
        ({"model": "bert"}, UnknownName, "no model named 'bert'; did you mean bert-base?"),
        (
            {"latency": "20"},
            ConfigError,
            "gradwire: a time needs a number and a unit, as in 20us, 1.5ms or 2s; got '20'",
        ),
        (
            {"backward": "-1ms"},
            ConfigError,
            "gradwire: a time needs a number and a unit, as in 20us, 1.5ms or 2s; got '-1ms'",
        ),
        ({"mode": "later"}, ConfigError, "gradwire: `mode` must be 'overlap' or 'after_backward', got 'later'"),
        ({"accumulate": "0"}, ConfigError, "gradwire: `accumulate` must be a whole number of at least 1, got 0"),
        (
            {"hardware": "h20"},
            UnknownName,
            "no hardware profile 'h20', and no file of that name; did you mean h200?",
        ),
        ({"codec": "powersg"}, UnknownName, "no codec named 'powersg'; did you mean powersgd?"),
        (
            {"codec": "signsgd", "strategy": "all_gathers"},
            UnknownName,
            "no strategy named 'all_gathers'; did you mean all_gather?",
        ),
    ],
)
def test_wrong_input_gets_a_sentence(instead, problem, message):
    with pytest.raises(problem) as caught:
        run(**instead)
    assert str(caught.value) == message
