"""TensorBoard: event files in a folder, to look at with ``tensorboard --logdir FOLDER``."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from gradwire.trackers.tracker import Tracker, load_package

FLUSH_SECONDS = 10  # so that a run can be followed, and a crash costs little


class TensorBoard(Tracker):
    """`folder` is the run's own; one folder above it is what to point TensorBoard at."""

    def __init__(self, folder: str) -> None:
        module = load_package("torch.utils.tensorboard", "tensorboard")
        self._writer = module.SummaryWriter(log_dir=folder, flush_secs=FLUSH_SECONDS)

    def log(self, step: int, values: Mapping[str, float]) -> None:
        for name, value in values.items():
            self._writer.add_scalar(name, float(value), global_step=step)

    def config(self, values: Mapping[str, Any]) -> None:
        text = json.dumps(dict(values), indent=1, default=str)
        self._writer.add_text("config", "\n".join(f"    {line}" for line in text.splitlines()))

    def close(self, *, failed: bool = False) -> None:
        self._writer.close()
