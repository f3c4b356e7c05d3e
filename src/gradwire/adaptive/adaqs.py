"""AdaQS: compress less and less, as the gradient sinks into its noise.

    MSDR = |mean gradient| / standard deviation

When the mean to standard deviation ratio of the whole model has fallen to `factor` times what it was at the last
change, training goes on at the next of the `levels`, which are ordered from much to little compression. It never goes
back. This is the published comparison to Accordion, which spends its bytes early, where AdaQS does not.

The mean of n steps' gradients is never shorter than noise leaves it, sigma / sqrt(n), though the gradient may be far
below. Held against its own noise floor the ratio would stop falling early, so what noise adds to the square is taken
off again. With m the mean gradient of the n steps:

    MSDR^2  ~  ((n - 1) |m|^2 / d^2  -  1) / n,    d^2 = mean of |g|^2  -  |m|^2

Where nothing is left, the gradient has sunk below what n steps can see, and compression is loosened epoch by epoch.

The source (Guo et al., Accelerating Distributed Deep Learning by Adaptive Gradient Quantization, ICASSP 2020, as told
in section 3.3 of Agarwal's dissertation) gives the rule and the halving of the compression, there of PowerSGD's. The
rest is our choice: the ratio is looked at once an epoch, over the epoch's steps and the compressed parameters together;
the first epoch's is what the next ones are held against; `factor` is 0.5; there is one change an epoch at most; an
epoch without a finite ratio changes nothing, and one without anything above the noise is not the first one.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar

from gradwire.adaptive.controller import Controller, check_codec, controllers
from gradwire.adaptive.values import ALL, Choice, Choices, Observation, State
from gradwire.core.errors import ConfigError
from gradwire.core.registry import Check


@controllers.register
@dataclass(frozen=True)
class AdaQS(Controller):
    """Compresses much at first, and less whenever the gradient has sunk further into its noise.

    Args:
        levels: the codecs, as a tuple, the one with the most compression first.
        factor: go to the next level when the ratio of mean to standard deviation has fallen to this share of what it
            was at the last change.

    Example:
        >>> adaqs = AdaQS(levels=("topk(ratio=0.01)", "topk(ratio=0.02)"))
        >>> state, decision = adaqs.first(["weight"])
        >>> for epoch, norm in enumerate([80.0, 30.0]):
        ...     seen = Observation(epoch, 0.1, 0.1, norms={"weight": norm}, deviations={"weight": 1.0}, steps=10)
        ...     state, decision = adaqs.decide(state, seen)
        >>> decision.settings.levels
        {'weight': 'topk(ratio=0.02)'}
        >>> decision.switches[0].why
        'MSDR 7.58 to 2.83, at most 0.5 times'
    """

    name: ClassVar[str] = "adaqs"
    levels: tuple[str, ...] = ("powersgd(rank=1)", "powersgd(rank=2)", "powersgd(rank=4)")
    factor: float = 0.5

    def __post_init__(self) -> None:
        given: object = self.levels
        if not isinstance(given, tuple) or len(given) < 2 or len(set(given)) != len(given):
            raise ConfigError(
                f"{self.name}: `levels` must be a tuple of at least two different codec specs, the most compressed one "
                f"first, such as ('topk(ratio=0.01)', 'topk(ratio=0.02)'), got {given!r}"
            )
        for level in self.levels:
            check_codec(self.name, "levels", level)
        Check(self.name).number("factor", self.factor, 1e-9, 1, "the share that MSDR must fall to, in (0, 1]")

    def first_choices(self) -> Choices:
        """The first level."""
        return Choices({ALL: Choice(self.levels[0], "the first epoch")})

    def next_choices(self, state: State, seen: Observation) -> Choices:
        """The next level, if the ratio has fallen far enough.

        Args:
            state: its `kept` holds the ratio at the last change.
            seen: the epoch that has ended.
        """
        now = self._msdr(state.settings.levels, seen)
        if not math.isfinite(now) or (now == 0 and "msdr" not in state.kept):
            return Choices(kept=state.kept)
        last = state.kept.get("msdr", now)
        place = self.levels.index(next(iter(state.settings.levels.values())))
        if now > self.factor * last or now >= last or place + 1 == len(self.levels):
            return Choices(kept={"msdr": last})
        why = f"MSDR {last:.3g} to {now:.3g}, at most {self.factor:g} times"
        return Choices({ALL: Choice(self.levels[place + 1], why)}, kept={"msdr": now or self.factor * last})

    def _msdr(self, parameters: Iterable[str], seen: Observation) -> float:
        """Of all parameters together, without what noise adds; nan where it is not defined."""
        names, n = list(parameters), seen.steps
        norm = math.hypot(*(self._number("norm", seen.norms, p, seen.epoch) for p in names))
        deviation = math.hypot(*(self._number("deviation", seen.deviations, p, seen.epoch) for p in names))
        if not (math.isfinite(norm) and 0 < deviation < math.inf and n > 1):
            return math.nan
        ratio = norm / n / deviation
        return math.sqrt(max(0.0, ((n - 1) * ratio * ratio - 1) / n))
