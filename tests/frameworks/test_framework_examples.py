"""The examples under torchrun: several processes train as one does with the whole batch, and codecs stay beside it."""

from __future__ import annotations

import functools
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.frameworks, pytest.mark.timeout(900)]
EXAMPLES = Path(__file__).parents[2] / "examples"
LIMIT = 300  # seconds of one run: TensorFlow takes its time to load
BACKENDS = ("torch", "jax", "tensorflow")
RUNS = {
    "jax": ("train_jax.py",),
    "tensorflow": ("train_tensorflow.py",),
    **{f"keras-{b}": ("train_keras.py", "--backend", b) for b in BACKENDS},
    "keras-ncf": ("train_keras.py", "--backend", "jax", "--model", "ncf"),
}


@functools.cache
def run(script, *options, ranks):
    """Loss, sum of weights and bytes that the example prints in the end."""
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore", "XLA_FLAGS": ""}
    done = subprocess.run(
        [*launch, str(EXAMPLES / script), *options], capture_output=True, text=True, timeout=LIMIT, env=environment
    )
    assert done.returncode == 0, done.stderr[-4000:]
    found = re.search(r"loss ([\d.]+), weights ([\d.]+), (\d+) bytes sent a step", done.stdout)
    assert found, done.stdout[-2000:]
    return float(found[1]), float(found[2]), int(found[3])


@pytest.mark.parametrize("name", RUNS)
def test_processes_train_as_one_with_the_whole_batch(name):
    alone, weights, nothing = run(*RUNS[name], "--codec", "none", ranks=1)
    assert nothing == 0
    for ranks in (2, 4) if name in ("jax", "keras-torch") else (2,):
        loss, found, sent = run(*RUNS[name], "--codec", "none", ranks=ranks)
        assert loss == pytest.approx(alone, rel=1e-3)
        assert found == pytest.approx(weights, rel=1e-4)
        assert sent > 0


@pytest.mark.parametrize("name", RUNS)
def test_codecs_stay_beside_it_and_send_less(name):
    alone, _, _ = run(*RUNS[name], "--codec", "none", ranks=1)
    _, _, whole = run(*RUNS[name], "--codec", "none", ranks=2)
    for codec, part in (("blockint(bits=8)", 0.6), ("topk(ratio=0.1)", 0.6)):
        loss, _, sent = run(*RUNS[name], "--codec", codec, ranks=2)
        assert abs(loss - alone) < 0.15
        assert sent < part * whole


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_resumed_training_ends_where_the_whole_one_does(backend, tmp_path):
    """What is owed matters: without the memories the weights would differ."""
    options = "train_keras.py", "--backend", backend, "--codec", "topk(ratio=0.1)"
    _, wanted, _ = run(*options, "--epochs", "2", ranks=2)
    run(*options, "--epochs", "1", "--folder", str(tmp_path), ranks=2)
    _, found, _ = run(*options, "--epochs", "1", "--folder", f"{tmp_path}/", ranks=2)
    assert found == wanted
