"""Seconds of a training: as they were measured in it, or modelled for any cluster from the time of one round.

Modelled: quality and rounds come from the record, the time of a round from `gradwire.planner.model.predict`. Under a
controller the levels of an interval between two evaluations count by their shares of tensors: the mean of the levels'
predicted rounds, which is exact where all tensors are at one level. Batches that a controller changed are predicted as
batches of that size. Where a training sent other bytes than its trace says, each interval sends what it did, scaled to
the cluster as the trace is: a codec's sizes may depend on the data, and traces are of noise, or it may begin otherwise.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from gradwire.core.errors import ConfigError, Incompatible, UnknownName
from gradwire.planner.model import HIERARCHICAL, SERVER, Prediction
from gradwire.planner.quantity import setting
from gradwire.planner.training import Run
from gradwire.planner.workload import AFTER, ANCHORS

DOUBTFUL = ("assumed", "inferred", "estimated")  # sources that an answer repeats
STRATEGIES = ("all_gather", HIERARCHICAL, SERVER)
SAME = 0.02  # by which bytes may differ that count as the same


@dataclass(frozen=True)
class Times:
    """Seconds from the start at each evaluation; None: cannot be modelled, `note` says why."""

    seconds: tuple[float, ...] | None
    a_round: float | None  # on average
    note: str = ""


class Clock(Protocol):
    """What gives a run its seconds."""

    @property
    def label(self) -> str: ...

    def times(self, run: Run) -> Times: ...

    def assumptions(self) -> list[str]: ...


@dataclass(frozen=True)
class Measured:
    """The run's own."""

    label: str

    @classmethod
    def of(cls, runs: Sequence[Run]) -> Measured:
        """Of runs that were all timed in the same place."""
        places = list(dict.fromkeys(str(r.outcome.get("clock", "no clock")) for r in runs))
        if not all(r.measured for r in runs) or len(places) > 1:
            raise ConfigError(
                f"tta: measured seconds are comparable within one place only, got {'; '.join(places)}; give --gpus and "
                "--bandwidth for modelled ones"
            )
        return cls(places[0])

    def times(self, run: Run) -> Times:
        seconds = tuple(float(s) for s in run.outcome["seconds"])
        return Times(seconds, seconds[-1] / run.outcome["rounds"][-1])

    def assumptions(self) -> list[str]:
        return []


@dataclass
class Modelled:
    """By `predict`, for one cluster. `setup`: gpus, bandwidth, hardware, … as `predict` takes them."""

    predict: Callable[..., Prediction]
    setup: Mapping[str, Any]
    model: str | None = None  # instead of the record's
    _asked: dict[tuple[tuple[str, Any], ...], Prediction] = field(default_factory=dict, repr=False)
    _doubts: dict[str, None] = field(default_factory=dict, repr=False)
    _workers: set[int] = field(default_factory=set, repr=False)

    @property
    def label(self) -> str:
        place = {k: v for k, v in self.setup.items() if k in ("gpus", "gpus_per_node", "bandwidth", "latency", "mode")}
        if place.get("gpus_per_node") == 1:
            del place["gpus_per_node"]
        hardware = self.setup.get("hardware", "h200")
        of = "" if self.model is None else f"rounds of {self.model}, "
        return f"modelled: {of}{getattr(hardware, 'name', hardware)}, {setting(place)}"

    def times(self, run: Run) -> Times:
        try:
            rounds = [0, *(int(r) for r in run.outcome["rounds"])]
            each = [self._interval(run, i) for i in range(len(rounds) - 1)]
        except (ConfigError, UnknownName, Incompatible) as problem:
            return Times(None, None, str(problem))
        self._workers.add(run.workers)
        passed, seconds = 0.0, []
        for i, one in enumerate(each):
            passed += one * (rounds[i + 1] - rounds[i])
            seconds.append(passed)
        return Times(tuple(seconds), passed / rounds[-1] if rounds[-1] else None)

    def seconds(self, run: Run, codec: str, batch: int, sent: float | None = None) -> float:
        """Of one round with one codec. `sent`: bytes a worker sent in it, which count where the trace has others."""
        strategy = str(run.what.get("strategy", "auto")).partition("(")[0]
        asked = {
            "model": self.model or str(run.what.get("model", "")),
            "codec": codec,
            "strategy": self.setup.get("strategy", strategy if strategy in STRATEGIES else "auto"),
            "batch": batch,
        }
        found = self._predicted(**asked)
        if self.model is not None or not (found.estimated or run.workers in ANCHORS):
            sent = None  # of another model, or with nothing exact to hold it against
        if sent:
            there = self._predicted(**asked, gpus=run.workers, gpus_per_node=1, mode=AFTER)
            ratio = float(f"{there.sent_bytes / sent:.3g}")
            found = self._predicted(**asked, ratio=ratio) if abs(ratio - 1) > SAME else found
        for i in found.inputs:
            if i.source.partition(":")[0] in DOUBTFUL and not (sent and i.name == "bytes"):
                of = f" of {found.codec}" if i.name == "bytes" else ""
                self._doubts[f"{i.name}{of} {i.value}: {i.source}"] = None
        return found.step_seconds

    def _predicted(self, **asked: Any) -> Prediction:
        """For the cluster, but for what is asked otherwise; found out once."""
        key = tuple(asked.items())
        if key not in self._asked:
            self._asked[key] = self.predict(**{**self.setup, **asked})
        return self._asked[key]

    def _interval(self, run: Run, number: int) -> float:
        """A round between two evaluations."""
        levels = (run.outcome.get("levels") or [None] * (number + 1))[number]
        sizes = run.outcome.get("batch_sizes")
        own = int(run.what.get("batch", 1))
        batch = int(self.setup.get("batch", own))
        if run.controller is not None and sizes:
            batch = max(1, round(batch * sizes[number] / (own * run.workers)))
        if not levels:
            return self.seconds(run, run.carried, batch, run.sent(number))
        total = sum(levels.values())
        return sum(self.seconds(run, codec, batch) * float(count / total) for codec, count in levels.items())

    def assumptions(self) -> list[str]:
        """What is not measured of it, and that rounds and seconds may be of different numbers of workers."""
        found = list(self._doubts)
        if self._workers - {self.setup.get("gpus")}:
            trained = " and ".join(str(w) for w in sorted(self._workers))
            found.insert(0, f"quality over rounds is that of {trained} workers, the time of a round of the cluster")
        return found
