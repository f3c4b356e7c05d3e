"""A finding of a paper, and what our records say of it: confirmed, contradicted, or open.

The rule of each finding is code over records, with named thresholds; nothing is typed in by hand. Where the records
that a rule needs are not there, it is open and says which. Times are modelled, or their published rounds a second are
set beside the rounds that we needed; each finding says which.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from gradwire.core.baselines import FP16, FP32
from gradwire.core.records import Record
from gradwire.laboratory.reproduce.claim import CONTRADICTED
from gradwire.planner.spec import keeps, same, short
from gradwire.planner.training import Run, readable
from gradwire.planner.tta import Group, groups, setups, slack

CONFIRMED, OPEN = "confirmed", "open"
VERDICTS = (CONFIRMED, CONTRADICTED, OPEN)
NO_RECORD = "no record yet"


@dataclass(frozen=True)
class Judged:
    """`measured` are the numbers, `why` the sentence, `files` where the records lie."""

    verdict: str
    measured: str
    why: str
    files: tuple[str, ...] = ()


def judge(holds: bool, measured: str, why: str, files: Iterable[str] = ()) -> Judged:
    """By a rule that could be applied."""
    return Judged(CONFIRMED if holds else CONTRADICTED, measured, why, tuple(dict.fromkeys(files)))


def left_open(wanted: str, measured: str = "-", files: Iterable[str] = ()) -> Judged:
    """`wanted`: what is missing."""
    return Judged(OPEN, measured, f"{NO_RECORD}: {wanted}", tuple(dict.fromkeys(files)))


@dataclass(frozen=True, kw_only=True)
class Finding:
    """`says` is the claim in our words, `where` its place in the paper, `rule` what decides."""

    id: str
    says: str
    where: str
    rule: str
    check: Callable[[Evidence], Judged]


@dataclass(frozen=True)
class Trained:
    """The trainings of one task in one set-up."""

    name: str
    groups: tuple[Group, ...]
    files: tuple[str, ...]

    @property
    def unit(self) -> str:
        return self.groups[0].first.record.unit

    @property
    def higher(self) -> bool:
        return self.groups[0].first.higher_is_better

    def find(self, codec: str, memory: bool | None = None) -> Group | None:
        """Without a controller; the best, if settings such as the learning rate were varied.

        `memory`: with one, without, or None for the codec's own choice.
        """
        found = [g for g in self.groups if g.first.controller is None and same(g.first.what["codec"], codec)]
        wanted = keeps(codec) if memory is None else memory
        fitting = [g for g in found if (g.first.memory != "none") is wanted]
        chosen = fitting or (found if memory is None else [])
        return max(chosen, key=lambda g: g.best if self.higher else -g.best) if chosen else None

    def steered(self, controller: str) -> list[Group]:
        """Those under a controller of that name."""
        return [g for g in self.groups if (g.first.controller or "").partition("(")[0] == controller]

    @property
    def fp16(self) -> Group | None:
        return self.find(FP16)

    @property
    def fp32(self) -> Group | None:
        return self.find(FP32)

    @property
    def baseline(self) -> Group | None:
        return self.fp16 or self.fp32

    @cached_property
    def codecs(self) -> list[Group]:
        """All that compress, with the memory of their own choice, no controllers."""
        specs = {short(g.first.what["codec"]) for g in self.groups if g.first.controller is None} - {FP16, FP32, "bf16"}
        return [found for spec in sorted(specs) if (found := self.find(spec)) is not None]

    def gain(self, group: Group, over: Group) -> float:
        """How much better than another: in points, or as a share where the unit is not percent."""
        difference = (group.best - over.best) * (1 if self.higher else -1)
        return difference if self.unit == "%" else difference / abs(over.best)

    def close(self, group: Group, to: Group) -> bool:
        """No worse than what still counts as equal; better is close, too."""
        worse = (to.best - group.best) * (1 if self.higher else -1)
        return worse <= slack(to.best, self.unit) + 1e-9

    def told(self, gain: float) -> str:
        return f"{gain:+.2f} points" if self.unit == "%" else f"{100 * gain:+.1f} %"

    def quality(self, group: Group) -> str:
        """With its range over seeds."""
        bests = group.bests()
        spread = f" ({min(bests):.2f} to {max(bests):.2f})" if len(bests) > 1 else ""
        return f"{group.best:.2f} {self.unit}{spread}"


@dataclass(frozen=True)
class Evidence:
    """All that findings draw on. `records`: with the names of their files.

    `predict` is the performance model; `throughput` gives rounds a second of a paper's model with a setting of it, and
    whether that is more than a guess.
    """

    records: Sequence[tuple[str, Record]] = ()
    predict: Callable[..., Any] | None = None
    throughput: Callable[[str, Any], tuple[float, bool] | None] = field(default=lambda model, setting: None)
    kept: dict[str, Any] = field(default_factory=dict, repr=False)  # answers of `predict`, for those who ask again

    @cached_property
    def all(self) -> list[Trained]:
        """Every task in every set-up."""
        files = {id(record): file for file, record in self.records}
        runs = [Run.of(r) for _, r in self.records if readable(r)]
        return [
            Trained(found[0].task, tuple(groups(found)), tuple(dict.fromkeys(files[id(r.record)] for r in found)))
            for found in setups(runs).values()
        ]

    @cached_property
    def tasks(self) -> dict[str, Trained]:
        """Each task in the set-up with the most trainings."""
        return {name: found for t in self.all if (found := self.task(name := t.name)) is not None}

    def task(self, name: str, wanted: Sequence[str] = ()) -> Trained | None:
        """In the set-up with the most of the `wanted` codecs, and of trainings."""
        found = [t for t in self.all if t.name == name]
        return max(found, key=lambda t: (sum(t.find(c) is not None for c in wanted), len(t.groups)), default=None)

    def of_model(self, prefix: str) -> Trained | None:
        """The first task whose model's name begins so."""
        found = (t for t in self.tasks.values() if str(t.groups[0].first.what.get("model", "")).startswith(prefix))
        return next(found, None)


def correlation(xs: Sequence[float], ys: Sequence[float]) -> float:
    """Spearman's: of ranks, where equals share theirs.

    >>> correlation([1, 2, 3, 4], [10, 20, 30, 40]), correlation([1, 2, 3], [3, 2, 1])
    (1.0, -1.0)
    """
    a, b = _ranks(xs), _ranks(ys)
    middle = (len(a) + 1) / 2
    together = sum((x - middle) * (y - middle) for x, y in zip(a, b, strict=True))
    apart = (sum((x - middle) ** 2 for x in a) * sum((y - middle) ** 2 for y in b)) ** 0.5
    return together / apart if apart else 0.0


def _ranks(values: Sequence[float]) -> list[float]:
    ordered = sorted(values)
    return [ordered.index(v) + (ordered.count(v) + 1) / 2 for v in values]
