"""Accordion for the batch size: small batches in critical regimes, `factor` times as large ones elsewhere.

The test is `Accordion`'s, on the norm of the whole model. A step then takes `factor` micro-batches of the base batch,
and the learning rate is multiplied by the same factor. An epoch of large batches has fewer steps, and the norm of the
sum of its gradients is smaller by as much; so the norms that are compared are those of the mean over the epoch's
steps, which the batch size leaves alone. (Where the number of steps does not change, that is the published rule. What
its authors do about it they do not say: the logs that they published change the batch by a fixed schedule.)

A fall of the learning rate is a critical regime here, too, and goes back to the small batch.

Agarwal et al., Accordion, MLSys 2021, arXiv:2010.16248: 512 and 4096 examples, which is the factor of 8.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from gradwire.adaptive.accordion import Detector
from gradwire.adaptive.controller import Controller, check_codec, controllers
from gradwire.adaptive.values import ALL, Choice, Choices, Observation, State
from gradwire.core.errors import ConfigError
from gradwire.core.registry import Check


@controllers.register
@dataclass(frozen=True)
class AccordionBatch(Controller):
    """Takes small batches in critical regimes, and larger ones elsewhere, by Accordion's test.

    Args:
        factor: what the batch and the learning rate are multiplied by outside critical regimes.
        codec: the codec of all layers, throughout.
        eta: the relative change of the gradient's norm that is critical.
        every: how many epochs lie between two comparisons of norms.
        decay: the learning rate has fallen if the next one is less than `decay` times the old one.

    Example:
        >>> batch = AccordionBatch(factor=8, every=1)
        >>> state, decision = batch.first(["weight"])
        >>> for epoch, norm in enumerate([8.0, 7.0]):
        ...     state, decision = batch.decide(state, Observation(epoch, 0.1, 0.1, steps=10, whole_norm=norm))
        >>> decision.settings.batch_factor, decision.settings.rate_factor
        (8, 8.0)
        >>> state, decision = batch.decide(state, Observation(2, 0.1, 0.01, steps=10, whole_norm=7.0))
        >>> decision.settings.batch_factor, decision.switches[0].why
        (1, 'the learning rate falls from 0.1 to 0.01')
    """

    name: ClassVar[str] = "accordion_batch"
    factor: int = 8
    codec: str = "none"
    eta: float = 0.5
    every: int = 10
    decay: float = 1.0

    def __post_init__(self) -> None:
        check_codec(self.name, "codec", self.codec)
        Check(self.name).integer("factor", self.factor, 2)
        self._detector()

    @property
    def levels(self) -> tuple[str, ...]:
        """The one codec."""
        return (self.codec,)

    def first_choices(self) -> Choices:
        """The base batch."""
        return self._factors(1, "the first epoch")

    def next_choices(self, state: State, seen: Observation) -> Choices:
        """The base batch where the regime is critical, else the large one.

        Args:
            state: its `kept` holds the older norm, and when the rate fell.
            seen: the epoch that has ended.
        """
        if seen.steps < 1:
            raise ConfigError(f"{self.name}: an epoch must have had a step, got {seen.steps} in epoch {seen.epoch}")
        regimes = self._detector().regimes(seen, {ALL: seen.whole_norm / seen.steps}, state.kept)
        regime = regimes.found.get(ALL)
        if regime is None:
            return self._factors(state.settings.batch_factor, "between decisions", regimes.kept, regimes.warning)
        return self._factors(1 if regime.critical else self.factor, regime.why, regimes.kept, regimes.warning)

    def _factors(self, factor: int, why: str, kept: Mapping[str, Any] | None = None, warning: str = "") -> Choices:
        return Choices({ALL: Choice(self.codec, why)}, kept or {}, factor, float(factor), why, warning)

    def _detector(self) -> Detector:
        return Detector(self.name, self.eta, self.every, self.decay)
