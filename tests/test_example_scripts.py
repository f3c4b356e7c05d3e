"""The examples under torchrun: train_ddp.py saves, and a crash does not change where it ends; train_accordion.py."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch

EXAMPLES = Path(__file__).parent.parent / "examples"
SCRIPT, ACCORDION = EXAMPLES / "train_ddp.py", EXAMPLES / "train_accordion.py"

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
    return torchrun(f"--max-restarts={restarts}", *script, f"--folder={folder}", *arguments)


def torchrun(*arguments):
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    done = subprocess.run(
        [*command, *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=140,
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
    much = "--codec=topk(ratio=0.01)"  # is owed
    expected = train(whole, much, "--steps=20")
    output = train(restarted, much, "--steps=20", "--save-every=5", script=(script, marker), restarts=1)
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


@pytest.mark.dist
def test_the_autopilot_is_a_codec_of_the_example(tmp_path):
    output = train(tmp_path, "--codec=auto", "--steps=20")
    state = saved(tmp_path, "compression_1_of_2.pt")["autopilot"]
    assert (state["steps"], state["trials"], state["choice"]) == (20, 0, "none")  # the job has hardly begun
    assert output[-1].startswith(f"{state['on']}: ")


@pytest.mark.dist
def test_accordion_tells_when_and_why_it_switches(tmp_path):
    output = torchrun(ACCORDION, "--epochs=6", f"--tracker=tensorboard:{tmp_path}")
    rates = [line.split(",")[0] for line in output if line.startswith("epoch")]
    assert rates == [f"epoch {e}: learning rate {0.2 if e < 4 else 0.02}" for e in range(6)]
    fall = "  all parameters: powersgd(rank=1) -> powersgd(rank=4) (the learning rate falls from 0.2 to 0.02)"
    assert output.index(fall) == output.index(next(line for line in output if line.startswith("epoch 3"))) + 1
    layers = [line for line in output if line.startswith("  ") and line != fall]
    assert layers
    assert all("powersgd(rank=4) -> powersgd(rank=1) (norm " in line for line in layers)
    assert output[-1].startswith("held-out accuracy ")
    assert any("events" in file.name for file in tmp_path.iterdir())


@pytest.mark.parametrize("script, most", [(SCRIPT, 150), (ACCORDION, 120)], ids=lambda value: str(value).split("/")[-1])
def test_the_example_is_short_and_marks_what_differs(script, most):
    lines = script.read_text().splitlines()
    assert len(lines) <= most
    marked = [line for line in lines if line.endswith("# gradwire")]
    assert any("gradwire.attach(" in line for line in marked)
    # `Handle` in a signature aside, nothing of gradwire hides in an unmarked line
    unmarked = [line for line in lines if "handle." in line and line not in marked]
    assert unmarked == []
