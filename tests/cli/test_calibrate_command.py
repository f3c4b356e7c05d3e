"""`gradwire calibrate` and `gradwire validate`."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from gradwire.cli import main
from gradwire.planner.plausible import Judgement
from gradwire.planner.profile import Profile


@pytest.fixture
def quick():
    """It asks for the file whatever the fit is like: the tests share their machine with others."""
    return ["calibrate", "--model", "shapes", "--codec", "efsignsgd", "--seconds", "0.05", "--json", "--force"]


@pytest.mark.dist
@pytest.mark.filterwarnings("ignore::gradwire.core.errors.GradwireWarning")  # that the machine is busy
def test_over_loopback(quick, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main([*quick, "--rate", "loopback", "--record", "r.jsonl"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["profile"] == "this-machine.toml"
    assert result["fit"]["settings"] == 4  # FP32 DDP, FP16 DDP, and the codec in two modes
    assert result["fit"]["median_error"] >= 0
    profile = Profile.load(tmp_path / "this-machine.toml")
    assert profile.times("shapes", 4).backward_seconds > 0
    assert profile.codecs["efsignsgd"].source.startswith("measured: in 2 configurations of training steps")
    assert profile.network.bits_per_second > 1e7
    # the records alone make the same file
    before = (tmp_path / "this-machine.toml").read_text()
    assert main(["calibrate", "--records", "r.jsonl", "--json", "--force"]) == 0
    assert (tmp_path / "this-machine.toml").read_text() == before


@pytest.mark.dist
def test_on_the_ranks_of_torchrun(quick, tmp_path):
    """Rank 0 writes; the others say nothing."""
    torchrun = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc-per-node",
        "2",
        "-m",
        "gradwire",
    ]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [*torchrun, *quick], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=250
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["models"]["shapes"][0]["batch"] == 4
    assert Profile.load(tmp_path / "this-machine.toml").network.source.endswith("bit/s")


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (
            ["calibrate", "--rate", "loopback", "--hosts", "0"],
            "calibrate: `--hosts` must be a whole number",
        ),
        (["calibrate", "--rate", "10"], "a rate needs a number above 0 and a unit"),
        (["calibrate", "--records", "empty.jsonl"], "records of one place are wanted, got: none"),
        (["calibrate", "--records", "empty.jsonl", "--place", "4"], "such as 4@500mbit; got '4'"),
        (["validate", "empty.jsonl"], "either --place 4@500mbit, or --hardware PROFILE"),
        (["validate", "empty.jsonl", "--place", "4@1gbit", "--hardware", "h200"], "either --place"),
        (["validate", "empty.jsonl", "--hardware", "h200"], "there is no step record of another place"),
    ],
)
def test_wrong_requests(arguments, sentence, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty.jsonl").write_text("")
    assert main(arguments) == 2
    assert sentence in capsys.readouterr().err


def training_record(path, **changes):
    """A line of a user's own training, as `handle.watch(record=...)` writes it."""
    from gradwire.integrations.recorder import Recorder, described
    from gradwire.integrations.window import Window

    about = {"model": "resnet50", "batch": 64, "network": "10gbit", "hosts": 4} | changes
    what = described(4, "ResNet", {k: v for k, v in about.items() if v is not None and k != "configuration"})
    what |= {
        "configuration": about.get("configuration", "eightbit"),
        "mode": "overlap",
        "strategy": "auto",
        "workers": 4,
    }
    window = Window(step=100, codec="eightbit", seconds=(0.2, 0.21, 0.22), sent_bytes=4e7, plain_bytes=1.5e8)
    Recorder(path, what, "nccl")(window)


def test_a_users_training_is_predicted(tmp_path, capsys):
    training_record(tmp_path / "run.jsonl")
    assert main(["validate", str(tmp_path / "run.jsonl"), "--hardware", "h200", "--json"]) == 0
    (found,) = json.loads(capsys.readouterr().out)["predictions"]
    assert (found["model"], found["configuration"], found["measured_seconds"]) == ("resnet50", "eightbit", 0.21)
    assert found["error"] == pytest.approx(found["predicted_seconds"] / 0.21 - 1)


def test_a_training_with_a_codec_that_the_profile_does_not_know(tmp_path, capsys):
    training_record(tmp_path / "run.jsonl", configuration="natural")
    assert main(["validate", str(tmp_path / "run.jsonl"), "--hardware", "v100-paper-measured"]) == 2
    assert capsys.readouterr().err == (
        "gradwire: validate: profile v100-paper-measured does not know what natural costs; calibrate with it: "
        "gradwire calibrate --model resnet50 --codec natural -o FILE\n"
    )


def test_a_training_that_tells_too_little_is_refused(tmp_path, capsys):
    training_record(tmp_path / "run.jsonl", model="mine", batch=None, network=None, configuration="auto")
    assert main(["validate", str(tmp_path / "run.jsonl"), "--hardware", "h200"]) == 2
    assert capsys.readouterr().err == (
        "gradwire: validate: the records of these trainings cannot be predicted; missing: batch, network, a model that "
        "profile h200 knows, in place of 'mine', one codec for the whole training, in place of 'auto'. Say it when a "
        "training is recorded: handle.watch(record=..., about={'model': 'resnet50', 'batch': 64, 'network': '10gbit', "
        "'hosts': 4})\n"
    )


@pytest.fixture
def fitted(tmp_path, monkeypatch):
    """A file of records whose fit is a shipped profile; how far it is believed is up to the test."""
    (tmp_path / "r.jsonl").write_text("")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("gradwire.cli.calibrate._fit", lambda *arguments: Profile.load("h200"))

    def judged(*problems):
        found = Judgement(settings=8, median_error=0.04, largest_error=0.5, spread=0.1, problems=problems)
        monkeypatch.setattr("gradwire.planner.plausible.judge", lambda *arguments: found)

    return judged


def test_an_implausible_fit_is_not_written_unless_forced(fitted, tmp_path, capsys):
    fitted("payloads got 0.41 of the rate in steps, and 0.9 in the probe before")
    assert main(["calibrate", "--records", "r.jsonl"]) == 1
    assert capsys.readouterr().err == (
        "gradwire: calibrate: the fit is not plausible, so no profile was written: payloads got 0.41 of the rate in "
        "steps, and 0.9 in the probe before. Measure again when the machine is idle, or for longer (--seconds 5), or "
        "write it all the same with --force\n"
    )
    assert not (tmp_path / "this-machine.toml").exists()
    assert main(["calibrate", "--records", "r.jsonl", "--force"]) == 0
    assert (tmp_path / "this-machine.toml").exists()


@pytest.mark.usefixtures("people")
def test_it_says_how_sure_it_is_and_asks_before_it_overwrites(fitted, tmp_path, capsys, monkeypatch):
    fitted()
    monkeypatch.setenv("COLUMNS", "200")
    assert main(["calibrate", "--records", "r.jsonl"]) == 0
    assert (
        "how sure: the 8 steps it was fitted to are predicted 4% off in the median, 50% at most; repeated steps differ "
        "by 10%\n"
    ) in capsys.readouterr().out
    kept = (tmp_path / "this-machine.toml").stat().st_mtime_ns
    for stream in ("stdin", "stderr"):
        monkeypatch.setattr(getattr(sys, stream), "isatty", lambda: True)
    asked = []
    monkeypatch.setattr("typer.confirm", lambda question, err: asked.append(question) or len(asked) > 1)
    assert main(["calibrate", "--records", "r.jsonl"]) == 2  # no
    assert (tmp_path / "this-machine.toml").stat().st_mtime_ns == kept
    assert main(["calibrate", "--records", "r.jsonl"]) == 0  # yes
    assert asked == ["overwrite this-machine.toml?"] * 2
    assert (tmp_path / "this-machine.toml").stat().st_mtime_ns > kept


@pytest.mark.dist
@pytest.mark.filterwarnings("default::gradwire.core.errors.GradwireWarning")
def test_a_model_of_the_working_directory(quick, tmp_path, capsys, monkeypatch):
    (tmp_path / "my_calibrated.py").write_text("import torch\ndef net():\n    return torch.nn.Linear(48, 32)\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    named = [*quick, "--model", "my_calibrated:net", "--batch", "2", "--rate", "loopback"]
    named.remove("shapes")
    named.remove("--model")
    assert main(named) == 0
    told = capsys.readouterr()
    assert json.loads(told.out)["models"].keys() == {"my_calibrated:net"}
    assert (
        "gradwire: warning: my_calibrated:net does not tell its inputs, so they are guessed; write this where it is "
        "made, with your sizes: model.example = lambda batch: (torch.randn(batch, 48),)\n"
    ) in told.err
    place = ["--batch", "2", "--gpus", "4", "--bandwidth", "1gbit", "--hardware", "this-machine"]
    assert main(["predict", "--model", "my_calibrated:net", *place, "--codec", "efsignsgd"]) == 0
