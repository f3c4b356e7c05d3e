"""examples/train_ddp.py under torchrun: it trains, saves, and a crash does not change where it ends."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch

SCRIPT = Path(__file__).parent.parent / "examples" / "train_ddp.py"

# Runs the script, and kills rank 1 once, in the middle of its 14th step.
CRASH = """
import os, runpy, signal, sys
from pathlib import Path

import torch

marker, steps, step = Path(sys.argv.pop(1)), 0, torch.optim.SGD.step

def crash(*arguments, **options):
    global steps
    steps += 1
    if os.environ["RANK"] == "1" and steps == 14 and not marker.exists():
        marker.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return step(*arguments, **options)

torch.optim.SGD.step = crash
sys.argv[0] = SCRIPT
runpy.run_path(SCRIPT, run_name="__main__")
"""


def train(folder, *arguments, script=(SCRIPT,), restarts=0):
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    done = subprocess.run(
        [*command, f"--max-restarts={restarts}", *map(str, script), f"--folder={folder}", *arguments],
        capture_output=True,
        text=True,
        timeout=110,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def saved(folder, name):
    return torch.load(folder / "step_20" / name, weights_only=True)


def equal(a, b):
    """Bit for bit, in all tensors and values."""
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(equal(a[k], b[k]) for k in a)
    if isinstance(a, list):
        return len(a) == len(b) and all(map(equal, a, b))
    return torch.equal(a, b) if isinstance(a, torch.Tensor) else a == b


@pytest.mark.dist
def test_a_run_that_torchrun_restarts_ends_where_an_uninterrupted_one_does(tmp_path):
    whole, restarted, marker, script = (tmp_path / name for name in ("whole", "restarted", "crashed", "crash.py"))
    script.write_text(CRASH.replace("SCRIPT", repr(str(SCRIPT))))
    expected = train(whole, "--steps=20")
    output = train(restarted, "--steps=20", "--save-every=5", script=(script, marker), restarts=1)
    assert marker.exists()
    assert output[0] == f"continuing from {restarted / 'step_10'}"
    assert output[1:3] == expected[:2]  # loss and accuracy
    for folder in (whole, restarted):
        assert [f.name for f in folder.iterdir()] == ["step_20"]  # nothing beside the newest checkpoint
    ranks = ["compression_0_of_2.pt", "compression_1_of_2.pt"]
    assert sorted(f.name for f in (restarted / "step_20").iterdir()) == [*ranks, "model.pt"]
    for name in (*ranks, "model.pt"):
        assert equal(saved(whole, name), saved(restarted, name)), name
    assert not equal(*(saved(whole, name)["state"] for name in ranks))  # each rank has a memory of its own


def test_the_example_is_short_and_marks_what_differs():
    lines = SCRIPT.read_text().splitlines()
    assert len(lines) <= 150
    marked = [line for line in lines if line.endswith("# gradwire")]
    assert any("gradwire.attach(" in line for line in marked)
    # `Handle` in a signature aside, nothing of gradwire hides in an unmarked line
    unmarked = [line for line in lines if "handle." in line and line not in marked]
    assert unmarked == []
