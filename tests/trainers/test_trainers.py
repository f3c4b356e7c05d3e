"""Trainers, really run by two processes: `none` is the trainer itself, codecs send less, a resumed run goes on."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"
LIMIT = 240  # seconds
TRAINERS = {"accelerate": "accelerate", "huggingface": "transformers", "lightning": "lightning"}
each = pytest.mark.parametrize(
    "name",
    [
        pytest.param(n, marks=pytest.mark.skipif(importlib.util.find_spec(p) is None, reason=f"needs {p}"))
        for n, p in TRAINERS.items()
    ],
)
pytestmark = [pytest.mark.trainers, each]


def run(name, *options):
    """What the example prints in the end: the sum of its weights, to the last digit, and bytes sent a step."""
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [*launch, str(EXAMPLES / f"train_{name}.py"), *map(str, options)],
        capture_output=True,
        text=True,
        timeout=LIMIT,
        env=environment,
    )
    assert done.returncode == 0, done.stderr
    found = re.search(r"weights ([\d.]+), (?:(\d+) bytes sent a step|uncompressed)", done.stdout)
    assert found, done.stdout[-2000:]
    return found[1], int(found[2] or 0)


def folder(name, tmp_path):
    return ("--folder", tmp_path / "checkpoints") if name == "huggingface" else ()


def test_none_is_the_trainer_itself_and_a_codec_sends_less(name, tmp_path):
    plain, nothing = run(name, "--codec", "", *folder(name, tmp_path / "plain"))
    lossless, whole = run(name, "--codec", "none", *folder(name, tmp_path / "none"))
    _, less = run(name, "--codec", "blockint(bits=4)", *folder(name, tmp_path / "blockint"))
    assert plain == lossless
    assert nothing == 0 < less < 0.4 * whole


def test_a_resumed_run_goes_on_bit_for_bit(name, tmp_path):
    codec = ("--codec", "topk(ratio=0.05)")  # owes much
    if name == "huggingface":
        wanted = run(name, *codec, *folder(name, tmp_path))
        shutil.rmtree(tmp_path / "checkpoints" / "checkpoint-20")
        assert run(name, *codec, *folder(name, tmp_path), "--resume") == wanted
        (tmp_path / "checkpoints" / "checkpoint-10" / "gradwire_rank1.pt").unlink()
        shutil.rmtree(tmp_path / "checkpoints" / "checkpoint-20")
        with pytest.raises(AssertionError, match="so what the ranks still owed is"):
            run(name, *codec, *folder(name, tmp_path), "--resume")
    elif name == "lightning":
        wanted = run(name, *codec, "--epochs", 2)
        run(name, *codec, "--epochs", 1, "--save", tmp_path / "one.ckpt")
        assert run(name, *codec, "--epochs", 2, "--resume", tmp_path / "one.ckpt") == wanted
    else:
        run(name, *codec, "--save", tmp_path / "one")
        first = run(name, *codec, "--resume", tmp_path / "one", "--save", tmp_path / "two")
        assert run(name, *codec, "--resume", tmp_path / "one") == first
        for rank in range(2):  # what the ranks owe is part of it
            (tmp_path / "one" / f"gradwire_rank{rank}.pt").unlink()
        with pytest.raises(AssertionError, match="so what the ranks still owed is"):
            run(name, *codec, "--resume", tmp_path / "one")
