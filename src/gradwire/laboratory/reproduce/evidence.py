"""What claims are checked against: trainings by task and set-up, the performance model, and the published study.

Noise is that of seeds (`planner.quality.seed_noise`), or that of the model (`planner.advisor.shipped_accuracy`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from statistics import fmean
from typing import Any

from gradwire.core.baselines import FP16, FP32
from gradwire.core.records import Record, load, quantile
from gradwire.laboratory.reproduce import throughput as published
from gradwire.laboratory.reproduce.claim import Sure, at_least
from gradwire.laboratory.reproduce.ours import shipped_predict
from gradwire.laboratory.reproduce.study import Study
from gradwire.planner import luck
from gradwire.planner.advisor import shipped_accuracy
from gradwire.planner.luck import Luck
from gradwire.planner.quality import DEVIATIONS, seed_noise
from gradwire.planner.seeds import Group, groups, setups, tuned
from gradwire.planner.spec import keeps, same, short
from gradwire.planner.training import KIND, Run, readable
from gradwire.planner.tta import slack

# what files of records begin with
CHECKED = ("accuracy", "collective", "curvature", "encode", "overlap", "step", "supports", "validation")
SUPPORTS = "supports"  # records of `gradwire bench supports`
CURVATURE = "curvature"  # of `gradwire bench curvature`
TRAININGS = (KIND, SUPPORTS, CURVATURE)  # kinds of records of what came of a training, of its gradients, of its loss
STRONG = 0.7  # a rank correlation from here on is a strong one


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
        """Without a controller; `tuned`, if settings such as the learning rate were varied.

        `memory`: with one, without, or None for the codec's own choice.
        """
        found = [g for g in self.groups if g.first.controller is None and same(g.first.what["codec"], codec)]
        wanted = keeps(codec) if memory is None else memory
        fitting = [g for g in found if (g.first.memory != "none") is wanted]
        chosen = fitting or (found if memory is None else [])
        return tuned(chosen) if chosen else None

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

    @cached_property
    def luck(self) -> Luck:
        """That of its seeds."""
        return luck.of(run for group in self.groups for run in group.runs)

    def gain(self, group: Group, over: Group) -> float:
        """How much better than another: in points, or as a share where the unit is not percent. Luck does not count."""
        own, others = (fmean(self.luck.bests(each)) for each in (group, over))
        difference = (own - others) * (1 if self.higher else -1)
        return difference if self.unit == "%" else difference / abs(others)

    def noise(self, group: Group, other: Group) -> float:
        """How much better or worse one may be than the other by its seeds alone, as `gain` counts it.

        Where nothing of its kind was trained twice, as much as still counts as equal is taken.
        """
        known, share = seed_noise(self.name), 1.0 if self.unit == "%" else 0.01
        pair = slack(1.0, self.unit) if known is None else share * known
        return pair * math.sqrt((1 / len(group.runs) + 1 / len(other.runs)) / 2)

    def close(self, group: Group, to: Group) -> Sure:
        """No worse than what still counts as equal; better is close, too."""
        worth = slack(to.best, self.unit)
        limit = worth if self.unit == "%" else worth / abs(to.best)
        return at_least(self.gain(group, to), -limit, self.noise(group, to))

    def better(self, group: Group, than: Group, by: float = 0.0) -> Sure:
        """Whether one is better, by so much and more than by seeds."""
        return at_least(self.gain(group, than), by, self.noise(group, than))

    def told(self, gain: float) -> str:
        return f"{gain:+.2f} points" if self.unit == "%" else f"{100 * gain:+.1f} %"

    def quality(self, group: Group) -> str:
        """With its range over seeds."""
        bests = group.bests()
        spread = f" ({min(bests):.2f} to {max(bests):.2f})" if len(bests) > 1 else ""
        return f"{group.best:.2f} {self.unit}{spread}"


@dataclass(frozen=True)
class Evidence:
    """All that checks draw on. `records`: trainings, with the names of their files; `study`: the one on utility.

    `predict` is the performance model; `throughput` gives rounds a second of a paper's model with a setting of it, and
    whether that is more than a guess.
    """

    records: Sequence[tuple[str, Record]] = ()
    study: Study = field(default_factory=Study)
    predict: Callable[..., Any] | None = None
    throughput: Callable[[str, Any], tuple[float, bool] | None] = field(default=lambda model, setting: None)
    kept: dict[str, Any] = field(default_factory=dict, repr=False)  # answers of `predict`, for those who ask again

    @cached_property
    def model_error(self) -> float:
        """By which share the model is usually wrong: on the throughputs of GPUs that are published, or on our hosts."""
        off = [
            abs(found[0] / rounds - 1)
            for setting in published.SETTINGS
            for model, rounds in setting.rounds_per_second.items()
            if (found := self.throughput(model, setting)) is not None
        ]
        return quantile(off, 0.5) if off else float(shipped_accuracy()["codecs"]["median"])

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


def checked(folder: Path) -> list[Path]:
    """The files of a folder that claims are checked against: others hold what was made to tune or to try."""
    return [file for kind in CHECKED for file in sorted(folder.glob(f"{kind}_*.jsonl"))]


def gathered(files: Iterable[Path]) -> Evidence:
    """From files of records, with the model that is shipped: what trainings say for claims, all else for the study."""
    from gradwire.laboratory.reproduce.testbed import modelled

    every = [(file.name, record) for file in files for record in load(file)]
    study = Study(records=[record for _, record in every if record.kind not in TRAININGS])
    trainings = [(name, record) for name, record in every if record.kind in TRAININGS]
    return Evidence(trainings, study, shipped_predict, modelled)


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


def strong(xs: Sequence[float], ys: Sequence[float], *, either_sign: bool = True) -> tuple[float, Sure]:
    """The rank correlation, and whether it is a strong one, by Fisher's interval for so many pairs.

    >>> strong(list(range(30)), list(range(30)))
    (1.0, True)
    >>> strong(list(range(30)), list(range(30, 0, -1)), either_sign=False)
    (-1.0, False)
    """
    found = correlation(xs, ys)
    spread = DEVIATIONS * 1.03 / math.sqrt(max(len(xs) - 3, 1))  # 1.03: for ranks (Fieller, Hartley and Pearson)
    middle = math.atanh(max(-1 + 1e-9, min(abs(found) if either_sign else found, 1 - 1e-9)))
    low, high = math.tanh(middle - spread), math.tanh(middle + spread)
    return found, True if low >= STRONG else False if high < STRONG else None


def _ranks(values: Sequence[float]) -> list[float]:
    ordered = sorted(values)
    return [ordered.index(v) + (ordered.count(v) + 1) / 2 for v in values]
