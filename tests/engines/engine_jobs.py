"""What tests of engines share: processes that carry a mark, the killing of one, and where a training ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import torch

REPOSITORY = Path(__file__).parents[2]
MARK = "GRADWIRE_ENGINES_TEST"  # in the environment of all that a test starts
STEPS, EVERY = 200, 5
FILES = ("model.pt", "compression_0_of_2.pt", "compression_1_of_2.pt")
LIMIT = 600.0  # seconds


def arguments(folder):
    """Of examples/train_ddp.py, with a codec that owes much."""
    return ["--codec", "topk(ratio=0.01)", "--steps", str(STEPS), "--save-every", str(EVERY), "--folder", str(folder)]


@dataclass(frozen=True)
class Process:
    """One that runs now."""

    pid: int
    title: str
    environment: dict[str, str]


class Marked:
    """Starts programs whose processes it finds again, however deep they are, and of which it leaves none behind."""

    def __init__(self, name):
        self.name = name
        self._started = []
        self.environment = {
            **os.environ,
            MARK: name,
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
            "OMP_NUM_THREADS": "1",
        }

    def start(self, command, log, **more):
        """Start a program that writes to the file `log`."""
        with log.open("a") as output:
            process = subprocess.Popen(
                list(map(str, command)),
                cwd=REPOSITORY,
                env=self.environment | more,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self._started.append(process)
        return process

    def processes(self):
        found = []
        for folder in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):
                entries = (folder / "environ").read_text(errors="replace").split("\0")
                environment = dict(entry.split("=", 1) for entry in entries if "=" in entry)
                if environment.get(MARK) == self.name:
                    title = (folder / "cmdline").read_text(errors="replace").replace("\0", " ").strip()
                    found.append(Process(int(folder.name), title, environment))
        return found

    def kill(self, wanted):
        """Kill the one process that is `wanted`."""
        (found,) = [p for p in self.processes() if wanted(p)]
        os.kill(found.pid, signal.SIGKILL)

    def kill_all(self, wanted):
        """Kill every process that is `wanted`."""
        found = [p for p in self.processes() if wanted(p)]
        assert found
        for process in found:
            os.kill(process.pid, signal.SIGKILL)

    def end(self):
        """Kill all."""
        until = time.monotonic() + 20
        while (left := self.processes()) and time.monotonic() < until:
            for process in left:
                with suppress(ProcessLookupError):
                    os.kill(process.pid, signal.SIGKILL)
            time.sleep(0.1)
        for process in self._started:
            process.wait()


def wait_for(condition, log):
    """Return when it holds; fail with what is in the file `log` if it never does."""
    until = time.monotonic() + LIMIT
    while not condition():
        assert time.monotonic() < until, log.read_text()[-4000:]
        time.sleep(0.05)


def steps_saved(folder):
    """Up to which step there is a checkpoint."""
    return max((int(path.name.removeprefix("step_")) for path in folder.glob("step_*")), default=0)


def ends_as(folder, wanted):
    """Whether two trainings have saved the same weights, optimizer and memories, bit for bit."""

    def load(root, name):
        return torch.load(root / f"step_{STEPS}" / name, weights_only=True)

    return all(equal(load(folder, name), load(wanted, name)) for name in FILES)


def equal(a, b):
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(equal(a[k], b[k]) for k in a)
    if isinstance(a, list):
        return len(a) == len(b) and all(map(equal, a, b))
    return torch.equal(a, b) if isinstance(a, torch.Tensor) else a == b
