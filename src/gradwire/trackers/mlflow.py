"""MLflow, through its client: a run that the caller has open stays as it is.

A name may hold letters, digits, underscores, dashes, dots, spaces, colons and slashes there; whatever else is in one
becomes an underscore.
"""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from typing import Any

from gradwire.trackers.tracker import Tracker, load_package

METRICS, PARAMS = 1000, 100  # the most that one call to a tracking server may carry


class MLflow(Tracker):
    """A new run of `experiment`, which is made if there is none."""

    def __init__(self, experiment: str) -> None:
        self._entities = load_package("mlflow.entities", "mlflow")
        self._client = load_package("mlflow", "mlflow").MlflowClient()
        found = self._client.get_experiment_by_name(experiment)
        where = self._client.create_experiment(experiment) if found is None else found.experiment_id
        self._run = self._client.create_run(where).info.run_id
        self._open = True

    def log(self, step: int, values: Mapping[str, float]) -> None:
        now = int(time.time() * 1000)
        metrics = [self._entities.Metric(_name(n), float(value), now, step) for n, value in values.items()]
        for i in range(0, len(metrics), METRICS):
            self._client.log_batch(self._run, metrics=metrics[i : i + METRICS])

    def config(self, values: Mapping[str, Any]) -> None:
        params = [self._entities.Param(_name(n), str(value)) for n, value in values.items()]
        for i in range(0, len(params), PARAMS):
            self._client.log_batch(self._run, params=params[i : i + PARAMS])

    def close(self, *, failed: bool = False) -> None:
        if self._open:
            self._client.set_terminated(self._run, status="FAILED" if failed else "FINISHED")
            self._open = False


def _name(name: str) -> str:
    return re.sub(r"[^\w. :/-]", "_", name)
