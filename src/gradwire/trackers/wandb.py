"""Weights & Biases. ``WANDB_MODE=offline`` writes a folder that ``wandb sync`` sends later."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gradwire.trackers.tracker import Tracker, load_package


class WeightsAndBiases(Tracker):
    """A new run of `project`."""

    def __init__(self, project: str) -> None:
        self._run = load_package("wandb", "wandb").init(project=project)

    def log(self, step: int, values: Mapping[str, float]) -> None:
        self._run.log({name: float(value) for name, value in values.items()}, step=step)

    def config(self, values: Mapping[str, Any]) -> None:
        self._run.config.update(dict(values))

    def close(self, *, failed: bool = False) -> None:
        run, self._run = self._run, None
        if run is not None:
            run.finish(exit_code=1 if failed else 0)
