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

from dataclasses import dataclass
from typing import ClassVar

from gradwire.adaptive.accordion import Detector
from gradwire.adaptive.controller import ALL, Choice, Controller, Decision, Observation, check_codec, controllers
from gradwire.core.errors import ConfigError
from gradwire.core.registry import Check


@controllers.register
@dataclass(frozen=True)
class AccordionBatch(Controller):
    """`codec` is used throughout; `factor` is what the batch and the learning rate grow by."""

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
        return (self.codec,)

    def first(self) -> Decision:
        return self._factors(1, "the first epoch")

    def decide(self, seen: Observation) -> Decision:
        if seen.steps < 1:
            raise ConfigError(f"{self.name}: an epoch must have had a step, got {seen.steps} in epoch {seen.epoch}")
        mean = {ALL: seen.whole_norm / seen.steps}
        verdict = self._detector().verdicts(seen, mean, self.state.kept).get(ALL)
        if verdict is None:
            return self._factors(self.settings.batch_factor, "between decisions")
        return self._factors(1 if verdict.critical else self.factor, verdict.why)

    def _factors(self, factor: int, why: str) -> Decision:
        return Decision({ALL: Choice(self.codec, why)}, batch_factor=factor, rate_factor=float(factor), why=why)

    def _detector(self) -> Detector:
        return Detector(self.name, self.eta, self.every, self.decay)
