"""examples/train_ddp.py under torchrun: it trains, and a resumed run ends where an uninterrupted one does."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parent.parent / "examples" / "train_ddp.py"


def train(folder, *arguments, workers=2):
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={workers}"]
    done = subprocess.run(
        [*command, str(SCRIPT), f"--folder={folder}", *arguments], capture_output=True, text=True, timeout=110
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@pytest.mark.dist
def test_a_resumed_run_ends_where_an_uninterrupted_one_does(tmp_path):
    whole = train(tmp_path / "whole", "--steps=20")
    train(tmp_path / "parts", "--steps=11")
    parts = train(tmp_path / "parts", "--steps=20", "--resume")
    assert [line for line in whole if line.startswith(("step 20", "held-out"))] == parts[:2]
    assert sorted(f.name for f in (tmp_path / "whole").iterdir()) == [
        "compression_0_of_2.pt",
        "compression_1_of_2.pt",
        "model.pt",
    ]


def test_the_example_is_short_and_marks_what_differs():
    lines = SCRIPT.read_text().splitlines()
    assert len(lines) <= 150
    marked = [line for line in lines if line.endswith("# gradwire")]
    assert any("gradwire.attach(" in line for line in marked)
    # `Handle` in a signature aside, nothing of gradwire hides in an unmarked line
    unmarked = [line for line in lines if "handle." in line and line not in marked]
    assert unmarked == []
