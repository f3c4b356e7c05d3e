r"""Accordion: compress little in critical regimes of training, and a lot elsewhere.

Of every compressed parameter (or, with ``per_layer=False``, of the whole model), at the end of the epochs
e = 0, `every`, 2 `every`, ...:

.. math::  \frac{|N_{e-every} - N_e|}{N_{e-every}} \ge \eta \Rightarrow \text{low, else high},
           \qquad N_e = \Big\| \sum_{\text{steps of } e} g \Big\|_2

`low` is the codec with little compression. It holds up to the first comparison, where the old norm is 0, and where
a norm is not a finite number. Besides, in any epoch: when the learning rate falls, all parameters go to `low` until
the next of these epochs. A rate that rises (a warm-up) changes nothing. Error memories are kept across switches.

Departs from the published code where the first epoch at the lower rate is one of these: it does not count, since the
norm has hardly had time to change, and `low` would end as it begins. (There rates fall in epochs 152 and 252, between.)

The rule takes any fall of the rate for a decay. Under a schedule that falls all the time (cosine, linear) everything
would stay at `low`, and a warning says so: pass ``decay=0.5``, and a fall counts only where the rate of the next
epoch is less than half of this one's; the norms then decide alone (a schedule that ends at zero still counts in its
last epochs, where it halves from one to the next).

Agarwal et al., Accordion: Adaptive Gradient Communication via Critical Learning Regime Identification, MLSys 2021,
arXiv:2010.16248. There the text writes > eta, its code compares by >=, as here.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from gradwire.adaptive.controller import ALL, Choice, Controller, Decision, Observation, check_codec, controllers
from gradwire.core.registry import Check


@dataclass(frozen=True)
class Verdict:
    """Whether a regime is critical, and why."""

    critical: bool
    why: str


@dataclass(frozen=True)
class Detector:
    """Tells critical regimes from norms and learning rates; what it must keep lies in a mapping of its user's."""

    name: str
    eta: float
    every: int
    decay: float

    def __post_init__(self) -> None:
        check = Check(self.name)
        check.number("eta", self.eta, 0, math.inf, "a relative change of at least 0")
        check.integer("every", self.every, 1)
        check.number("decay", self.decay, 1e-9, 1, "the share of the rate below which it has fallen, in (0, 1]")

    def verdicts(self, seen: Observation, norms: Mapping[str, float], kept: dict[str, Any]) -> dict[str, Verdict]:
        """By the names in `norms`, or for `ALL`; empty between decisions, when all stays as it is."""
        fell = seen.next_learning_rate < self.decay * seen.learning_rate
        kept["falls"] = kept.get("falls", 0) + 1 if fell else 0
        self._warn_if_always_low(kept)
        decided = {}
        if seen.epoch % self.every == 0:
            old, when = kept.get("norms", {}), kept.get("epoch", 0)
            if kept.get("fell") != seen.epoch - 1:
                decided = {p: self._compare(old.get(p), now, seen.epoch - when) for p, now in norms.items()}
            kept |= {"norms": dict(norms), "epoch": seen.epoch}
        if fell:
            kept["fell"] = seen.epoch
            why = f"the learning rate falls from {seen.learning_rate:.3g} to {seen.next_learning_rate:.3g}"
            return {ALL: Verdict(True, why)}
        return decided

    def _compare(self, old: float | None, now: float, epochs: int) -> Verdict:
        if old is None:
            return Verdict(True, "there is no older norm to compare with")
        if not (math.isfinite(old) and math.isfinite(now)):
            return Verdict(True, f"the gradient's norm is not finite: {old:.3g}, then {now:.3g}")
        if old == 0:
            return Verdict(True, "the older gradient was zero")
        ratio = abs(old - now) / old
        sign = ">=" if ratio >= self.eta else "<"
        return Verdict(ratio >= self.eta, f"norm {old:.3g} to {now:.3g} in {epochs} epochs: {ratio:.2f} {sign} eta")

    def _warn_if_always_low(self, kept: dict[str, Any]) -> None:
        if kept["falls"] == max(self.every, 3):
            warnings.warn(
                f"{self.name}: the learning rate has fallen in each of the last {kept['falls']} epochs, which keeps "
                "everything in the critical regime; under a schedule that falls all the time pass decay=0.5, so that "
                "only a sharp fall counts",
                stacklevel=5,
            )


@controllers.register
@dataclass(frozen=True)
class Accordion(Controller):
    """`low` and `high` are codec specs: little and much compression."""

    name: ClassVar[str] = "accordion"
    low: str = ""
    high: str = ""
    eta: float = 0.5
    every: int = 10
    per_layer: bool = True
    decay: float = 1.0

    def __post_init__(self) -> None:
        check_codec(self.name, "low", self.low)
        check_codec(self.name, "high", self.high)
        Check(self.name).one_of("per_layer", self.per_layer, (True, False))
        self._detector()

    @property
    def levels(self) -> tuple[str, ...]:
        return self.low, self.high

    def first(self) -> Decision:
        return Decision({ALL: Choice(self.low, "the first epoch")})

    def decide(self, seen: Observation) -> Decision:
        norms = (
            {p: self._number("norm", seen.norms, p, seen.epoch) for p in self.settings.levels}
            if self.per_layer
            else {ALL: seen.whole_norm}
        )
        verdicts = self._detector().verdicts(seen, norms, self.state.kept)
        return Decision({p: Choice(self.low if v.critical else self.high, v.why) for p, v in verdicts.items()})

    def _detector(self) -> Detector:
        return Detector(self.name, self.eta, self.every, self.decay)
