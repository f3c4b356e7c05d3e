"""A job under the eyes of `gradwire doctor`: started with a folder first on PYTHONPATH, and waited for.

The folder's `sitecustomize` waits in every Python process of the job for DDP to be imported. What ranks see they write
into a temporary folder.
"""

from __future__ import annotations

import os
import signal
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

from gradwire.core.errors import ConfigError
from gradwire.diagnosis import startup
from gradwire.diagnosis.watch import Watch

STDERR = 2  # its number
GLANCE = 0.2  # seconds after which to look again
FOLDER, WANTED = "GRADWIRE_DOCTOR", "GRADWIRE_DOCTOR_STEPS"  # in the environment of a job


@dataclass(frozen=True)
class Outcome:
    """How a job has ended, and what was seen of it."""

    code: int  # 128 + signal if one ended it
    watches: list[Watch]
    problems: tuple[str, ...] = ()  # why ranks could not be watched


def environment(folder: Path, steps: int, base: Mapping[str, str]) -> dict[str, str]:
    """What the job finds in its environment beside its own."""
    first = str(Path(next(iter(startup.__path__))))
    path = os.pathsep.join([first, *filter(None, [base.get("PYTHONPATH")])])
    return {**base, "PYTHONPATH": path, FOLDER: str(folder), WANTED: str(steps)}


def run(command: Sequence[str], steps: int, *, quiet: bool, when_seen: Callable[[list[Watch]], None]) -> Outcome:
    """Run a job to its end.

    Args:
        command: the program and its arguments.
        steps: to be watched.
        quiet: standard output is not for the job: it writes to standard error instead.
        when_seen: called once, while the job runs, when all ranks have told.
    """
    with tempfile.TemporaryDirectory(prefix="gradwire_doctor_") as name:
        folder = Path(name)
        try:
            job = subprocess.Popen(
                command, env=environment(folder, steps, os.environ), stdout=STDERR if quiet else None
            )
        except OSError as problem:
            raise ConfigError(f"doctor: cannot start {command[0]!r}: {problem.strerror}") from problem
        told = False
        with _passed_on(job):
            while job.poll() is None:
                _wait(job)
                watches = [] if told else read(folder)
                if watches and len(watches) == watches[0].ranks:
                    told = True
                    when_seen(watches)
        code = job.returncode
        problems = {file.read_text(encoding="utf-8") for file in folder.glob("*.problem")}
        return Outcome(code if code >= 0 else 128 - code, read(folder), tuple(sorted(problems)))


def _wait(job: subprocess.Popen[bytes]) -> None:
    try:
        job.wait(GLANCE)
    except subprocess.TimeoutExpired:
        return


@contextmanager
def _passed_on(job: subprocess.Popen[bytes]) -> Iterator[None]:
    """Signals that would end us go to the job; we end with it. (Ctrl-C reaches it from the terminal by itself.)"""

    def hand_on(number: int, frame: FrameType | None) -> None:
        if number != signal.SIGINT:
            job.send_signal(number)

    before = {n: signal.signal(n, hand_on) for n in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def read(folder: Path) -> list[Watch]:
    """What ranks have told, in order of rank."""
    found = [Watch.from_json(file.read_bytes()) for file in folder.glob("*.json")]
    return sorted(found, key=lambda w: w.rank)
