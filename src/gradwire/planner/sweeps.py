"""What if the network were faster, the cluster larger, the codec quicker? Predictions over one or two swept quantities.

A sweep is written ``1gbit:30gbit`` (a range), ``1gbit:30gbit:20`` (of so many points) or ``8,16,32`` (a list). FP32 and
FP16 DDP are always asked, too. Where a codec's curve meets theirs is a crossover; the backward pass and the whole
step cross at the same place, since they differ by what the exchange does not touch.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise, product
from typing import Any

from gradwire.core.baselines import DDP, FP16, FP32
from gradwire.core.errors import ConfigError
from gradwire.core.registry import Check
from gradwire.planner import model as perf
from gradwire.planner.model import Prediction
from gradwire.planner.profile import Profile
from gradwire.planner.quality import kind_of, standing
from gradwire.planner.quantity import MOST_POINTS, Quantity, quantity, setting, values
from gradwire.planner.ranking import LABELS

METRICS = {"step": "step time", "sync": "backward and exchange"}
NEEDED = {"model": None, "batch": "64", "gpus": "16", "bandwidth": "10gbit"}  # and what to type
PRECISION = 1e-4  # of a crossover, relative

Predict = Callable[..., Prediction]
Point = tuple[float, ...]


@dataclass(frozen=True)
class Curve:
    """One codec, or DDP itself, at every point. None: not possible there."""

    codec: str  # as written
    predictions: tuple[Prediction | None, ...]

    @property
    def label(self) -> str:
        return LABELS.get(self.codec, self.codec)

    @property
    def baseline(self) -> bool:
        return self.codec in DDP

    def seconds(self, metric: str = "step") -> tuple[float | None, ...]:
        """Of the whole step, or of backward and exchange (``"sync"``)."""
        Check("whatif").one_of("metric", metric, tuple(METRICS))
        return tuple(None if p is None else float(getattr(p, f"{metric}_seconds")) for p in self.predictions)


@dataclass(frozen=True)
class Crossing:
    """Where a codec and a baseline take the same time; of whole numbers, the first one on the other side."""

    codec: str
    baseline: str
    at: float
    faster_below: bool
    quantity: Quantity

    @property
    def label(self) -> str:
        """Beside a mark, after the codec's name."""
        at = self.quantity.written(self.at)
        if self.quantity.whole:
            return f"{'slower' if self.faster_below else 'faster'} than {LABELS[self.baseline]} from {at} on"
        return f"even with {LABELS[self.baseline]} at {at}"


@dataclass(frozen=True)
class Sweep:
    """Curves over one quantity, or surfaces over two: the last one runs fastest."""

    quantities: tuple[Quantity, ...]
    values: tuple[tuple[float, ...], ...]  # of each quantity
    curves: tuple[Curve, ...]  # FP32 DDP, FP16 DDP, codecs
    crossovers: tuple[Crossing, ...]  # of one quantity
    notes: tuple[str, ...]  # about gaps
    setup: Mapping[str, Any]

    @property
    def points(self) -> list[Point]:
        return list(product(*self.values))

    @property
    def codecs(self) -> list[Curve]:
        """Without the baselines that are always there."""
        return [c for c in self.curves if c.codec not in (FP32, FP16)]

    def curve(self, codec: str) -> Curve | None:
        return next((c for c in self.curves if c.codec == codec), None)

    def speedup(self, curve: Curve, over: str | None = None, metric: str = "step") -> tuple[float | None, ...]:
        """Times as fast as a baseline; without one, as the faster of FP32 and FP16 DDP."""
        wanted = (FP32, FP16) if over is None else (over,)
        rows = [c.seconds(metric) for c in self.curves if c.codec in wanted]
        found: list[float | None] = []
        for position, own in enumerate(curve.seconds(metric)):
            others = [row[position] for row in rows]
            known = [s for s in others if s is not None]
            found.append(min(known) / own if known and own else None)
        return tuple(found)

    def best(self) -> tuple[Curve | None, ...]:
        """The fastest of all, at every point."""
        rows = [(c, c.seconds()) for c in self.curves]
        found: list[Curve | None] = []
        for position in range(len(self.points)):
            known = [(s, i) for i, (_, row) in enumerate(rows) if (s := row[position]) is not None]
            found.append(rows[min(known)[1]][0] if known else None)
        return tuple(found)

    @property
    def setting(self) -> str:
        """The set-up in words, without what is swept."""
        return setting(self.setup)

    @property
    def first(self) -> Prediction:
        """Some prediction that was possible, of a codec if there is one."""
        return next(p for c in reversed(self.curves) for p in c.predictions if p is not None)

    def quality(self) -> list[str]:
        """What our trainings say of each codec: a curve tells times alone."""
        kind = kind_of(self.setup["model"])
        return [f"{c.codec} in our trainings: {standing(c.codec, kind).sentence}." for c in self.codecs]

    def sentences(self) -> list[str]:
        """How each codec compares with FP16 and FP32 DDP over the whole sweep."""
        found = []
        for curve in self.codecs:
            where = {LABELS[over]: w for over in (FP16, FP32) if (w := self._where(curve, over))}
            if len(where) == 2 and len(set(where.values())) == 1:
                where = {"FP16 and FP32 DDP": where[LABELS[FP16]]}
            if where:
                found.append(
                    f"{curve.label} is faster " + ", and ".join(f"than {o} {w}" for o, w in where.items()) + "."
                )
        return found

    def _where(self, curve: Curve, over: str) -> str | None:
        """At which points a codec is ahead; None: nothing is known of that."""
        ratios = [r for r in self.speedup(curve, over) if r is not None]
        if not ratios:
            return None
        met = [c for c in self.crossovers if (c.codec, c.baseline) == (curve.codec, over)]
        wins = sum(r > 1 for r in ratios)
        every = {0: "at no point", len(ratios): "at every point"}
        return _stretches(met) if met else every.get(wins, f"at {wins} of {len(ratios)} points")

    def rows(self, metric: str = "step") -> list[dict[str, Any]]:
        """One a point and curve, for CSV and JSON."""
        names = [q.name for q in self.quantities]
        over = {"speedup_over_fp32": FP32, "speedup_over_fp16": FP16, "speedup_over_faster": None}
        found = []
        for curve in self.curves:
            ratios = {name: self.speedup(curve, baseline, metric) for name, baseline in over.items()}
            for position, point in enumerate(self.points):
                row: dict[str, Any] = dict(zip(names, point, strict=True)) | {"codec": curve.codec}
                row |= _figures(curve.predictions[position])
                found.append(row | {name: ratio[position] for name, ratio in ratios.items()})
        return found


def _stretches(met: Sequence[Crossing]) -> str:
    """Between which crossovers a codec is ahead."""
    found: list[str] = []
    start: Crossing | None = None
    for cross in met:
        at = cross.quantity.written(cross.at)
        if not cross.faster_below:
            start = cross
            found.append(f"from {at} on" if cross.quantity.whole else f"above {at}")
        elif start is None:
            found.append(f"below {at}")
        else:
            found[-1] += f" and below {at}"
    return "; ".join(found)


def _figures(found: Prediction | None) -> dict[str, Any]:
    names = ("step_seconds", "sync_seconds", "sent_bytes", "memory_bytes")
    return {name: None if found is None else getattr(found, name) for name in names}


def whatif(
    *,
    sweep: Mapping[str, str | Sequence[str | float]],
    codecs: Sequence[str] = (),
    predict: Predict = perf.predict,
    **setup: Any,
) -> Sweep:
    """Predictions over one or two swept quantities; `gradwire.whatif` tells what the arguments are.

    Args:
        predict: what answers for one codec at one point.
        setup: what else `predict` takes; None, or a quantity that is swept, is left out.
    """
    setup = {name: value for name, value in setup.items() if value is not None}
    chosen = [codecs] if isinstance(codecs, str) else list(codecs)
    _check(sweep, setup)
    found = tuple(quantity(name) for name in sweep)
    grid = tuple(values(q, sweep[q.name], setup, alone=len(found) == 1) for q in found)
    many = math.prod(map(len, grid))
    if many > MOST_POINTS:
        raise ConfigError(
            f"whatif: {many} points are more than the {MOST_POINTS} that are answered at once; ask for fewer"
        )
    profile = Profile.load(setup.get("hardware", "h200"))
    known, notes = baselines(profile)
    names = list(dict.fromkeys([*known, *chosen]))
    if not names:
        raise ConfigError(
            f"whatif: profile {profile.name} knows the cost of neither FP32 nor FP16 DDP; name a codec that it knows"
        )
    asked = _Asked(predict, setup, tuple(q.name for q in found))
    problems: dict[tuple[str, Point], str] = {}
    curves = tuple(_curve(name, list(product(*grid)), asked, problems) for name in names)
    if all(p is None for c in curves for p in c.predictions):
        reason = next(iter(problems.values()))
        raise ConfigError(f"whatif: {reason} at every point of the sweep; try a smaller batch or fewer GPUs")
    notes += _notes(problems, found)
    crossings = _crossovers(curves, found[0], grid[0], asked) if len(found) == 1 else []
    return Sweep(found, grid, curves, tuple(crossings), tuple(notes), dict(setup))


def baselines(hardware: str | Profile, wanted: Sequence[str] = (FP32, FP16)) -> tuple[list[str], list[str]]:
    """Those that a profile knows the cost of; and a sentence for each that it does not."""
    profile = Profile.load(hardware)
    known = [b for b in wanted if profile.cost(b) is not None]
    left_out = [
        f"{LABELS[b]} is left out: profile {profile.name} does not know what {b} costs."
        for b in wanted
        if b not in known
    ]
    return known, left_out


def as_asked(codec: str, setup: Mapping[str, Any]) -> dict[str, Any]:
    """The question for one codec: what is told of codecs (strategy, speed, ratio) is not told of DDP itself."""
    kept = {k: v for k, v in setup.items() if k not in ("strategy", "encode_speed", "ratio")}
    return {**(kept if codec in DDP else setup), "codec": codec}


def parse(text: str) -> tuple[str, str]:
    """The quantity of ``bandwidth=1gbit:30gbit``, and what it runs through."""
    name, equals, rest = text.partition("=")
    if not equals:
        raise ConfigError(
            "whatif: a sweep is written QUANTITY=FROM:TO or QUANTITY=A,B,C, as in bandwidth=1gbit:30gbit or "
            f"gpus=8,16,32; got {text!r}"
        )
    return quantity(name.strip().replace("-", "_")).name, rest


def _check(sweep: Mapping[str, Any], setup: Mapping[str, Any]) -> None:
    if "codec" in setup:
        raise ConfigError("whatif: codecs are given as a list, codecs=[...], got codec=" + repr(setup["codec"]))
    if not 1 <= len(sweep) <= 2:
        came = ", ".join(sweep) or "none"
        raise ConfigError(f"whatif: one or two quantities are swept at a time, got {came}")
    for name in sweep:
        quantity(name)
        if name in setup:
            raise ConfigError(f"whatif: {name} is swept and given as {setup[name]!r}; leave one of the two out")
    for name, example in NEEDED.items():
        option = f"--{name.replace('_', '-')}"
        if name not in sweep and name not in setup:
            more = f" {example}, or sweep it: --sweep {quantity(name).example}" if example else " resnet50"
            raise ConfigError(f"whatif: a set-up needs {name}; give {option}{more}")


@dataclass(frozen=True)
class _Asked:
    """What every point has in common."""

    predict: Predict
    setup: Mapping[str, Any]
    names: tuple[str, ...]

    def at(self, codec: str, point: Point) -> Prediction:
        asked = {name: quantity(name).exact(value) for name, value in zip(self.names, point, strict=True)}
        return self.predict(**as_asked(codec, {**self.setup, **asked}))


def _curve(codec: str, points: Sequence[Point], asked: _Asked, problems: dict[tuple[str, Point], str]) -> Curve:
    """An error at some points is a gap; at all of them it is the answer."""
    found: list[Prediction | None] = []
    failed: list[ConfigError] = []
    for point in points:
        try:
            predicted = asked.at(codec, point)
        except ConfigError as problem:
            problems[codec, point] = str(problem).removeprefix("gradwire: ").partition(";")[0]
            failed.append(problem)
            found.append(None)
            continue
        if predicted.fits is False:
            problems[codec, point] = f"{LABELS.get(codec, codec)} is predicted to run out of memory"
        found.append(predicted if predicted.fits is not False else None)
    if len(failed) == len(points):
        raise failed[0]
    return Curve(codec, tuple(found))


def _notes(problems: Mapping[tuple[str, Point], str], found: Sequence[Quantity]) -> list[str]:
    """One for each reason: where there is no value, and why."""
    by_reason: dict[str, dict[str, None]] = {}
    for (_, point), reason in problems.items():
        where = " and ".join(q.written(v) for q, v in zip(found, point, strict=True))
        by_reason.setdefault(reason, {})[where] = None
    notes = []
    for reason, places in by_reason.items():
        few = list(places)[:6]
        more = f" and {len(places) - len(few)} more" if len(places) > len(few) else ""
        notes.append(f"No value at {', '.join(few)}{more}: {reason}.")
    return notes if len(notes) <= 5 else [*notes[:5], f"No value at {len(notes) - 5} more points, for like reasons."]


# -------------------------------------------------------------------- crossovers


def _crossovers(curves: Sequence[Curve], swept: Quantity, xs: Sequence[float], asked: _Asked) -> list[Crossing]:
    found = []
    by_name = {c.codec: c.seconds() for c in curves}
    for codec in by_name:
        for baseline in (b for b in (FP16, FP32) if b in by_name and codec not in (FP32, FP16)):
            gaps = [
                None if own is None or other is None else own - other
                for own, other in zip(by_name[codec], by_name[baseline], strict=True)
            ]
            for low, high, faster_below in _changes(xs, gaps, over_gaps=swept.sparse):
                at = _meet(codec, baseline, swept, (low, high), faster_below, asked)
                found.append(Crossing(codec, baseline, at, faster_below, swept))
    return found


def _changes(xs: Sequence[float], gaps: Sequence[float | None], *, over_gaps: bool) -> list[tuple[float, float, bool]]:
    """Neighbours between which a difference changes its sign, and whether it is negative at the lower one."""
    known = [(x, g) for x, g in zip(xs, gaps, strict=True) if g != 0 and not (g is None and over_gaps)]
    return [
        (x, y, g < 0) for (x, g), (y, h) in pairwise(known) if g is not None and h is not None and (g < 0) != (h < 0)
    ]


def _meet(
    codec: str, baseline: str, swept: Quantity, ends: tuple[float, float], faster_below: bool, asked: _Asked
) -> float:
    """By bisection; among numbers of GPUs, of which not every one makes a cluster, the first swept one."""
    low, high = ends
    while swept.between(low, high, PRECISION):
        middle = swept.middle(low, high)
        gap = asked.at(codec, (middle,)).step_seconds - asked.at(baseline, (middle,)).step_seconds
        if (gap < 0) == faster_below:
            low = middle
        else:
            high = middle
    return high
