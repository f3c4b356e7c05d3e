"""Trainings that differ in nothing but their seed, and how their curves are read."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from gradwire.planner.clock import Clock, Times
from gradwire.planner.training import Curve, Run, latest


@dataclass(frozen=True)
class Options:
    """How curves are read: the published ones are averaged over thousands of rounds, and stopped early."""

    rolling: int = 0  # rounds
    patience: float | None = None  # epochs
    min_delta: float = 0.0

    def of(self, curve: Curve) -> Curve:
        curve = curve.rolling(self.rolling)
        return curve if self.patience is None else curve.stopped(self.patience, self.min_delta)


AS_IT_IS = Options()
SETUP = ("task", "data", "workers", "batch", "epochs", "precision")  # what runs have in common that may be compared


@dataclass(frozen=True)
class Group:
    """Runs that differ in their seed alone."""

    runs: tuple[Run, ...]

    @property
    def first(self) -> Run:
        return self.runs[0]

    @property
    def name(self) -> str:
        """Codec or controller, and memory."""
        run = self.first
        told = run.controller or run.codec
        return told if run.memory == "none" else f"{told}, {run.memory}"

    @property
    def seeds(self) -> tuple[int, ...]:
        return tuple(r.seed for r in self.runs)

    def curves(self, clock: Clock | None, options: Options) -> tuple[list[Curve], Times | None]:
        """One a seed, and what the clock says of the first. Without a clock, rounds are the seconds."""
        if clock is None:
            return [options.of(r.by_rounds()) for r in self.runs], None
        found = [clock.times(r) for r in self.runs]
        curves = [options.of(r.curve(t.seconds)) for r, t in zip(self.runs, found, strict=True) if t.seconds]
        return curves, found[0]

    def bests(self, options: Options = AS_IT_IS) -> list[float]:
        return [options.of(r.by_rounds()).best for r in self.runs]

    @property
    def best(self) -> float:
        """Mean over seeds."""
        return sum(self.bests()) / len(self.runs)


def setups(runs: Iterable[Run]) -> dict[tuple[Any, ...], list[Run]]:
    """Runs that may be compared with each other."""
    found: dict[tuple[Any, ...], list[Run]] = {}
    for run in runs:
        found.setdefault(tuple(run.what.get(k) for k in SETUP), []).append(run)
    return found


def groups(runs: Iterable[Run]) -> list[Group]:
    """Runs that differ in nothing but their seed, each seed's latest, in the order of the first."""
    found: dict[str, list[Run]] = {}
    for run in latest(runs):
        found.setdefault(_but_for(run, "seed"), []).append(run)
    return [Group(tuple(sorted(alike, key=lambda run: run.seed))) for alike in found.values()]


def by_rate(found: Iterable[Group]) -> list[list[Group]]:
    """Groups that differ in nothing but the learning rate, in the order of the first."""
    alike: dict[str, list[Group]] = {}
    for group in found:
        alike.setdefault(_but_for(group.first, "seed", "learning_rate"), []).append(group)
    return list(alike.values())


def _but_for(run: Run, *names: str) -> str:
    return json.dumps({k: v for k, v in run.what.items() if k not in names}, sort_keys=True)


def tuned(found: Iterable[Group]) -> Group:
    """Of groups that differ in settings such as the learning rate: the best of those with most seeds.

    A setting is chosen by one seed, and the others then say what it is worth: a lucky seed of another one does not.
    """
    return max(found, key=lambda g: (len(g.runs), g.best if g.first.higher_is_better else -g.best))
