"""The experiment `accuracy`: train a task with one set-up after the other and write a record as each run ends.

Started again with the same file, runs that are in it at this commit are not made again; a run that was cut off goes on
from its last epoch if there is a folder for checkpoints.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gradwire.core import environment, records
from gradwire.core.records import Quantiles, Record
from gradwire.laboratory.bench.sweep import key
from gradwire.laboratory.bench.tasks.base import Data
from gradwire.laboratory.bench.training import History, Plan, open_data
from gradwire.laboratory.bench.virtual import Trainer
from gradwire.planner.training import KIND

BACKEND = "virtual workers on one device"
OnStart = Callable[[Plan, bool], None]
OnProgress = Callable[[Plan, History], None]
Opened = dict[tuple[str, bool, str], Data]


@dataclass(frozen=True, kw_only=True)
class Study:
    """Runs, in order, and the command that makes them."""

    plans: tuple[Plan, ...]
    command: str
    data_dir: Path | None = None
    checkpoints: Path | None = None

    def run(
        self,
        path: Path | None = None,
        on_start: OnStart = lambda plan, runs: None,
        on_progress: OnProgress = lambda p, h: None,
    ) -> Iterator[Record]:
        """Each run's record, old ones too; new ones are appended to `path` as they are made.

        `on_start` is told of each run before it begins (True) or is found in the file (False).
        """
        opened: Opened = {}
        done = self.done(path)
        for plan in self.plans:
            record = self.one(plan, done, opened, on_start, on_progress)
            if path is not None and record not in done.values():
                records.append(path, [record])
            yield record

    def done(self, path: Path | None) -> dict[str, Record]:
        """The runs of this commit that are in a file, by their parameters."""
        commit, _ = environment.commit()
        known = records.load(path) if path is not None and path.exists() else []
        return {key(r.what): r for r in known if r.kind == KIND and r.commit == commit}

    def one(
        self, plan: Plan, done: Mapping[str, Record], opened: Opened, on_start: OnStart, on_progress: OnProgress
    ) -> Record:
        """One run, or what is known of it."""
        data = self._data(plan, opened)
        old = done.get(key(plan.what(data.origin)))
        on_start(plan, old is None)
        return self._train(plan, data, on_progress) if old is None else old

    def _data(self, plan: Plan, opened: Opened) -> Data:
        """Loaded once for all runs of a task."""
        place = (plan.task, plan.synthetic, plan.device)
        if place not in opened:
            opened[place] = open_data(plan, self.data_dir)
        return opened[place]

    def _train(self, plan: Plan, data: Data, on_progress: OnProgress) -> Record:
        trainer = Trainer(plan, data=data)
        what = plan.what(data.origin)
        name = hashlib.blake2b(key(what).encode(), digest_size=8).hexdigest()
        saved = None if self.checkpoints is None else self.checkpoints / f"{plan.task}-{name}.pt"
        trainer.run(lambda history: on_progress(plan, history), saved)
        if saved is not None:
            saved.unlink(missing_ok=True)
        return to_record(what, trainer.task.metric.unit, trainer.history.quality, trainer.outcome(), self.command)


def to_record(
    what: dict[str, Any], unit: str, quality: Sequence[float], outcome: dict[str, Any], command: str
) -> Record:
    """One run."""
    commit, dirty = environment.commit()
    return Record(
        kind=KIND,
        what=what,
        command=command,
        time=environment.now(),
        commit=commit,
        dirty=dirty,
        environment=environment.fingerprint(BACKEND),
        unit=unit,
        quantiles=Quantiles.of(quality),
        samples=tuple(quality),
        outcome=outcome,
    )
