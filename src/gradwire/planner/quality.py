"""What trainings of ours say about a codec: how much quality it cost against FP16, on which task, and how sure that is.

The table `data/quality.json` is made from records by `docs/profiles.py`. A loss is in points of accuracy (or of a hit
rate), or in percent of a perplexity; a loss below zero is a gain. What one seed leaves open is told by seeds of other
codecs of the same unit: their typical standard deviation, the median's, gives each loss its margin. Codecs that fail
spread far more than those that train, and say nothing about them.
"""

from __future__ import annotations

import json
import math
import statistics
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from importlib.resources import files
from typing import Any

from gradwire.core.baselines import FP16, FP32, MAX_LOSS, PERCENT_A_POINT
from gradwire.core.errors import ConfigError
from gradwire.planner.seeds import Group, tuned
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
    margin: float | None  # half of the 95 % interval; None: no codec was trained twice on anything of this unit
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


def seed_noise(unit: str = POINTS) -> float | None:
    """By how much two runs may well differ that differ in nothing but their seed: 95 of 100 pairs do not.

    None: nothing of this unit was trained twice.
    """
    margins = [e.margin for e in shipped() if e.unit == unit and e.seeds == 1 and e.margin is not None]
    return max(margins, default=None)


# ---------------------------------------------------------------- the table, from records


def to_json(table: Iterable[Quality]) -> str:
    """As it is shipped: one line an entry."""
    return "[\n" + ",\n".join(json.dumps(asdict(entry)) for entry in table) + "\n]\n"


def tabulate(runs: Iterable[Run]) -> list[Quality]:
    """What trainings say. Those under a controller, and those without a baseline, say nothing here."""
    plain = [run for run in latest(runs) if run.controller is None and run.codec != CHOSEN]
    spread = _spread(plain)
    found = []
    for setup, group in _grouped(plain, _setup).items():
        by_codec = {which: _tuned(each) for which, each in _grouped(group, lambda r: (r.codec, r.memory)).items()}
        baseline = by_codec.get((FP16, NO_MEMORY)) or by_codec.get((FP32, NO_MEMORY))
        if baseline is None:
            continue
        for (codec, memory), trained in by_codec.items():
            if trained is not baseline and codec != FP32:
                found.append(_quality_of(str(setup[0]), codec, memory, trained, baseline, spread))
    return sorted(found, key=lambda e: (e.task, e.codec, e.memory, e.rounds))


def _quality_of(
    task: str, codec: str, memory: str, trained: Sequence[Run], baseline: Sequence[Run], spread: Mapping[str, float]
) -> Quality:
    unit = _unit(trained[0])
    worse = _mean(trained) - _mean(baseline)
    loss = 100 * math.expm1(worse / 100) if unit == PERPLEXITY else -worse
    deviation = spread.get(unit)
    margin = None if deviation is None else DEVIATIONS * deviation * math.sqrt(1 / len(trained) + 1 / len(baseline))
    kind = kind_of(task)
    assert kind is not None, f"{task} is of no known kind; add its family to FAMILIES"
    return Quality(
        task=task,
        kind=kind,
        codec=codec,
        memory=memory,
        loss=round(loss, 2),
        unit=unit,
        margin=None if margin is None else round(margin, 2),
        seeds=len(trained),
        rounds=int(trained[0].outcome["rounds"][-1]),
    )


def _spread(runs: Sequence[Run]) -> dict[str, float]:
    """The typical standard deviation of runs that differ in nothing but their seed, by unit.

    A variance of few seeds is below the true one more often than above: (1 - 2/9f)³ of it in the median, where f seeds
    are free (Wilson and Hilferty), so each is divided by that.
    """
    variances: dict[str, list[float]] = defaultdict(list)
    for group in _grouped(runs, _but_for_its_seed).values():
        free = len(group) - 1
        if free:
            variance = statistics.variance([_reached(run) for run in group])
            variances[_unit(group[0])].append(variance / (1 - 2 / (9 * free)) ** 3)
    return {unit: math.sqrt(statistics.median(found)) for unit, found in variances.items()}


def _setup(run: Run) -> tuple[object, ...]:
    """What a codec and its baseline have in common; learning rates may be a codec's own."""
    return (run.task, *(run.what.get(name) for name in ("data", "batch", "workers", "epochs", "precision")))


def _but_for_its_seed(run: Run) -> tuple[object, ...]:
    return tuple(sorted((name, str(value)) for name, value in run.what.items() if name != "seed"))


def _tuned(runs: Sequence[Run]) -> list[Run]:
    """Those of one of the learning rates that were tried."""
    rates = _grouped(runs, lambda run: (run.what.get("learning_rate"),)).values()
    return list(tuned(Group(tuple(each)) for each in rates).runs)


def _unit(run: Run) -> str:
    return POINTS if run.higher_is_better else PERPLEXITY


def _reached(run: Run) -> float:
    """The best of a run: points, or 100 times the logarithm of a perplexity, so that small differences are percent."""
    best = run.by_rounds().best
    return best if run.higher_is_better else 100 * math.log(best)


def _mean(runs: Sequence[Run]) -> float:
    return math.fsum(map(_reached, runs)) / len(runs)


def _grouped(runs: Iterable[Run], key: Callable[[Run], tuple[Any, ...]]) -> dict[tuple[Any, ...], list[Run]]:
    groups: dict[tuple[Any, ...], list[Run]] = defaultdict(list)
    for run in runs:
        groups[key(run)].append(run)
    return dict(groups)
