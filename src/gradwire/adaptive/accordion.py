"""Accordion: compress little in critical regimes of training, and a lot elsewhere.

Of every compressed parameter (or, with ``per_layer=False``, of the whole model), at the end of the epochs
e = 0, `every`, 2 `every`, ...:

    |N_old - N_now| / N_old  >=  eta    the regime is critical: `low`
                             <   eta    `high`

where N_now is the norm of the sum of the gradients of all steps of epoch e, and N_old that of epoch e - `every`.

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
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from gradwire.adaptive.controller import Controller, check_codec, controllers
from gradwire.adaptive.values import ALL, Choice, Choices, Observation, State
from gradwire.core.registry import Check


@dataclass(frozen=True)
class Regime:
    """Whether training is in a critical regime.

    Args:
        critical: whether it is.
        why: the reason, in a few words.

    Example:
        >>> Regime(critical=True, why="the older gradient was zero").critical
        True
    """

    critical: bool
    why: str


def regime(old: float | None, now: float, epochs: int, eta: float) -> Regime:
    """What two norms say.

    Args:
        old: of the older gradient, if there is one.
        now: of the newer one.
        epochs: that lie between them.
        eta: the relative change that is critical.

    Example:
        >>> regime(8.0, 3.0, epochs=10, eta=0.5)
        Regime(critical=True, why='norm 8 to 3 in 10 epochs: 0.62 >= eta')
    """
    if old is None:
        return Regime(True, "there is no older norm to compare with")
    if not (math.isfinite(old) and math.isfinite(now)):
        return Regime(True, f"the gradient's norm is not finite: {old:.3g}, then {now:.3g}")
    if old == 0:
        return Regime(True, "the older gradient was zero")
    ratio = abs(old - now) / old
    sign = ">=" if ratio >= eta else "<"
    return Regime(ratio >= eta, f"norm {old:.3g} to {now:.3g} in {epochs} epochs: {ratio:.2f} {sign} eta")


@dataclass(frozen=True)
class Regimes:
    """What a `Detector` has found.

    Args:
        found: the regime by parameter, or under the name `ALL`. Empty in epochs in which nothing is decided.
        kept: what the detector must be handed next time.
        warning: what the user should be told, if anything.

    Example:
        >>> Regimes({}, kept={"falls": 0}).warning
        ''
    """

    found: Mapping[str, Regime]
    kept: Mapping[str, Any]
    warning: str = ""


@dataclass(frozen=True)
class Detector:
    """Finds critical regimes by norms and learning rates, as the module's text says.

    Args:
        name: the controller's name, for messages.
        eta: the relative change of a norm that is critical.
        every: how many epochs lie between two comparisons.
        decay: a learning rate has fallen if the next one is less than `decay` times the old one.

    Example:
        >>> detector = Detector("accordion", eta=0.5, every=1, decay=1.0)
        >>> first = detector.regimes(Observation(0, 0.1, 0.1), norms={"weight": 8.0}, kept={})
        >>> second = detector.regimes(Observation(1, 0.1, 0.1), norms={"weight": 7.0}, kept=first.kept)
        >>> second.found["weight"]
        Regime(critical=False, why='norm 8 to 7 in 1 epochs: 0.12 < eta')
    """

    name: str
    eta: float
    every: int
    decay: float

    def __post_init__(self) -> None:
        check = Check(self.name)
        check.number("eta", self.eta, 0, math.inf, "a relative change of at least 0")
        check.integer("every", self.every, 1)
        check.number("decay", self.decay, 1e-9, 1, "the share of the rate below which it has fallen, in (0, 1]")

    def regimes(self, seen: Observation, norms: Mapping[str, float], kept: Mapping[str, Any]) -> Regimes:
        """Compare the norms with older ones, if this is an epoch to do so, and look at the learning rate.

        Args:
            seen: the epoch that has ended.
            norms: by parameter, or of all under the name `ALL`.
            kept: what the last call returned as `kept`; at first nothing.
        """
        fell = seen.next_learning_rate < self.decay * seen.learning_rate
        falls = kept.get("falls", 0) + 1 if fell else 0
        then: dict[str, Any] = {**kept, "falls": falls}
        found = {}
        if seen.epoch % self.every == 0:
            old, when = kept.get("norms", {}), kept.get("epoch", 0)
            if kept.get("fell") != seen.epoch - 1:
                found = {p: regime(old.get(p), now, seen.epoch - when, self.eta) for p, now in norms.items()}
            then |= {"norms": dict(norms), "epoch": seen.epoch}
        if fell:
            then["fell"] = seen.epoch
            why = f"the learning rate falls from {seen.learning_rate:.3g} to {seen.next_learning_rate:.3g}"
            found = {ALL: Regime(True, why)}
        return Regimes(found, then, self._warning(falls))

    def _warning(self, falls: int) -> str:
        """Once, where the schedule keeps everything at `low`."""
        if falls != max(self.every, 3):
            return ""
        return (
            f"{self.name}: the learning rate has fallen in each of the last {falls} epochs, which keeps "
            "everything in the critical regime; under a schedule that falls all the time pass decay=0.5, so that "
            "only a sharp fall counts"
        )


@controllers.register
@dataclass(frozen=True)
class Accordion(Controller):
    """Sends a layer with little compression while its gradient changes fast, and with much compression elsewhere.

    Args:
        low: the codec with little compression, for critical regimes.
        high: the codec with much compression.
        eta: the relative change of a layer's gradient norm that is critical.
        every: how many epochs lie between two comparisons of norms.
        per_layer: decide for each layer; False decides for the whole model at once.
        decay: the learning rate has fallen if the next one is less than `decay` times the old one. Pass 0.5 under
            a schedule that falls all the time.

    Example:
        >>> accordion = Accordion(low="powersgd(rank=4)", high="powersgd(rank=1)", every=1)
        >>> state, decision = accordion.first(["a", "b"])
        >>> decision.settings.levels
        {'a': 'powersgd(rank=4)', 'b': 'powersgd(rank=4)'}
        >>> for epoch, norms in enumerate([{"a": 8.0, "b": 8.0}, {"a": 7.0, "b": 2.0}]):
        ...     seen = Observation(epoch, learning_rate=0.1, next_learning_rate=0.1, norms=norms)
        ...     state, decision = accordion.decide(state, seen)
        >>> decision.settings.levels
        {'a': 'powersgd(rank=1)', 'b': 'powersgd(rank=4)'}
        >>> decision.switches[0].why
        'norm 8 to 7 in 1 epochs: 0.12 < eta'
    """

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
        """`low` and `high`."""
        return self.low, self.high

    def first_choices(self) -> Choices:
        """`low` for all."""
        return Choices({ALL: Choice(self.low, "the first epoch")})

    def next_choices(self, state: State, seen: Observation) -> Choices:
        """`low` where the regime is critical, else `high`.

        Args:
            state: its `kept` holds older norms, and when the rate fell.
            seen: the epoch that has ended.
        """
        norms = (
            {p: self._number("norm", seen.norms, p, seen.epoch) for p in state.settings.levels}
            if self.per_layer
            else {ALL: seen.whole_norm}
        )
        regimes = self._detector().regimes(seen, norms, state.kept)
        wanted = {p: Choice(self.low if r.critical else self.high, r.why) for p, r in regimes.found.items()}
        return Choices(wanted, regimes.kept, warning=regimes.warning)

    def _detector(self) -> Detector:
        return Detector(self.name, self.eta, self.every, self.decay)
