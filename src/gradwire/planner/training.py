"""One training as its record tells it, and its curve: quality over rounds, epochs and seconds.

A record of kind "accuracy" knows quality at each evaluation and how many rounds had passed; seconds come from a clock
(`gradwire.planner.clock`): measured in the run itself, or modelled for any cluster.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from gradwire.core.baselines import FP32
from gradwire.core.errors import ConfigError
from gradwire.core.records import AGAIN, Record
from gradwire.planner.spec import parameters, short

KIND = "accuracy"
NEEDED = ("metric", "higher_is_better", "rounds", "epochs")
MAKE = "make some: gradwire bench accuracy --record FILE"
NO_MEMORY = "none"
ANNEALED = 0.1  # of the largest learning rate, that an annealed schedule ends at or below
CHOSEN = "by the controller"  # the codec of a run that names none


@dataclass(frozen=True)
class Point:
    """One evaluation."""

    seconds: float
    rounds: int
    epoch: float
    quality: float


@dataclass(frozen=True)
class Reached:
    """When a target was met: between two evaluations, on the straight line through them."""

    seconds: float
    rounds: float


@dataclass(frozen=True)
class Curve:
    """Quality over time."""

    points: tuple[Point, ...]
    higher_is_better: bool

    def better(self, one: float, other: float) -> bool:
        return one > other if self.higher_is_better else one < other

    @property
    def best(self) -> float:
        qualities = [p.quality for p in self.points]
        return max(qualities) if self.higher_is_better else min(qualities)

    @property
    def final(self) -> float:
        return self.points[-1].quality

    def rolling(self, rounds: int) -> Curve:
        """Each point with the mean quality of the last `rounds` rounds; 0 leaves every evaluation as it is."""
        if rounds < 0:
            raise ConfigError(f"tta: a rolling average is over 0 or more rounds, got {rounds}; 0 leaves it out")
        averaged = []
        for point in self.points:
            window = [p.quality for p in self.points if point.rounds - max(rounds, 1) < p.rounds <= point.rounds]
            averaged.append(replace(point, quality=sum(window) / len(window)))
        return replace(self, points=tuple(averaged))

    def stopped(self, patience: float, min_delta: float = 0.0) -> Curve:
        """Up to its `end`; as published, early."""
        end = self.end(patience, min_delta)
        return self if end is None else replace(self, points=self.points[: end + 1])

    def end(self, patience: float, min_delta: float = 0.0) -> int | None:
        """The first point at which `patience` epochs have brought no improvement of more than `min_delta`."""
        if patience <= 0 or min_delta < 0:
            raise ConfigError(
                f"tta: early stopping needs a patience above 0 epochs and a `min_delta` of at least 0, "
                f"got {patience:g} and {min_delta:g}"
            )
        record = self.points[0]
        for number, point in enumerate(self.points):
            gain = (point.quality - record.quality) * (1 if self.higher_is_better else -1)
            if gain > min_delta:
                record = point
            elif point.epoch - record.epoch >= patience:
                return number
        return None


def time_to(curve: Curve, target: float) -> Reached | None:
    """When the target is met for the first time; None: never. Before the first evaluation nothing is known."""
    before: Point | None = None
    for point in curve.points:
        if not curve.better(target, point.quality):
            if before is None or point.quality == before.quality:
                return Reached(point.seconds, point.rounds)
            share = (target - before.quality) / (point.quality - before.quality)
            return Reached(
                before.seconds + share * (point.seconds - before.seconds),
                before.rounds + share * (point.rounds - before.rounds),
            )
        before = point
    return None


@dataclass(frozen=True)
class Run:
    """One record, checked."""

    record: Record

    @classmethod
    def of(cls, record: Record) -> Run:
        if record.kind != KIND:
            raise ConfigError(f"tta: a record of kind {KIND} was wanted, got {record.kind}; {MAKE}")
        record.check(what=("task", "codec"), outcome=NEEDED)
        lengths = {len(record.samples), len(record.outcome["rounds"]), len(record.outcome["epochs"])}
        if lengths == {0} or len(lengths) > 1:
            raise ConfigError(
                f"tta: {record.what['task']} with {record.what['codec']} has {len(record.samples)} evaluations and "
                f"{len(record.outcome['rounds'])} numbers of rounds; {AGAIN}"
            )
        return cls(record)

    @property
    def what(self) -> Mapping[str, Any]:
        return self.record.what

    @property
    def outcome(self) -> Mapping[str, Any]:
        return self.record.outcome

    @property
    def task(self) -> str:
        return str(self.what["task"])

    @property
    def codec(self) -> str:
        found = self.what["codec"]
        return CHOSEN if found is None else short(str(found))

    @property
    def carried(self) -> str:
        """The codec of tensors that no level is recorded of: a controller's own, or none."""
        if self.codec != CHOSEN:
            return self.codec
        return str(dict(parameters(self.controller or FP32)[1]).get("codec") or FP32)

    @property
    def memory(self) -> str:
        return short(str(self.what.get("memory") or NO_MEMORY))

    @property
    def controller(self) -> str | None:
        found = self.what.get("controller")
        return None if found is None else str(found)

    @property
    def seed(self) -> int:
        return int(self.what.get("seed", 0))

    @property
    def workers(self) -> int:
        return int(self.what.get("workers", 1))

    @property
    def higher_is_better(self) -> bool:
        return bool(self.outcome["higher_is_better"])

    @property
    def annealed(self) -> bool:
        """Whether the learning rate ends at a tenth of its largest, or below."""
        rates: Sequence[float] = self.outcome.get("learning_rates") or []
        return bool(rates) and rates[-1] <= ANNEALED * max(rates)

    @property
    def measured(self) -> bool:
        """Whether its seconds are those of a cluster."""
        return str(self.outcome.get("clock", "")).startswith("measured") and bool(self.outcome.get("seconds"))

    @property
    def bits_per_element(self) -> float | None:
        """That a worker hands over, on average over the run."""
        return _ratio(8.0 * _last(self.outcome.get("payload_bytes")), self.outcome)

    def sent(self, number: int) -> float | None:
        """Bytes a worker sent in a round before evaluation `number`; None: not recorded."""
        total, rounds = ([0, *(self.outcome.get(name) or ())] for name in ("sent_bytes", "rounds"))
        if len(total) != len(rounds) or rounds[number + 1] == rounds[number]:
            return None
        return float((total[number + 1] - total[number]) / (rounds[number + 1] - rounds[number]))

    @property
    def nmse(self) -> float | None:
        """Of the reduced gradient, on average over the evaluations that have it."""
        return mean(v for v in self.outcome.get("nmse") or () if v is not None)

    @property
    def floats(self) -> float | None:
        """That a worker hands over in the whole run."""
        sent = self.outcome.get("floats_sent")
        return float(sent[-1]) if sent else None

    def curve(self, seconds: Sequence[float]) -> Curve:
        """With the seconds at each evaluation."""
        rows = zip(seconds, self.outcome["rounds"], self.outcome["epochs"], self.record.samples, strict=True)
        return Curve(tuple(Point(float(s), int(r), float(e), float(q)) for s, r, e, q in rows), self.higher_is_better)

    def by_rounds(self) -> Curve:
        """Where rounds stand for time."""
        return self.curve([float(r) for r in self.outcome["rounds"]])


def readable(record: Record) -> bool:
    """Whether a record is one of a training."""
    try:
        Run.of(record)
    except ConfigError:
        return False
    return True


def latest(runs: Iterable[Run]) -> list[Run]:
    """Each training once: of those alike in everything, the seed included, the one that was made last."""
    found: dict[str, Run] = {}
    for run in runs:
        kept = found.setdefault(json.dumps(run.what, sort_keys=True), run)
        if kept.record.time <= run.record.time:
            found[json.dumps(run.what, sort_keys=True)] = run
    return list(found.values())


def mean(values: Iterable[float]) -> float | None:
    """None of nothing."""
    found = list(values)
    return sum(found) / len(found) if found else None


def _last(values: Sequence[float] | None) -> float:
    return float(values[-1]) if values else 0.0


def _ratio(bits: float, outcome: Mapping[str, Any]) -> float | None:
    rounds, parameters = outcome["rounds"][-1], outcome.get("parameters")
    return bits / (rounds * parameters) if bits and rounds and parameters else None
