"""Our own model, asked about a set-up of the study: `planner.model.predict` with one of the two V100 profiles."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from gradwire.core.baselines import DDP
from gradwire.core.errors import Incompatible
from gradwire.core.search import boundary
from gradwire.laboratory.reproduce.setup import SYNC, Setup
from gradwire.planner.profile import Profile
from gradwire.planner.published import crossover

GPUS_PER_NODE = 4  # of a p3.8xlarge, section 3
SUMMED = (*DDP, "powersgd")  # by all-reduce in the study, everything else by all-gather
AFTER, OVERLAP = "after_backward", "overlap"

Predict = Callable[..., Any]  # keyword arguments of `predict` -> Prediction


def shipped_predict(**question: Any) -> Any:
    """The model that is shipped, imported when it is first asked."""
    from gradwire.planner.model import predict

    return predict(**question)


def study_strategy(codec: str) -> str:
    """How the study sends a codec's payloads."""
    return "auto" if codec.partition("(")[0] in SUMMED else "all_gather"


@dataclass(frozen=True)
class Ours:
    """`strategy` maps a codec to how it travels. Answers are kept: many figures ask the same."""

    profile: Profile
    predict: Predict = shipped_predict
    strategy: Callable[[str], str] = study_strategy
    mode: str = AFTER
    gpus_per_node: int = GPUS_PER_NODE
    latency: float | None = None
    _kept: dict[Hashable, Any] = field(default_factory=dict, repr=False, compare=False)

    @property
    def label(self) -> str:
        return f"our model, {self.profile.name}"

    def ask(self, setup: Setup, codec: str, *, mode: str | None = None, strategy: str | None = None) -> Any:
        """The whole prediction."""
        question = dict(
            model=setup.model,
            batch=setup.batch,
            gpus=setup.gpus,
            gpus_per_node=self.gpus_per_node,
            bandwidth=self._rate(setup),
            codec=codec,
            strategy=strategy or self.strategy(codec),
            mode=OVERLAP if codec in DDP else mode or self.mode,
            latency=self.latency,
            compute_speed=setup.compute_speed,
            # FP16's casts are no codec's encoding: scaled, too, they would make it lose where codecs get slower
            encode_speed=1.0 if codec in DDP else setup.encode_speed,
            ratio=setup.ratio,
        )
        key = tuple(question.values())
        if key not in self._kept:
            self._kept[key] = self.predict(hardware=self.profile, **question)
        return self._kept[key]

    def seconds(self, setup: Setup, codec: str) -> float:
        return float(self.ask(setup, codec).sync_seconds)

    def backward(self, setup: Setup) -> float:
        return self.profile.times(setup.model, setup.batch).backward_seconds / setup.compute_speed

    def without_overlap(self, setup: Setup) -> float:
        return self.backward(setup) + float(self.ask(setup, SYNC).parts["exchange"])

    def required(self, setup: Setup, within: float | None) -> float:
        if within is None:
            raise Incompatible(
                "our model plays single buckets, so there is no `all but the last` to hide; give `within`"
            )
        bound = (1 + within) * self.profile.overlap.network_slowdown * self.backward(setup)
        low, high = 1.0, 1e6
        if self.seconds(setup, SYNC) <= bound:
            return low
        if self.seconds(setup.at(ratio=high), SYNC) > bound:
            return math.inf
        return boundary(lambda ratio: self.seconds(setup.at(ratio=ratio), SYNC) > bound, low, high, 1e-4)[1]

    def crossover(self, setup: Setup, codec: str) -> float | None:
        def at(codec: str, rate: float) -> float:
            return self.seconds(setup.at(bits_per_second=rate, face_value=True), codec)

        return crossover(partial(at, codec), partial(at, SYNC), precision=1e-4)

    def _rate(self, setup: Setup) -> float:
        """Nominal; of a model that needs another effective rate than ResNet-101, in proportion."""
        effective = self.profile.about.get("formula_bits_per_second", {})
        if setup.face_value or setup.model not in effective:
            return setup.bits_per_second
        return setup.bits_per_second * float(effective[setup.model]) / float(effective["resnet101"])
