"""Where the answer changes: the bandwidth at which a codec and DDP are even, the number of GPUs from which it pays,
and how much compression would make exchange nearly free.

Step times need not cross only once: a codec that is gathered wins with few GPUs and loses with many. So the whole
range is scanned, each change of sign is then halved down to its place, and the one nearest to the set-up is named.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from gradwire.core.baselines import FP32, WIN
from gradwire.core.search import boundary
from gradwire.core.units import format_milliseconds, format_rate
from gradwire.planner.ranking import LABELS, Contest

SLOWEST, FASTEST = 1e7, 1e13  # bit/s
POINTS_PER_DECADE = 4
MOST_GPUS = 1024
NEAR_LINEAR = 1.1  # times the step without exchange
LARGEST_RATIO = 1e6
Range = tuple[float, float]


@dataclass(frozen=True, kw_only=True)
class Crossover:
    """Where a codec wins along one quantity: over all of `ranges`, within `limits`."""

    quantity: str  # "bandwidth" in bit/s: faster at all; "gpus": by more than 5 %
    codec: str
    at: float | None  # of crossings the nearest to the set-up; of GPUs the first of the nearest range; None: no such
    ranges: tuple[Range, ...]
    limits: Range
    sentence: str


@dataclass(frozen=True, kw_only=True)
class Needed:
    """How many times smaller than FP32 payloads would have to be, if encoding were free."""

    ratio: float | None  # None: no ratio is enough
    step_seconds: float  # at that ratio, or at the largest
    alone_seconds: float  # the step without exchange
    sentence: str


def bandwidth(contest: Contest, codec: str) -> Crossover:
    """Where the codec and the faster of FP32 and FP16 DDP take the same time."""

    def faster(rate: float) -> bool:
        return contest.beats(codec, 1.0, bandwidth=rate)

    count = round(math.log10(FASTEST / SLOWEST) * POINTS_PER_DECADE)
    points = [SLOWEST * (FASTEST / SLOWEST) ** (i / count) for i in range(count + 1)]
    ranges = _ranges(faster, points, _halve_rate)
    here = contest.reference().bits_per_second
    edges = [e for r in ranges for e in r if e not in (points[0], points[-1])]
    at = min(edges, key=lambda e: abs(math.log(e / here)), default=None)
    return Crossover(
        quantity="bandwidth",
        codec=codec,
        at=at,
        ranges=tuple(ranges),
        limits=(SLOWEST, FASTEST),
        sentence=_bandwidth_sentence(contest, codec, ranges, edges, at),
    )


def _bandwidth_sentence(
    contest: Contest, codec: str, ranges: Sequence[Range], edges: Sequence[float], at: float | None
) -> str:
    if at is None:
        word = "faster" if ranges else "slower"
        return (
            f"{codec} is {word} than DDP at every bandwidth from {format_rate(SLOWEST)} to {format_rate(FASTEST)}; "
            "there is no crossover."
        )
    even = contest.reference(bandwidth=at)
    there = f"{LABELS[even.codec]} and {codec} are even at {format_rate(at)} ({format_milliseconds(even.step_seconds)})"
    if len(edges) == 1:
        side = "below" if ranges[0][1] == at else "above"
        return f"{there}; {codec} is faster {side}."
    spans = " and ".join(f"from {format_rate(a)} to {format_rate(b)}" for a, b in ranges)
    return f"{there}; the curves cross {len(edges)} times: {codec} is faster {spans}."


def gpus(contest: Contest, codec: str) -> Crossover:
    """From how many GPUs on the codec pays, nodes being filled."""
    per_node = contest.setup["gpus_per_node"]
    here = contest.setup["gpus"]

    def pays(nodes: float) -> bool:
        return contest.beats(codec, WIN, gpus=round(nodes) * per_node)

    nodes = _node_counts(1 if per_node > 1 else 2, max(MOST_GPUS, here) // per_node)
    ranges = [(a * per_node, b * per_node) for a, b in _ranges(pays, nodes, _halve_count)]
    nearest = min(ranges, key=lambda r: _distance(here, r), default=None)
    most = nodes[-1] * per_node
    return Crossover(
        quantity="gpus",
        codec=codec,
        at=None if nearest is None else nearest[0],
        ranges=tuple(ranges),
        limits=(nodes[0] * per_node, most),
        sentence=_gpus_sentence(codec, ranges, most),
    )


def _gpus_sentence(codec: str, ranges: Sequence[Range], most: float) -> str:
    if not ranges:
        return f"{codec} is more than 5 % faster than DDP at no number of GPUs up to {most:.0f}."
    spans = [f"from {a:.0f} GPUs on" if b == most else f"from {a:.0f} to {b:.0f} GPUs" for a, b in ranges]
    tail = f", up to {most:.0f} at least" if ranges[-1][1] == most else ", not beyond"
    changes = "" if len(ranges) == 1 else " (not steadily: the gain comes and goes)"
    return f"{codec} pays, being more than 5 % faster than DDP, {' and '.join(spans)}{tail}{changes}."


def needed(contest: Contest) -> Needed:
    """The smallest ratio at which FP32 DDP's sums, so many times smaller, come near to linear scaling."""
    alone = contest.baseline(FP32, gpus=1, gpus_per_node=1).step_seconds
    limit = NEAR_LINEAR * alone

    def step(ratio: float) -> float:
        return contest.baseline(FP32, ratio=ratio).step_seconds

    low, high = 1.0, LARGEST_RATIO
    if step(low) <= limit:
        return _needed(low, step(low), alone)
    if step(high) > limit:
        uneven = any(t.jitter_seconds for t in contest.profile.models.get(contest.setup["model"], ()))
        return _needed(None, step(high), alone, "latency and the slowest GPU" if uneven else "latency")
    _, enough = boundary(lambda ratio: step(ratio) > limit, low, high, 0.01)
    return _needed(enough, step(enough), alone)


def _needed(ratio: float | None, step: float, alone: float, rest: str = "") -> Needed:
    times = f"{format_milliseconds(step)} a step against {format_milliseconds(alone)} without exchange"
    if ratio is None:
        sentence = (
            f"Near-linear scaling is not reachable: {rest} alone, with next to nothing sent, makes it {times}, "
            f"{step / alone:.3g} times as long."
        )
    elif ratio == 1:
        sentence = f"Near-linear scaling needs no compression here: FP32 DDP takes {times}."
    else:
        sentence = (
            f"Near-linear scaling (within 10 % of a step without exchange) needs payloads {ratio:.3g} times smaller "
            f"than FP32, if encoding were free: {times}."
        )
    return Needed(ratio=ratio, step_seconds=step, alone_seconds=alone, sentence=sentence)


def _ranges(
    holds: Callable[[float], bool], points: Sequence[float], halve: Callable[[Callable[[float], bool], Range], Range]
) -> list[Range]:
    """Where it holds, the ends found by halving."""
    flags = [holds(p) for p in points]
    found: list[Range] = []
    start = points[0]
    for (a, before), (b, after) in pairwise(zip(points, flags, strict=True)):
        if before != after:
            left, right = halve(lambda x, before=before: holds(x) == before, (a, b))  # type: ignore[misc]
            found += [(start, left)] if before else []
            start = right
    return [*found, (start, points[-1])] if flags[-1] else found


def _halve_rate(as_left: Callable[[float], bool], between: Range) -> Range:
    """The place of the change, as both its sides."""
    at, _ = boundary(as_left, *between, 0.001)
    return at, at


def _halve_count(as_left: Callable[[float], bool], between: Range) -> Range:
    """The last whole number before the change, and the first after it."""
    low, high = between
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if as_left(middle) else (low, middle)
    return low, high


def _node_counts(first: int, last: int) -> list[float]:
    """Powers of two and what lies in the middle, from first to last."""
    steps = {2**i for i in range(21)} | {3 * 2**i for i in range(20)} | {first, last}
    return [float(n) for n in sorted(steps) if first <= n <= last]


def _distance(here: float, span: Range) -> float:
    low, high = span
    return 0.0 if low <= here <= high else min(abs(math.log(low / here)), abs(math.log(high / here)))
