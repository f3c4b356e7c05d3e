"""What trainings of ours say about a codec: how much quality it cost against FP16, on which task, and how sure that is.

The table `data/quality.json` is made from records by `docs/profiles.py`. A loss is in points of accuracy (or of a hit
rate), or in percent of a perplexity; a loss below zero is a gain. What one seed leaves open is told by seeds of other
codecs on the same task, or where those are few, on tasks of the same kind: their typical standard deviation, the
median's, gives each loss its margin. Codecs that fail spread far more than those that train, and say nothing about
them. The luck of a seed is taken off first (`luck`).
"""

from __future__ import annotations

import json
import math
import statistics
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from importlib.resources import files

from gradwire.core.baselines import FP16, FP32, MAX_LOSS, PERCENT_A_POINT
from gradwire.core.errors import ConfigError
from gradwire.planner import luck
from gradwire.planner.luck import Luck
from gradwire.planner.seeds import Group, groups, setups, tuned
from gradwire.planner.spec import keeps, same, short
from gradwire.planner.training import CHOSEN, NO_MEMORY, Run, latest

IMAGES, LANGUAGE, RECOMMENDATION, SEGMENTATION = "images", "language", "recommendation", "segmentation"
TASKS = (IMAGES, LANGUAGE, RECOMMENDATION, SEGMENTATION)
FAMILIES = {
    "resnet": IMAGES,
    "vgg": IMAGES,
    "densenet": IMAGES,
    "shapes": IMAGES,
    "bert": LANGUAGE,
    "gpt": LANGUAGE,
    "lstm": LANGUAGE,
    "ncf": RECOMMENDATION,
    "bpr": RECOMMENDATION,
    "unet": SEGMENTATION,
}
POINTS, PERPLEXITY = "points", "percent of the perplexity"
SAFE, LOSSY, UNTRIED = "safe", "lossy", "untried"
DEVIATIONS = 1.96  # to either side of the mean: 95 % of a normal distribution


@dataclass(frozen=True)
class Quality:
    """One codec on one task, beside FP16 (FP32 where there is none) of the same set-up."""

    task: str
    kind: str  # of task
    codec: str
    memory: str
    loss: float
    unit: str
    margin: float | None  # half of the 95 % interval; None: nothing of this kind was trained twice
    seeds: int
    rounds: int

    def exceeds(self, max_loss: float) -> bool:
        """Whether the loss is more than so many points, or twice as many percent of a perplexity.

        The mean over seeds counts, not the end of its interval, which one seed makes wider than the limit and which a
        perplexity does not have; whoever is told of a codec is told the margin.
        """
        return self.loss > max_loss * (PERCENT_A_POINT if self.unit == PERPLEXITY else 1.0)

    def __str__(self) -> str:
        margin = "" if self.margin is None else f" ± {self.margin:.1f}"
        where = f"{self.task}, {self.seeds} seed{'s' * (self.seeds > 1)}"
        if self.unit == PERPLEXITY:
            return f"perplexity {self.loss:+.1f}{margin} %, {where}"
        return f"{0.0 - self.loss:+.1f}{margin} points, {where}"


@dataclass(frozen=True)
class Standing:
    """Whether a codec may be recommended for a kind of task, and why."""

    kind: str  # safe, lossy or untried
    quality: Quality | None  # the worst loss, among tasks of the kind if the codec is safe

    @property
    def sentence(self) -> str:
        """The quality in a few words."""
        if self.kind == UNTRIED:
            tried = "" if self.quality is None else f"; {self.quality}"
            return f"not tried on such a task{tried}"
        return str(self.quality)


def kind_of(model: str) -> str | None:
    """The kind of task that a model of the catalogue is for; None: a model of your own.

    >>> kind_of("bert-large"), kind_of("vgg16-cifar10"), kind_of("mine:net")
    ('language', 'images', None)
    """
    if ":" in model:
        return None
    return next((kind for family, kind in FAMILIES.items() if model.startswith(family)), None)


def standing(
    codec: str,
    kind: str | None,
    max_loss: float = MAX_LOSS,
    table: Sequence[Quality] | None = None,
    memory: str | None = None,
) -> Standing:
    """What our records say of a codec.

    Args:
        codec: its spec.
        kind: of task; None: not known, so that the codec must be safe in every kind that was tried.
        max_loss: points that it may have lost, wherever it was tried.
        table: qualities; None: what is shipped.
        memory: by its name; None: the codec's own.
    """
    every = shipped() if table is None else table
    try:
        known = [e for e in every if same(e.codec, codec)]
        known = [e for e in known if (e.memory == memory if memory else (e.memory != NO_MEMORY) == keeps(codec))]
    except ConfigError:  # of a record, and no spec: what it was is not known
        known = []
    if any(e.exceeds(max_loss) for e in known):
        return Standing(LOSSY, max((e for e in known if e.exceeds(max_loss)), key=_severity))
    kinds = {e.kind for e in every} if kind is None else {kind}
    alike = [e for e in known if e.kind in kinds]
    if alike and kinds == {e.kind for e in alike}:
        return Standing(SAFE, max(alike, key=_severity))
    return Standing(UNTRIED, max(known, key=_severity, default=None))


def of_training(run: Run) -> Standing | None:
    """The same of what was trained with; None: nothing is lost by it (a baseline), or a controller chose."""
    if run.controller is not None or run.codec in (FP32, FP16):
        return None
    return standing(run.codec, kind_of(run.task), memory=run.memory)


def safe(kind: str | None, max_loss: float = MAX_LOSS, table: Sequence[Quality] | None = None) -> list[str]:
    """The codecs that may be recommended for a kind of task, the simplest first.

    Simpler is what keeps no memory, then what lost less.

    Args:
        kind: of task; None: not known, as for `standing`.
        max_loss: points that a codec may have lost, wherever it was tried.
        table: qualities; None: what is shipped.
    """
    known = shipped() if table is None else table
    found = {}
    for spec in dict.fromkeys(e.codec for e in known):
        verdict = standing(spec, kind, max_loss, known)
        if verdict.kind == SAFE and verdict.quality is not None:
            found[short(spec)] = (keeps(spec), _severity(verdict.quality))
    return sorted(found, key=lambda spec: (*found[spec], spec))


def _severity(found: Quality) -> float:
    return found.loss / (PERCENT_A_POINT if found.unit == PERPLEXITY else 1.0)


@cache
def shipped() -> tuple[Quality, ...]:
    """The table that comes with the library."""
    found = json.loads((files("gradwire.planner") / "data" / "quality.json").read_text(encoding="utf-8"))
    return tuple(Quality(**entry) for entry in found)


def seed_noise(task: str) -> float | None:
    """By how much two runs of such a task may well differ that differ in nothing but their seed.

    In points, or in percent of a perplexity: 95 of 100 pairs differ by less. None: nothing of its kind was trained
    twice.
    """
    margins = [e.margin for e in shipped() if e.kind == kind_of(task) and e.seeds == 1 and e.margin is not None]
    return max(margins, default=None)


# ---------------------------------------------------------------- the table, from records


def to_json(table: Iterable[Quality]) -> str:
    """As it is shipped: one line an entry."""
    return "[\n" + ",\n".join(json.dumps(asdict(entry)) for entry in table) + "\n]\n"


def tabulate(runs: Iterable[Run]) -> list[Quality]:
    """What trainings say. Those under a controller, and those without a baseline, say nothing here."""
    plain = [run for run in latest(runs) if run.controller is None and run.codec != CHOSEN]
    trained = [(groups(alike), luck.of(alike)) for alike in setups(plain).values()]
    spread = _spread(trained)
    found = []
    for each, of_seeds in trained:
        best = _best(each)
        baseline = best.get((FP16, NO_MEMORY)) or best.get((FP32, NO_MEMORY))
        for (codec, _), group in best.items():
            if baseline is not None and group is not baseline and codec != FP32:
                deviation = spread.get(group.first.task, spread.get(_kind(group)))
                found.append(_quality_of(group, baseline, of_seeds, deviation))
    return sorted(found, key=lambda e: (e.task, e.codec, e.memory, e.rounds))


def _best(each: Iterable[Group]) -> dict[tuple[str, str], Group]:
    """One a codec and memory: its best learning rate."""
    found: dict[tuple[str, str], list[Group]] = defaultdict(list)
    for group in each:
        found[group.first.codec, group.first.memory].append(group)
    return {which: tuned(alike) for which, alike in found.items()}


def _quality_of(group: Group, baseline: Group, of_seeds: Luck, deviation: float | None) -> Quality:
    run, unit = group.first, _unit(group)
    worse = statistics.fmean(of_seeds.levels(group)) - statistics.fmean(of_seeds.levels(baseline))
    loss = 100 * math.expm1(worse / 100) if unit == PERPLEXITY else -worse
    seeds = len(group.runs)
    margin = None if deviation is None else DEVIATIONS * deviation * math.sqrt(1 / seeds + 1 / len(baseline.runs))
    return Quality(
        task=run.task,
        kind=_kind(group),
        codec=run.codec,
        memory=run.memory,
        loss=round(loss, 2),
        unit=unit,
        margin=None if margin is None else round(margin, 2),
        seeds=seeds,
        rounds=int(run.outcome["rounds"][-1]),
    )


def _spread(trained: Iterable[tuple[Sequence[Group], Luck]]) -> dict[str, float]:
    """The typical standard deviation of runs that differ in nothing but their seed.

    By kind of task, and by task where as many codecs have several seeds as a median's interval takes.

    A variance of few seeds is below the true one more often than above: (1 - 2/9f)³ of it in the median, where f seeds
    are free (Wilson and Hilferty), so each is divided by that.
    """
    variances: dict[str, list[float]] = defaultdict(list)
    for each, of_seeds in trained:
        for group in each:
            free = len(group.runs) - 1
            if free:
                variance = statistics.variance(of_seeds.levels(group)) / (1 - 2 / (9 * free)) ** 3
                variances[group.first.task].append(variance)
                variances[_kind(group)].append(variance)
    known = {name: found for name, found in variances.items() if name in TASKS or len(found) >= luck.ENOUGH}
    return {name: math.sqrt(statistics.median(found)) for name, found in known.items()}


def _kind(group: Group) -> str:
    kind = kind_of(group.first.task)
    assert kind is not None, f"{group.first.task} is of no known kind; add its family to FAMILIES"
    return kind


def _unit(group: Group) -> str:
    return POINTS if group.first.higher_is_better else PERPLEXITY
