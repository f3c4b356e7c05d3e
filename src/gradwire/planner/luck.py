"""What luck a seed brings: it decides the first weights and the order of data, so it may be kind to all codecs alike.

A codec with one seed would be compared with the luck of others, unless that is known. It is where several codecs were
trained with all seeds of their baseline: a seed is lucky that raises what they reach over their means, in the median by
more than chance. Luck that codecs do not agree on is none.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from gradwire.core.baselines import FP16, FP32
from gradwire.core.intervals import median
from gradwire.planner.seeds import AS_IT_IS, Group, Options, by_rate, groups, tuned
from gradwire.planner.training import CHOSEN, NO_MEMORY, Run

ENOUGH = 6  # codecs, the fewest whose median has an interval


@dataclass(frozen=True)
class Luck:
    """By how much each seed raises a quality, as `level` counts it; seeds that are not there bring none.

    >>> luck = Luck({0: 0.5}, higher_is_better=True)
    >>> luck.off(90.0, seed=0), luck.on(90.0, seed=0), luck.off(90.0, seed=1)
    (89.5, 90.5, 90.0)
    """

    raised: Mapping[int, float]
    higher_is_better: bool

    def off(self, quality: float, seed: int) -> float:
        """What a run with this seed reached, without its luck."""
        return self._moved(quality, -self.raised.get(seed, 0.0))

    def on(self, quality: float, seed: int) -> float:
        """What a run with this seed reaches that is worth such a quality."""
        return self._moved(quality, self.raised.get(seed, 0.0))

    def bests(self, group: Group, options: Options = AS_IT_IS) -> list[float]:
        """What its runs reached, without luck."""
        return [self.off(quality, seed) for quality, seed in zip(group.bests(options), group.seeds, strict=True)]

    def levels(self, group: Group) -> list[float]:
        """The same, as `level` counts."""
        return [level(quality, self.higher_is_better) for quality in self.bests(group)]

    def _moved(self, quality: float, by: float) -> float:
        return quality + by if self.higher_is_better else quality * math.exp(by / 100)

    def __str__(self) -> str:
        unit = "" if self.higher_is_better else " %"
        told = ", ".join(f"seed {seed} raises it by {by:+.1f}{unit}" for seed, by in sorted(self.raised.items()))
        return told or "no seed is known to bring luck"


def level(quality: float, higher_is_better: bool) -> float:
    """As it is, or 100 times the logarithm of what should be low, so that small differences are percent."""
    return quality if higher_is_better else 100 * math.log(quality)


def of(runs: Iterable[Run]) -> Luck:
    """That of the seeds of one set-up."""
    trained = [tuned(each) for each in by_rate(groups(runs))]
    trained = [g for g in trained if g.first.controller is None and g.first.codec != CHOSEN]
    higher = all(g.first.higher_is_better for g in trained)
    baseline = next((g for codec in (FP16, FP32) for g in trained if _is(g.first, codec)), None)
    seeds = set(baseline.seeds) if baseline is not None else set()
    levels = [{r.seed: level(r.by_rounds().best, higher) for r in g.runs if r.seed in seeds} for g in trained]
    whole = [each for each in levels if each.keys() == seeds]
    if len(seeds) < 2 or len(whole) < ENOUGH:
        return Luck({}, higher)
    raised = {s: median([each[s] - statistics.fmean(each.values()) for each in whole]) for s in sorted(seeds)}
    return Luck({s: found.middle for s, found in raised.items() if found.low > 0 or found.high < 0}, higher)


def _is(run: Run, codec: str) -> bool:
    return run.codec == codec and run.memory == NO_MEMORY
