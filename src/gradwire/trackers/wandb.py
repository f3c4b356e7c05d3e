"""Weights & Biases. ``WANDB_MODE=offline`` writes a folder that ``wandb sync`` sends later.

Its own step may not go back, and what comes with an earlier one is dropped without a word. Several trainings in one run
each begin at 0, so steps are a quantity of ours here, and the axis of all others.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gradwire.trackers.tracker import Tracker, load_package

STEP = "step"


class WeightsAndBiases(Tracker):
    """A new run of `project`."""

    def __init__(self, project: str) -> None:
        self._run = load_package("wandb", "wandb").init(project=project)
        self._run.define_metric("*", step_metric=STEP)

    def log(self, step: int, values: Mapping[str, float]) -> None:
        self._run.log({STEP: step, **{name: float(value) for name, value in values.items()}})

    def config(self, values: Mapping[str, Any]) -> None:
        self._run.config.update(dict(values))

    def close(self, *, failed: bool = False) -> None:
        run, self._run = self._run, None
        if run is not None:
            run.finish(exit_code=1 if failed else 0)
