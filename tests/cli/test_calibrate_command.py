"""`gradwire calibrate` and `gradwire validate`."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from gradwire.cli import main
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
        (["calibrate", "--rate", "loopback", "--hosts", "0"], "`hosts` must be a whole number of at least 2, got 0"),
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
