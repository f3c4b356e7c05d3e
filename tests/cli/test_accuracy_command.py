"""`gradwire bench accuracy` on the command line. The training is in tests/bench."""

from __future__ import annotations

import io
import json
import re
import shlex
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from gradwire.cli import main
from gradwire.cli.bench.accuracy import accuracy, overview
from gradwire.core.records import load
from gradwire.laboratory.bench import distributed
from gradwire.laboratory.bench.tasks import images
from gradwire.laboratory.hosts.namespace import missing

sys.path.insert(0, str(Path(__file__).parent.parent / "laboratory" / "bench"))
from small import TRAIN, shrink, train_small

sys.path.insert(0, str(Path(__file__).parent.parent))
from trainings import training

LAB = pytest.mark.skipif(missing() is not None, reason=str(missing()))
FEW = ("--workers", "2", "--batch", "64", "--epochs", "2")  # 4 rounds an epoch


@pytest.fixture(autouse=True)
def small(monkeypatch):
    shrink(monkeypatch.setattr)


def run(capsys, *arguments):
    """What the command prints, parsed, and what it says meanwhile."""
    code = main(["bench", "accuracy", *arguments])
    captured = capsys.readouterr()
    assert code == 0, captured.err
    return json.loads(captured.out), captured.err


def test_the_example_of_the_help_works(capsys):
    first = re.search(r"Examples:\n +gradwire (.*)", accuracy.__doc__).group(1)
    found, told = run(capsys, *shlex.split(first)[2:])
    plain, sparse = found["runs"]
    assert (plain["codec"], sparse["codec"], sparse["memory"]) == ("none", "topk", "error_feedback")
    assert (plain["workers"], plain["epochs"], plain["at_epochs"]) == (4, 3, [1.0, 2.0, 3.0])
    assert len(plain["quality"]) == len(plain["rounds"]) == 3
    assert plain["rounds"][-1] == 3 * (TRAIN // (4 * 32))
    assert (plain["unit"], plain["metric"], plain["nmse"][0]) == ("%", "top-1 accuracy", 0.0)
    assert told == "training: shapes, none, seed 0\ntraining: shapes, topk(ratio=0.01), seed 0\n"


def test_records_are_kept_and_not_made_again(capsys, tmp_path, monkeypatch):
    path = tmp_path / "r.jsonl"
    places = ["--record", str(path), f"--checkpoints={tmp_path}"]
    arguments = [*FEW, "--codec", "fp16", *places, "--seed", "0", "--seed", "1", "--json"]
    monkeypatch.setattr(sys, "argv", ["gradwire", "bench", "accuracy", *arguments])
    found, _ = run(capsys, *arguments)
    stored = load(path)
    assert [r.what["seed"] for r in stored] == [r["seed"] for r in found["runs"]] == [0, 1]
    assert {r.command for r in stored} == {
        "gradwire bench accuracy --workers 2 --batch 64 --epochs 2 --codec fp16 --seed 0 --seed 1"
    }  # and not where things lie on this machine
    again, told = run(capsys, *arguments)
    assert again == found
    assert told == "done before: shapes, fp16, seed 0\ndone before: shapes, fp16, seed 1\n"
    assert load(path) == stored


def test_parts_share_the_runs_out(capsys):
    codecs = ["none", "fp16", "efsignsgd"]
    chosen = [part for codec in codecs for part in ("--codec", codec)]
    seen = [
        [r["codec"] for r in run(capsys, *FEW, "--epochs", "1", *chosen, "--part", part)[0]["runs"]]
        for part in ("1/2", "2/2")
    ]
    assert seen == [["none", "efsignsgd"], ["fp16"]]


def test_controllers_memories_and_a_tracker(capsys, tmp_path):
    controller = "accordion(low='powersgd(rank=2)', high='powersgd(rank=1)', eta=9.0, every=1, decay=0.5)"
    found, _ = run(
        capsys, *FEW, "--epochs", "3", "--controller", controller, "--memory", "default", "--memory", "none",
        "--tracker", f"tensorboard:{tmp_path}",
    )  # fmt: skip
    kept, without = found["runs"]
    assert (kept["codec"], kept["memory"], without["memory"]) == (None, "error_feedback", "none")
    assert kept["levels"][0] == {"powersgd(rank=2)": 2}
    assert {s["to"] for s in kept["switches"]} == {"powersgd(rank=1)", "powersgd(rank=2)"}
    events = EventAccumulator(str(tmp_path)).Reload()
    name = f"shapes, {controller}, seed 0"
    quality = [(e.step, e.value) for e in events.Scalars(f"{name}/quality")]
    assert quality == list(zip(kept["rounds"], kept["quality"], strict=True))
    assert [e.value for e in events.Scalars(f"{name}/level/powersgd(rank=2)")] == [2.0, 2.0]
    assert [e.value for e in events.Scalars(f"{name}/sent_bytes")] == kept["sent_bytes"]
    assert f"shapes, {controller}, memory none, seed 0/nmse" in events.Tags()["scalars"]


def test_made_up_images(capsys, monkeypatch):
    """`--synthetic` needs no data set; here even fewer of the images."""
    whole = images.synthetic(10)
    few = replace(
        whole,
        train=whole.train[:16],
        train_labels=whole.train_labels[:16],
        test=whole.test[:8],
        test_labels=whole.test_labels[:8],
    )
    monkeypatch.setattr(images, "synthetic", lambda classes: few)
    task = ["--task", "resnet20-cifar10", "--synthetic", "--codec", "topk"]
    found, _ = run(capsys, *task, "--workers", "2", "--batch", "8", "--epochs", "1")
    (one,) = found["runs"]
    assert (one["data"], one["model"]) == ("synthetic: coloured patterns", "resnet20")
    assert one["published"] == {"quality": 90.86, "source": "GRACE, Table II"}
    assert (one["parameters"], one["rounds"]) == (269_467, [1])


def test_some_runs_of_a_study(capsys, monkeypatch):
    seen = []
    monkeypatch.setattr(
        "gradwire.laboratory.bench.accuracy.Study.run", lambda study, *rest: seen.extend(study.plans) or []
    )
    run(capsys, "--study", "accordion", "--study", "recommendation", "--controller", "adaqs", "--codec", "fp16")
    assert [(p.task, p.codec, p.recipe.epochs) for p in seen] == [
        ("vgg19bn-cifar10", None, 60),
        ("resnet18-cifar10", None, 60),
        ("ncf-ml1m", "fp16", 8),
    ]


def test_several_jobs_share_the_runs(capsys, monkeypatch, tmp_path):
    asked = []

    def pretend(study, jobs, path, on_start, on_progress):
        asked.append((jobs, path))
        yield from study.run(path, on_start, on_progress)

    monkeypatch.setattr("gradwire.laboratory.bench.jobs.run", pretend)
    path = tmp_path / "r.jsonl"
    found, _ = run(capsys, *FEW, "--codec", "none", "--codec", "fp16", "--jobs", "2", "--record", str(path))
    assert asked == [(2, path)]
    assert [r["codec"] for r in found["runs"]] == [r.what["codec"] for r in load(path)] == ["none", "fp16"]


class Bar:
    """Remembers what was shown."""

    def __init__(self):
        self.total, self.passed, self.texts = 0, 0.0, []

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass

    def add_task(self, text, total):
        self.total = total

    def update(self, bar, advance, description):
        self.passed += advance
        self.texts.append(description)


def test_a_bar_on_a_terminal(capsys, monkeypatch, tmp_path):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    path = tmp_path / "r.jsonl"
    for texts in (["none", *["none: Q"] * 4], ["none", "fp16", *["fp16: Q"] * 4]):  # the first one is done before
        bar = Bar()
        monkeypatch.setattr(sys.modules[accuracy.__module__], "bars", lambda bar=bar: bar)
        chosen = [part for codec in dict.fromkeys(t[:4] for t in texts) for part in ("--codec", codec)]
        run(capsys, *FEW, *chosen, "--evaluate-every", "3", "--record", str(path))
        told = [re.sub(r": [0-9.]+$", ": Q", text) for text in bar.texts]
        assert told == [f"shapes, {t[:4]}, seed 0{t[4:]}" for t in texts]
        assert bar.passed == pytest.approx(bar.total)


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["--part", "3/2"], "--part must be I/N with I from 1 to N, such as 2/4, got '3/2'"),
        (["--workers", "0"], "`workers` must be a whole number of at least 1, got 0"),
        (["--hosts", "0"], "`workers` must be a whole number of at least 1, got 0"),
        (["--study", "accordion", "--batch", "9"], "a study sets --batch itself; leave that away, or --study"),
        (["--study", "accordion", "--momentum", "0"], "a study sets --momentum itself; leave that away, or --study"),
        (["--jobs", "0"], "`jobs` must be a whole number of at least 1, got 0"),
        (["--record", "."], "`--record` must name a file that can be written, got '.'; choose another"),
        (
            ["--hosts", "2", "--jobs", "2"],
            "--jobs is for virtual workers; on a network one run at a time is measured, from its start to its end. "
            "Leave it away",
        ),
        (
            ["--rate", "loopback", "--checkpoints", "here"],
            "--checkpoints is for virtual workers; on a network one run at a time is measured, from its start to its "
            "end. Leave it away",
        ),
        (
            ["--codec", "topk", "--gpus", "8"],
            "the time to a quality is told of one task, beside fp16, got no run with fp16 to compare with, and no "
            "target; add --codec fp16 or --target, or leave the cluster away and ask `gradwire tta` afterwards",
        ),
        (
            ["--task", "shapes", "--task", "ncf-ml1m", "--bandwidth", "10gbit"],
            "the time to a quality is told of one task, beside fp16, got 2 tasks; add --codec fp16 or --target, or "
            "leave the cluster away and ask `gradwire tta` afterwards",
        ),
    ],
)
def test_bad_requests_are_refused_at_once(capsys, arguments, message):
    assert main(["bench", "accuracy", *arguments]) == 2
    captured = capsys.readouterr()
    assert (captured.out, captured.err) == ("", f"gradwire: bench accuracy: {message}\n")


# -------------------------------------------------------------------- time


def test_the_time_on_a_cluster_is_what_tta_says(capsys, tmp_path):
    path = tmp_path / "r.jsonl"
    codecs = ("--codec", "fp16", "--codec", "efsignsgd")
    cluster = ("--gpus", "8", "--bandwidth", "1gbit", "--backward", "5ms", "--target", "10")
    found, _ = run(capsys, *FEW, *codecs, *cluster, "--record", str(path))
    assert found["time_label"] == "modelled: h200, 8 GPUs, 1 Gbit/s"
    assert main(["tta", str(path), *cluster]) == 0
    assert json.loads(capsys.readouterr().out) == found

    refused = main(["bench", "accuracy", *FEW, *codecs, "--gpus", "8", "--record", str(path)])  # no time of this net
    captured = capsys.readouterr()
    assert refused == 2
    assert len(json.loads(captured.out)["runs"]) == 2  # what was made is not lost
    assert "give --backward" in captured.err


@pytest.mark.dist
def test_real_ranks_over_loopback(capsys, tmp_path, monkeypatch):
    monkeypatch.setattr(distributed, "train", train_small)
    path = tmp_path / "r.jsonl"
    arguments = ["--codec", "topk", "--rate", "loopback", "--hosts", "2", "--batch", "64", "--epochs", "2"]
    found, told = run(capsys, *arguments, "--record", str(path))
    (one,) = found["runs"]
    assert (one["workers"], one["hosts"], one["ranks_per_host"], one["bits_per_second"]) == (2, 2, 1, None)
    assert (one["clock"], one["exchange"]) == ("measured: 2 ranks over loopback", "gradwire, after_backward")
    assert one["seconds"][1] > one["seconds"][0] > 0
    assert told == "training: shapes, topk, seed 0\n"
    assert main(["tta", str(path), "--target", "5"]) == 0
    assert json.loads(capsys.readouterr().out)["time_label"] == one["clock"]
    virtual, _ = run(capsys, *FEW, "--codec", "topk", "--nmse-every", "0")
    (other,) = virtual["runs"]
    assert (one["payload_bytes"], one["sent_bytes"]) == (other["payload_bytes"], other["sent_bytes"])


@LAB
@pytest.mark.dist
def test_real_ranks_on_a_slow_network(capsys, monkeypatch):
    monkeypatch.setattr(distributed, "train", train_small)
    arguments = ["--codec", "none", "--rate", "20mbit", "--hosts", "2", "--batch", "64", "--epochs", "1"]
    (one,) = run(capsys, *arguments)[0]["runs"]
    assert (one["clock"], one["exchange"]) == ("measured: 2 hosts at 20 Mbit/s", "fp32 DDP")
    assert one["network"]["asked_bits_per_second"] == [20e6, 20e6]
    assert one["seconds"][0] > 0.9 * 8 * one["sent_bytes"][0] / 20e6  # the wire's share alone


# -------------------------------------------------------------------- for people


def test_the_table():
    screen = Console(file=io.StringIO(), width=140)
    runs = [training("none", nmse=[0.0, None, None]), training("topk", memory="error_feedback")]
    screen.print(overview(runs))
    screen.print(overview([training("fp16", clock="measured: 2 ranks over loopback")]))
    lines = [line.split() for line in screen.file.getvalue().splitlines()]
    assert ["resnet9-cifar10", "none", "none()", "0", "90.00", "90.00", "16", "0"] in lines
    assert ["resnet9-cifar10", "topk", "error_feedback", "0", "90.00", "90.00", "16", "0.25"] in lines
    assert ["resnet9-cifar10", "fp16", "none()", "0", "90.00", "90.00", "16", "0.25", "15.0"] in lines
    assert ["best", "and", "final", "top-1", "accuracy", "in", "%"] in lines
