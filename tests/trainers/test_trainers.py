"""Trainers, really run by two processes: `none` is the trainer itself, codecs send less, a resumed run goes on."""

from __future__ import annotations

import importlib.util
import math
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from torch import nn

import gradwire

HERE = Path(__file__).parent
EXAMPLES = HERE.parents[1] / "examples"
LIMIT = 240  # seconds
TRAINERS = {"accelerate": "accelerate", "huggingface": "transformers", "lightning": "lightning"}
needs = {n: pytest.mark.skipif(importlib.util.find_spec(p) is None, reason=f"needs {p}") for n, p in TRAINERS.items()}
pytestmark = pytest.mark.trainers
LOST = {  # the share of what training gains that a codec may lose: one that sends zeros, or noise, loses all
    "blockint(bits=8)": 0.01,
    "blockint(bits=4)": 0.03,
    "topk(ratio=0.1)": 0.1,
    "powersgd(rank=2)": 0.15,
    "efsignsgd": 0.1,
}
UNUSED_BYTES = {"huggingface": 4}  # its DDP looks for unused parameters, and then ranks agree on them


def launch(script, *options, ranks=2):
    """What each training prints in the end: loss on all data, sum of its weights to the last digit, bytes a step."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [*command, *map(str, (script, *options))], capture_output=True, text=True, timeout=LIMIT, env=environment
    )
    assert done.returncode == 0, done.stderr
    found = re.findall(r"loss ([\d.]+), weights ([\d.]+), (?:(\d+) bytes sent a step|uncompressed)", done.stdout)
    assert found, done.stdout[-2000:]
    return [(float(loss), weights, int(sent or 0)) for loss, weights, sent in found]


def run(name, *options, ranks=2):
    [one] = launch(EXAMPLES / f"train_{name}.py", *options, ranks=ranks)
    return one


def folder(name, tmp_path):
    return ("--folder", tmp_path / "checkpoints") if name == "huggingface" else ()


def declared(codec, ranks):
    """Bytes of a step, by the codec's own word."""
    model = nn.Sequential(nn.Linear(33, 65), nn.Tanh(), nn.Linear(65, 7))
    return gradwire.attach(model, codec, workers=ranks, dry_run=True).sent_bytes


CASES = [  # 4 ranks take half as many steps of each epoch
    pytest.param("accelerate", 2, ["--epochs", 3], id="accelerate", marks=needs["accelerate"]),
    pytest.param("accelerate", 4, ["--epochs", 6], id="accelerate of 4", marks=needs["accelerate"]),
    pytest.param("lightning", 2, ["--epochs", 3], id="lightning", marks=needs["lightning"]),
    pytest.param("huggingface", 2, ["--steps", 48], id="huggingface", marks=needs["huggingface"]),
]


@pytest.mark.parametrize("name, ranks, options", CASES)
def test_none_is_the_trainer_itself_and_codecs_train_beside_it_and_send_what_they_declare(
    name, ranks, options, tmp_path
):
    if name == "huggingface":
        options = [*options, "--folder", f"{tmp_path}/{{}}"]
    (plain, weights, nothing), lossless, *found = launch(
        HERE / "each_codec.py", EXAMPLES / f"train_{name}.py", "|".join(["", "none", *LOST]), *options, ranks=ranks
    )
    assert lossless[:2] == (plain, weights)
    assert nothing == 0
    gain = math.log(7) - plain  # to guess one of seven costs log 7
    assert gain > 1.5
    for (codec, share), (loss, _, sent) in zip(LOST.items(), found, strict=True):
        assert loss < plain + share * gain, codec
        assert sent == declared(codec, ranks) + UNUSED_BYTES.get(name, 0), codec
        assert sent < 0.7 * lossless[2], codec  # of 4 ranks small messages are gathered


@pytest.mark.parametrize("name", [pytest.param(n, marks=needs[n]) for n in TRAINERS])
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
        goes_on(tmp_path, *codec)
    else:
        run(name, *codec, "--save", tmp_path / "one")
        first = run(name, *codec, "--resume", tmp_path / "one", "--save", tmp_path / "two")
        assert run(name, *codec, "--resume", tmp_path / "one") == first
        for rank in range(2):  # what the ranks owe is part of it
            (tmp_path / "one" / f"gradwire_rank{rank}.pt").unlink()
        with pytest.raises(AssertionError, match="so what the ranks still owed is"):
            run(name, *codec, "--resume", tmp_path / "one")


def goes_on(tmp_path, *options):
    """Lightning: two epochs, and one and one more."""
    wanted = run("lightning", *options, "--epochs", 2)
    run("lightning", *options, "--epochs", 1, "--save", tmp_path / "one.ckpt")
    assert run("lightning", *options, "--epochs", 2, "--resume", tmp_path / "one.ckpt") == wanted


@needs["lightning"]
def test_lightning_shards_by_fsdp2_and_a_codec_is_in_the_reduce_scatter(tmp_path):
    codecs = ["", "none", "blockint(bits=8)", "topk(ratio=0.1)"]
    script = EXAMPLES / "train_lightning.py"
    found = launch(HERE / "each_codec.py", script, "|".join(codecs), "--sharded", "--epochs", 3)
    (plain, weights, _), (_, lossless, _), *lost = found
    assert lossless == weights
    gain = math.log(7) - plain
    for codec, (loss, _, sent) in zip(codecs[2:], lost, strict=True):
        assert loss < plain + LOST[codec] * gain, codec
        assert 0 < sent < 0.3 * 4 * 2 * 2772 / 2, codec  # of the padded gradient a half goes to the other rank
    goes_on(tmp_path, "--sharded", "--codec", "topk(ratio=0.05)")
