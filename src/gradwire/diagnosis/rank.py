"""What a rank of a job under `gradwire doctor` does: its first DDP model is watched, and what was seen is a file."""

from __future__ import annotations

import atexit
import os
from contextlib import suppress
from pathlib import Path

from torch.nn.parallel import DistributedDataParallel

from gradwire.collectives import gloo_threads
from gradwire.diagnosis.job import FOLDER, WANTED
from gradwire.diagnosis.watch import Watch
from gradwire.diagnosis.watcher import STEPS, Watcher

_watchers: list[Watcher] = []
atexit.register(gloo_threads.rest)  # so that being watched aborts no rank


def made(model: DistributedDataParallel) -> None:
    """A model was wrapped in DDP on this rank."""
    if _watchers:
        _watchers[0].models += 1
    else:
        _watchers.append(Watcher(model, int(os.environ.get(WANTED, STEPS)), write))


def write(watch: Watch) -> None:
    """Keep what a rank saw where the command looks for it; on other hosts that folder is not there."""
    folder = Path(os.environ[FOLDER])
    if folder.is_dir():
        with suppress(OSError):
            draft = folder / f"{watch.rank}.draft"
            draft.write_text(watch.to_json(), encoding="utf-8")
            draft.replace(folder / f"{watch.rank}.json")
