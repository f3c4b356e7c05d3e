"""A training that nobody disturbs, and processes of which none is left."""

from __future__ import annotations

import subprocess
import sys

import pytest
from engine_jobs import REPOSITORY, Marked, arguments


@pytest.fixture(scope="session")
def undisturbed(tmp_path_factory):
    """The checkpoint of two workers of one torchrun, which all engines must end with."""
    folder = tmp_path_factory.mktemp("undisturbed") / "checkpoint"
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    subprocess.run([*launch, "examples/train_ddp.py", *arguments(folder)], cwd=REPOSITORY, check=True, timeout=600)
    return folder


@pytest.fixture
def marked(tmp_path):
    processes = Marked(str(tmp_path))
    yield processes
    processes.end()
    assert processes.processes() == []
