"""Do two stochastic gradients agree on which coordinates are their largest? A training that looks on its way.

A task is trained without compression on virtual workers. In some rounds of each epoch the largest coordinates of every
worker's gradient are noted, and of the mean. Then pairs are compared: which share of the one's are the other's, too?

- two workers in one round: the same weights, other examples;
- one worker in two rounds of an epoch: the weights have moved, too;
- the mean of all workers in two rounds: as one worker, with so many times as large a batch.

Sets drawn by chance would have `share` of their coordinates in common.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import torch
from torch import Tensor

from gradwire.core.errors import ConfigError
from gradwire.core.records import Record
from gradwire.core.registry import Check
from gradwire.laboratory.bench import training
from gradwire.laboratory.bench.looking import Looking
from gradwire.laboratory.bench.tasks.base import Batch
from gradwire.laboratory.bench.virtual import Trainer

WORKERS, WORKER, MEAN = "two workers in one round", "one worker in two rounds", "the mean in two rounds"
PAIRS = (WORKERS, WORKER, MEAN)


@dataclass(frozen=True, kw_only=True)
class Plan(Looking):
    """What to train, and when to look.

    Args:
        share: of all coordinates that count as the largest.
        epochs: after which to stop; learning rates are those of the task's whole schedule.
        rounds: to look at, evenly over an epoch.
    """

    kind: ClassVar[str] = "supports"
    share: float = 0.1
    epochs: int = 1
    rounds: int = 10

    def __post_init__(self) -> None:
        check = Check("bench supports")
        check.share("share", self.share)
        check.integer("epochs", self.epochs, 1, self.run.recipe.epochs)
        for name in ("rounds", "workers"):
            check.integer(name, getattr(self, name), 2)  # a pair of either

    @property
    def options(self) -> str:
        return f"--share {self.share:g} --epochs {self.epochs} --rounds {self.rounds}"


def largest(values: Tensor, share: float) -> Tensor:
    """Which coordinates are among the largest, sign aside; of equals, either may be.

    >>> largest(torch.tensor([3.0, -4.0, 0.0, 1.0]), share=0.5).tolist()
    [True, True, False, False]
    """
    chosen = values.abs().topk(max(1, round(share * values.numel())), sorted=False).indices
    return torch.zeros(values.shape, dtype=torch.bool, device=values.device).scatter_(-1, chosen, True)


def common(one: Tensor, other: Tensor) -> float:
    """Which share of a set is in another one of the same size.

    >>> common(torch.tensor([True, True, False]), torch.tensor([False, True, True]))
    0.5
    """
    return int((one & other).sum()) / int(one.sum())


class Watched(Trainer):
    """A training that notes the largest coordinates in some rounds."""

    def __init__(self, plan: Plan, data_dir: Path | None = None) -> None:
        super().__init__(plan.run, data_dir)
        self.share, self.last = plan.share, plan.epochs
        count = min(plan.rounds, self.steps)
        if count < 2:
            raise ConfigError("bench supports: an epoch has one round, and two are compared; take a smaller batch")
        self.noted = {round(i * (self.steps - 1) / (count - 1)) for i in range(count)}
        self.sets: list[list[Tensor]] = []  # a round: of each worker, then of the mean

    def _over(self) -> bool:
        return self._epoch >= self.last or super()._over()

    def _rows(self, group: Sequence[Sequence[Batch]]) -> tuple[Tensor, Tensor]:
        rows, loss = super()._rows(group)
        if self._rounds in self.noted:
            self.sets.append([largest(row, self.share) for row in (*rows, rows.mean(0))])
        return rows, loss

    def seen(self) -> dict[str, tuple[float, ...]]:
        """Of the rounds that were noted since the last call."""
        rounds, self.sets = self.sets, []
        twice = list(itertools.combinations(rounds, 2))
        each = range(self.plan.workers)
        return {
            WORKERS: tuple(common(a, b) for sets in rounds for a, b in itertools.combinations(sets[:-1], 2)),
            WORKER: tuple(common(one[w], other[w]) for one, other in twice for w in each),
            MEAN: tuple(common(one[-1], other[-1]) for one, other in twice),
        }


def measure(
    plan: Plan, data_dir: Path | None = None, on_epoch: Callable[[Record], None] = lambda record: None
) -> list[Record]:
    """Train, and look: one record an epoch.

    Args:
        plan: what to measure.
        data_dir: where the data set lies; None: in the cache, downloaded if need be.
        on_epoch: is given each, as soon as it is there.
    """
    watched, found = Watched(plan, data_dir), list[Record]()

    def look(history: training.History) -> None:
        found.append(_record(plan, watched, len(found), history.quality[-1]))
        on_epoch(found[-1])

    watched.run(look)
    return found


def _record(plan: Plan, watched: Watched, epoch: int, quality: float) -> Record:
    pairs, recipe = watched.seen(), watched.recipe
    return plan.record(
        watched,
        {"epoch": epoch, "share": plan.share},
        f"share of the largest coordinates that is common to {WORKER}",
        pairs[WORKER],
        {
            "pairs": {kind: list(shares) for kind, shares in pairs.items()},
            "quality": quality,
            "learning_rates": [training.rate(recipe, epoch), training.rate(recipe, epoch + 1)],
        },
    )
