r"""AdaQS: compress less and less, as the gradient sinks into its noise.

.. math::  \mathrm{MSDR} = \frac{\| \text{mean gradient} \|}{\text{standard deviation}}

When the mean to standard deviation ratio of the whole model has fallen to `factor` times what it was at the last
change, training goes on at the next of the `levels`, which are ordered from much to little compression. It never goes
back. This is the published comparison to Accordion, which spends its bytes early, where AdaQS does not.

The mean of n steps' gradients is never shorter than noise leaves it, σ/√n, though the gradient may be far below. Held
against its own noise floor the ratio would stop falling early, so what noise adds to the square is taken off again:

.. math::  \mathrm{MSDR}^2 \approx \frac{1}{n} \Big( (n - 1) \frac{|\bar g|^2}{d^2} - 1 \Big), \qquad
           d^2 = \overline{|g|^2} - |\bar g|^2

Where nothing is left, the gradient has sunk below what n steps can see, and compression is loosened epoch by epoch.

The source (Guo et al., Accelerating Distributed Deep Learning by Adaptive Gradient Quantization, ICASSP 2020, as told
in section 3.3 of Agarwal's dissertation) gives the rule and the halving of the compression, there of PowerSGD's. The
rest is our choice: the ratio is looked at once an epoch, over the epoch's steps and the compressed parameters together;
the first epoch's is what the next ones are held against; `factor` is 0.5; there is one change an epoch at most; an
epoch without a finite ratio changes nothing, and one without anything above the noise is not the first one.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from gradwire.adaptive.controller import ALL, Choice, Controller, Decision, Observation, check_codec, controllers
from gradwire.core.errors import ConfigError
from gradwire.core.registry import Check


@controllers.register
@dataclass(frozen=True)
class AdaQS(Controller):
    """`levels` are codec specs, the most compressed one first; `factor` is the fall that calls for the next."""

    name: ClassVar[str] = "adaqs"
    levels: tuple[str, ...] = ("powersgd(rank=1)", "powersgd(rank=2)", "powersgd(rank=4)")
    factor: float = 0.5

    def __post_init__(self) -> None:
        given: object = self.levels
        if not isinstance(given, tuple | list) or len(given) < 2 or len(set(given)) != len(given):
            raise ConfigError(
                f"{self.name}: `levels` must be at least two different codec specs, the most compressed one first, "
                f"such as ('topk(ratio=0.01)', 'topk(ratio=0.02)'), got {given!r}"
            )
        object.__setattr__(self, "levels", tuple(given))
        for level in self.levels:
            check_codec(self.name, "levels", level)
        Check(self.name).number("factor", self.factor, 1e-9, 1, "the share that MSDR must fall to, in (0, 1]")

    def first(self) -> Decision:
        return Decision({ALL: Choice(self.levels[0], "the first epoch")})

    def decide(self, seen: Observation) -> Decision:
        now, kept = self._msdr(seen), self.state.kept
        if not math.isfinite(now) or (now == 0 and "msdr" not in kept):
            return Decision()
        last, level = kept.setdefault("msdr", now), kept.setdefault("level", 0)
        if now > self.factor * last or now >= last or level + 1 == len(self.levels):
            return Decision()
        kept |= {"msdr": now or self.factor * last, "level": level + 1}
        why = f"MSDR {last:.3g} to {now:.3g}, at most {self.factor:g} times"
        return Decision({ALL: Choice(self.levels[level + 1], why)})

    def _msdr(self, seen: Observation) -> float:
        """Of all parameters together, without what noise adds; nan where it is not defined."""
        names, n = self.settings.levels, seen.steps
        norm = math.hypot(*(self._number("norm", seen.norms, p, seen.epoch) for p in names))
        deviation = math.hypot(*(self._number("deviation", seen.deviations, p, seen.epoch) for p in names))
        if not (math.isfinite(norm) and 0 < deviation < math.inf and n > 1):
            return math.nan
        ratio = norm / n / deviation
        return math.sqrt(max(0.0, ((n - 1) * ratio * ratio - 1) / n))
