"""A training without compression that looks on its way: what its plan has and what its records say."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from gradwire.core import environment
from gradwire.core.records import Quantiles, Record
from gradwire.laboratory.bench import training
from gradwire.laboratory.bench.virtual import Trainer

SETTING = ("task", "model", "data", "workers", "batch", "epochs", "seed", "precision")  # of the training's record


@dataclass(frozen=True, kw_only=True)
class Looking:
    """What to train. Whoever looks adds when, and says what else is on its command line.

    Args:
        task: of `gradwire bench accuracy`.
        workers: virtual ones.
        batch: examples of a worker; None: the task's.
        seed: of weights, order of examples, augmentation.
        device: "cpu" or "cuda".
        synthetic: tiny made-up data.
    """

    kind: ClassVar[str]  # of its records, and the name of its command behind `gradwire bench`
    task: str
    workers: int = 4
    batch: int | None = None
    seed: int = 0
    device: str = "cpu"
    synthetic: bool = False

    @property
    def schedule(self) -> int | None:
        """Epochs of the whole training; None: the task's."""
        return None

    @property
    def options(self) -> str:
        """Its own part of the command line."""
        raise NotImplementedError

    @property
    def run(self) -> training.Plan:
        """The training."""
        return training.Plan(
            task=self.task,
            codec="none",
            workers=self.workers,
            batch=self.batch,
            epochs=self.schedule,
            seed=self.seed,
            device=self.device,
            synthetic=self.synthetic,
        )

    @property
    def command(self) -> str:
        """The command line that makes the same measurement."""
        unusual = (f" --batch {self.batch}" if self.batch else "") + (" --synthetic" if self.synthetic else "")
        return (
            f"gradwire bench {self.kind} --task {self.task} {self.options} --workers {self.workers}{unusual} "
            f"--seed {self.seed} --device {self.device}"
        )

    def record(
        self,
        trainer: Trainer,
        what: Mapping[str, object],
        unit: str,
        samples: Sequence[float],
        outcome: Mapping[str, Any],
    ) -> Record:
        """What one look has found, in `unit`s, and what else there is to say of it."""
        commit, dirty = environment.commit()
        trained = trainer.plan.what(trainer.data.origin)
        return Record(
            kind=self.kind,
            what={**what, **{name: trained[name] for name in SETTING}},
            command=self.command,
            time=environment.now(),
            commit=commit,
            dirty=dirty,
            environment=environment.fingerprint("virtual workers"),
            unit=unit,
            quantiles=Quantiles.of(samples),
            samples=tuple(samples),
            outcome=dict(outcome),
        )
