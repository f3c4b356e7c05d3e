"""Time to accuracy: how long each codec takes to a target, and whether that is sooner than with FP16 gradients.

    runs = [Run.of(record) for record in load("results/accuracy_resnet9.jsonl")]
    clock = Modelled(planner.predict, {"gpus": 16, "bandwidth": "10gbit", "hardware": "h200"})
    table = utility(runs, clock)

Runs are compared within one set-up: task, data, workers, batch, epochs, precision. Of several seeds the mean and the
range of the best quality are told; the time to a target is found seed by seed, and the median of it told, with never as
the longest time. Where a seed is known to be lucky for all codecs (`luck`), differences are without that luck, and a
target is as much harder or easier for its runs. Ratios are FP16's time over the codec's: above 1 the codec is there
sooner. What lost too much in any training of ours, by the rule of `advise`, is called lossy and ranked last.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from statistics import fmean, median
from typing import Any

from gradwire.core.baselines import FP16, FP32, MAX_LOSS, PERCENT_A_POINT
from gradwire.core.errors import ConfigError
from gradwire.planner import luck, quality
from gradwire.planner.clock import Clock
from gradwire.planner.luck import Luck
from gradwire.planner.seeds import AS_IT_IS, SETUP, Group, Options, by_rate, groups, setups, tuned
from gradwire.planner.training import Curve, Point, Reached, Run, mean, time_to

IN_NAME = ("codec", "memory", "controller", "seed")
POINTS = (MAX_LOSS, 1.0, 2.0)  # below the baseline's best, in percent
FACTORS = tuple(1 + PERCENT_A_POINT * p / 100 for p in POINTS)  # times the baseline's best, of what should be low
WAYS = (0.99, 0.95, 0.9)  # of the way from the baseline's start to its best, of any other scale
LATE = 0.9  # of a schedule
COMPARABLE_SHARE = PERCENT_A_POINT * MAX_LOSS / 100  # of the baseline's quality, where that is not in percent
ALLOWED = f"{MAX_LOSS:g} points, or {100 * COMPARABLE_SHARE:g} % of a perplexity"
LOSSY_NOTE = f"{quality.LOSSY}: lost over {ALLOWED}, in a training of ours"


@dataclass(frozen=True)
class Row:
    """One codec in the table. `difference` is positive where it is better than the baseline."""

    group: Group
    label: str
    best: float
    spread: tuple[float, float]
    difference: float | None
    seconds_per_round: float | None
    to_target: Mapping[float, Reached | None]
    speed_up: Mapping[float, float | None]
    curves: tuple[Curve, ...]
    note: str
    standing: quality.Standing | None = None  # by our own trainings; None: a baseline, or a controller
    rank: int = 0

    @property
    def lossy(self) -> bool:
        """Whether it lost more than `advise` allows in any training of ours; such rows are ranked last."""
        return self.standing is not None and self.standing.kind == quality.LOSSY

    @property
    def name(self) -> str:
        """The label, and whether it is lossy."""
        return f"{self.label} ({quality.LOSSY})" if self.lossy else self.label

    @property
    def bits_per_element(self) -> float | None:
        return mean(r.bits_per_element for r in self.group.runs if r.bits_per_element is not None)

    @property
    def nmse(self) -> float | None:
        return mean(r.nmse for r in self.group.runs if r.nmse is not None)

    @cached_property
    def curve(self) -> Curve:
        """The mean over seeds where they were evaluated at the same rounds, else that of the first seed."""
        first = self.curves[0]
        alike = all([p.rounds for p in c.points] == [p.rounds for p in first.points] for c in self.curves)
        if not alike or len(self.curves) == 1:
            return first
        points = []
        for same in zip(*(c.points for c in self.curves), strict=True):
            seconds, quality = (sum(getattr(p, n) for p in same) / len(same) for n in ("seconds", "quality"))
            points.append(Point(seconds, same[0].rounds, same[0].epoch, quality))
        return Curve(tuple(points), first.higher_is_better)


@dataclass(frozen=True)
class Utility:
    """The table."""

    setup: Mapping[str, Any]
    metric: str
    unit: str
    higher_is_better: bool
    time_label: str
    baseline: str
    targets: tuple[float, ...]  # the hardest first
    rows: tuple[Row, ...]  # by rank
    assumptions: tuple[str, ...]

    @property
    def late(self) -> tuple[float, ...]:
        """The targets that every run that meets them meets in the last tenth of an annealed schedule."""
        return tuple(target for target in self.targets if _late(self.rows, target))

    @property
    def schedule_note(self) -> str:
        """What to know of times to such targets; empty: nothing."""
        if not self.late:
            return ""
        return (
            f"the schedule is annealed, and whoever meets {' or '.join(f'{t:g}' for t in self.late)} does so in its "
            f"last tenth: such a time is rounds a second times pass or fail, and does not tell who learns sooner"
        )

    def row(self, codec: str) -> Row | None:
        return next((r for r in self.rows if r.group.first.codec == codec and r.group.first.controller is None), None)


def _late(rows: Iterable[Row], target: float) -> bool:
    reached = [
        (run, found.rounds / run.outcome["rounds"][-1])
        for row in rows
        for run in row.group.runs
        if (found := time_to(run.by_rounds(), target)) is not None
    ]
    return bool(reached) and all(run.annealed and share >= LATE for run, share in reached)


def slack(quality: float, unit: str) -> float:
    """By how much a run may miss this quality, and still count as its equal: what `advise` lets a codec lose.

    >>> slack(93.0, "%"), round(slack(50.0, "perplexity"), 6)
    (0.5, 0.5)
    """
    return MAX_LOSS if unit == "%" else COMPARABLE_SHARE * abs(quality)


def default_targets(group: Group, unit: str, options: Options = AS_IT_IS) -> tuple[float, ...]:
    """Near the baseline's best, where a choice is made; the hardest first."""
    bests, run = group.bests(options), group.first
    best = sum(bests) / len(bests)
    if unit == "%":
        return tuple(round(best - p, 2) for p in POINTS)
    if not run.higher_is_better:
        return tuple(float(f"{best * f:.6g}") for f in FACTORS)
    start = options.of(run.by_rounds()).points[0].quality
    return tuple(float(f"{start + w * (best - start):.6g}") for w in WAYS)


def utility(
    runs: Sequence[Run],
    clock: Clock | None,
    *,
    baseline: str = FP16,
    targets: Sequence[float] | None = None,
    options: Options = AS_IT_IS,
) -> Utility:
    """The table of one set-up. Without a clock, rounds stand for time."""
    kinds = setups(runs)
    if len(kinds) != 1:
        told = "; ".join(
            ", ".join(f"{n} {v}" for n, v in zip(SETUP, key, strict=True) if v is not None) for key in kinds
        )
        raise ConfigError(f"tta: runs of one set-up can be compared, got {len(kinds)}: {told or 'no run'}; choose one")
    rates = by_rate(groups(runs))
    found = [tuned(each) for each in rates]
    run = found[0].first
    reference = next((g for g in found if g.first.codec == baseline and g.first.controller is None), None)
    if reference is None and not targets:
        there = ", ".join(dict.fromkeys(g.first.codec for g in found))
        raise ConfigError(
            f"tta: {run.task} has no run with {baseline} to compare with, only {there}; name targets, or make one: "
            f"gradwire bench accuracy --task {run.task} --codec {baseline}"
        )
    goals = sorted(targets or (), reverse=run.higher_is_better)
    if reference is not None and not goals:
        goals = list(default_targets(reference, run.record.unit, options))
    of_seeds = luck.of(runs)
    made = [_row(g, name, clock, goals, options, of_seeds) for g, name in zip(found, labels(found), strict=True)]
    if reference is not None:
        worth = [fmean(of_seeds.bests(group, options)) for group in found]
        at = found.index(reference)
        made = [_beside(row, made[at], own - worth[at]) for row, own in zip(made, worth, strict=True)]
    ranked = sorted(made, key=lambda row: (row.lossy, soonest(row)))
    return Utility(
        setup={k: run.what.get(k) for k in (*SETUP, "model")},
        metric=str(run.outcome["metric"]),
        unit=run.record.unit,
        higher_is_better=run.higher_is_better,
        time_label="rounds" if clock is None else clock.label,
        baseline=baseline,
        targets=tuple(goals),
        rows=tuple(replace(row, rank=number) for number, row in enumerate(ranked, start=1)),
        assumptions=(*_tuning(rates), *_lucky(of_seeds), *(() if clock is None else clock.assumptions())),
    )


def _tuning(rates: Iterable[Sequence[Group]]) -> Iterator[str]:
    """What to know where some were trained at several rates."""
    names: dict[float, list[str]] = {}
    for group in (tuned(each) for each in rates if len(each) > 1):
        names.setdefault(group.first.what["learning_rate"], []).append(group.name)
    if names:
        told = "; ".join(f"{rate:g} of {', '.join(which)}" for rate, which in names.items())
        yield f"of several learning rates, the one with most seeds and then the best is shown: {told}"


def _lucky(of_seeds: Luck) -> Iterator[str]:
    """What to know where seeds are lucky for all."""
    if of_seeds.raised:
        yield f"whatever the codec, {of_seeds}: its runs' targets are moved by that, and differences are without it"


def labels(found: Sequence[Group]) -> list[str]:
    """Names; where two have the same, what else tells them apart."""
    names = [g.name for g in found]
    told = []
    for group, name in zip(found, names, strict=True):
        others = [g.first.what for g in found if g.name == name]
        differ = [k for k in group.first.what if k not in IN_NAME and any(o.get(k) != others[0].get(k) for o in others)]
        told.append(", ".join([name, *(f"{k} {group.first.what[k]}" for k in differ)]))
    return told


def _row(
    group: Group, label: str, clock: Clock | None, targets: Sequence[float], options: Options, of_seeds: Luck
) -> Row:
    curves, times = group.curves(clock, options)
    bests = group.bests(options)
    seeds = group.seeds[: len(curves)]  # no curves, if the clock does not know such a run

    def reached(target: float) -> Reached | None:
        return _median([time_to(c, of_seeds.on(target, seed)) for seed, c in zip(seeds, curves, strict=True)])

    return Row(
        group=group,
        label=label,
        best=sum(bests) / len(bests),
        spread=(min(bests), max(bests)),
        difference=None,
        seconds_per_round=None if times is None else times.a_round,
        to_target={t: reached(t) for t in targets},
        speed_up=dict.fromkeys(targets),
        curves=tuple(curves),
        note="" if times is None else times.note,
        standing=quality.of_training(group.first),
    )


def _median(found: Sequence[Reached | None]) -> Reached | None:
    """Over seeds; never is later than any time, so that more than half must get there."""
    if sum(f is not None for f in found) <= len(found) / 2:
        return None
    return Reached(*(median(math.inf if f is None else getattr(f, n) for f in found) for n in ("seconds", "rounds")))


def _beside(row: Row, reference: Row, more: float) -> Row:
    sign = 1 if row.group.first.higher_is_better else -1
    ratios: dict[float, float | None] = {}
    for target, reached in row.to_target.items():
        other = reference.to_target[target]
        both = reached is not None and other is not None and reached.seconds > 0
        ratios[target] = other.seconds / reached.seconds if both else None  # type: ignore[union-attr]
    return replace(row, difference=sign * more, speed_up=ratios)


def soonest(row: Row) -> tuple[float, ...]:
    """The soonest at the hardest target first; who meets none, by quality."""
    times = [math.inf if r is None else r.seconds for r in row.to_target.values()]
    return (*times, -row.best if row.group.first.higher_is_better else row.best)


def is_baseline(row: Row) -> bool:
    """Whether a row is of uncompressed gradients."""
    return row.group.first.codec in (FP32, FP16) and row.group.first.controller is None


def as_dict(table: Utility) -> dict[str, Any]:
    """Ready for JSON, with plain keys."""
    return {
        "task": table.setup["task"],
        "setup": dict(table.setup),
        "metric": table.metric,
        "unit": table.unit,
        "higher_is_better": table.higher_is_better,
        "time_label": table.time_label,
        "baseline": table.baseline,
        "targets": list(table.targets),
        "runs": [_plain(row) for row in table.rows],
        "schedule_note": table.schedule_note,
        "assumptions": list(table.assumptions),
    }


def _plain(row: Row) -> dict[str, Any]:
    run = row.group.first
    return {
        "rank": row.rank,
        "codec": None if run.what["codec"] is None else run.codec,
        "memory": run.memory,
        "controller": run.controller,
        "seeds": list(row.group.seeds),
        "best": row.best,
        "best_spread": list(row.spread),
        "difference": row.difference,
        "seconds_per_round": row.seconds_per_round,
        "bits_per_element": row.bits_per_element,
        "nmse": row.nmse,
        "to_target": {
            f"{t}": None
            if reached is None
            else {"seconds": reached.seconds, "rounds": reached.rounds, "speed_up": row.speed_up[t]}
            for t, reached in row.to_target.items()
        },
        "standing": None if row.standing is None else row.standing.kind,
        "evidence": None if row.standing is None else row.standing.sentence,
        "note": row.note,
    }
