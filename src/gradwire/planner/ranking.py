"""Codecs side by side on one set-up: each in its fastest mode and strategy, against DDP's own sums."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from gradwire.core.baselines import BF16, DDP, FP16, FP32
from gradwire.core.errors import Incompatible
from gradwire.planner.model import ALL_GATHER, HIERARCHICAL, MODES, SERVER, Prediction
from gradwire.planner.profile import Profile
from gradwire.planner.workload import OVERLAP, shipped

AUTO = "auto"
STRATEGIES = (AUTO, ALL_GATHER, HIERARCHICAL, SERVER)
LABELS = {FP32: "FP32 DDP", FP16: "FP16 DDP", BF16: "BF16 DDP"}
NOT_MEASURED = "not measured on this hardware"
NO_WAY = "cannot go by this strategy"
TOO_LARGE = "does not fit into memory"
ESTIMATED = "sizes depend on the data, estimated from noise"


@dataclass(frozen=True, kw_only=True)
class Ranked:
    """A codec (or DDP itself) at its best. Where nothing could be predicted, the notes say why."""

    codec: str
    notes: tuple[str, ...]
    mode: str | None = None
    strategy: str | None = None
    step_seconds: float | None = None
    speedup: float | None = None  # over the faster of FP32 and FP16 DDP
    sent_bytes: float | None = None  # by one worker
    sent_against_fp16: float | None = None  # so many times less than FP16 sums that go the same way
    memory_bytes: float | None = None  # beside the training's own
    fits: bool | None = None  # None: not known
    estimated: bool = False
    parts: Mapping[str, float] | None = None  # seconds, as in a prediction
    cost_source: str | None = None
    standing: str | None = None  # safe, lossy or untried, by our own trainings
    evidence: str | None = None  # what they say


@dataclass(frozen=True)
class Contest:
    """One set-up in which codecs are tried; `changes` to it may be asked for, too."""

    predict: Callable[..., Prediction]
    profile: Profile
    setup: Mapping[str, Any]  # for `predict`, without codec, mode and strategy
    modes: Sequence[str] = MODES
    strategy: str | None = None  # None: the best of those that make sense here

    def baseline(self, codec: str, **changes: Any) -> Prediction:
        """DDP with gradients of that width on the wire, its sums by the faster of the profile's way and node by node.

        Codecs may go node by node, so DDP must be allowed to: what a codec then wins is owed to compression alone.
        """
        return min(self._tried(codec, (OVERLAP,), None, changes), key=_seconds)

    def baselines(self) -> list[Prediction]:
        """Those whose cost is known; FP32 always is."""
        return [self.baseline(codec) for codec in DDP if codec == FP32 or self.knows(codec)]

    def reference(self, **changes: Any) -> Prediction:
        """What a codec has to beat: the faster of FP32 and FP16 DDP."""
        return min(self._references(changes), key=_seconds)

    def best(self, codec: str, **changes: Any) -> Prediction:
        """The codec in the fastest of its modes and strategies, of those that fit into memory if any does."""
        found = list(self._tried(codec, self.modes, self.strategy, changes))
        return min([p for p in found if p.fits is not False] or found, key=_seconds)

    def beats(self, codec: str, times: float, **changes: Any) -> bool:
        """Whether the best of the codec is so many times as fast as the reference; predicts no more than is needed."""
        own = (
            times * p.step_seconds
            for p in self._tried(codec, self.modes, self.strategy, changes)
            if p.fits is not False
        )
        others = map(_seconds, self._references(changes))
        mine, theirs = next(own, math.inf), next(others)
        while True:
            turn = others if mine < theirs else own
            drawn = next(turn, None)
            if drawn is None:
                return turn is others
            mine, theirs = (mine, min(theirs, drawn)) if turn is others else (min(mine, drawn), theirs)

    def _references(self, changes: Mapping[str, Any]) -> Iterator[Prediction]:
        for codec in (FP16, FP32):
            if codec == FP32 or self.knows(codec):
                yield from self._tried(codec, (OVERLAP,), None, changes)

    def _tried(
        self, codec: str, modes: Sequence[str], strategy: str | None, changes: Mapping[str, Any]
    ) -> Iterator[Prediction]:
        """In all ways, the promising ones first."""
        setup = {**self.setup, **changes}
        nodes = 1 < setup["gpus_per_node"] < setup["gpus"]
        strategies = (strategy,) if strategy else (HIERARCHICAL, AUTO) if nodes else (AUTO,)
        for way in strategies:
            for mode in modes:
                yield self.predict(**setup, codec=codec, mode=mode, strategy=way)

    def knows(self, codec: str) -> bool:
        """Whether the profile has a cost of this codec that holds for this model."""
        found = self.profile.cost(codec)
        if found is None:
            return False
        cost = found[0]
        return self.setup["model"] in cost.models or (cost.encode is not None and cost.decode is not None)

    def ranking(self, codecs: Sequence[str]) -> tuple[Ranked, ...]:
        """The fastest first; those that nothing is known about last."""
        reference = self.reference()
        entries = [self._entry(codec, reference) for codec in codecs]
        return tuple(sorted(entries, key=lambda r: (r.step_seconds is None, r.step_seconds or 0.0)))

    def _entry(self, codec: str, reference: Prediction) -> Ranked:
        model, spec = self.setup["model"], shipped().spec(codec)
        if spec is not None and not self.knows(codec):
            return Ranked(codec=codec, notes=(NOT_MEASURED,))
        traced = spec is not None and model in shipped().models()
        if traced and self.strategy == ALL_GATHER and not shipped().has(model, codec, ALL_GATHER):
            return Ranked(codec=codec, notes=(NO_WAY,))
        try:
            return self.ranked(self.best(codec), reference)
        except Incompatible:
            return Ranked(codec=codec, notes=(NO_WAY,))

    def ranked(self, prediction: Prediction, reference: Prediction) -> Ranked:
        """A prediction beside those of DDP."""
        notes = [TOO_LARGE] * (prediction.fits is False) + [ESTIMATED] * prediction.estimated
        half = self._half(prediction.strategy)
        return Ranked(
            codec=prediction.codec,
            notes=tuple(notes),
            mode=prediction.mode,
            strategy=prediction.strategy,
            step_seconds=prediction.step_seconds,
            speedup=reference.step_seconds / prediction.step_seconds,
            sent_bytes=prediction.sent_bytes,
            sent_against_fp16=half / prediction.sent_bytes if prediction.sent_bytes > 0 else None,
            memory_bytes=prediction.memory_bytes,
            fits=prediction.fits,
            estimated=prediction.estimated,
            parts=dict(prediction.parts),
            cost_source=next((i.source for i in prediction.inputs if i.name == "encode and decode"), None),
        )

    def _half(self, strategy: str) -> float:
        """Bytes that a worker would send of 16-bit gradients, node by node or not."""
        way = HIERARCHICAL if strategy == HIERARCHICAL else AUTO
        if way not in self._halves:
            self._halves[way] = self.predict(**self.setup, codec=FP32, strategy=way).sent_bytes / 2
        return self._halves[way]

    @cached_property
    def _halves(self) -> dict[str, float]:
        return {}


def _seconds(prediction: Prediction) -> float:
    return prediction.step_seconds


def wanted(codecs: str | Sequence[str] | None) -> list[str]:
    """Specs to rank, each once and without DDP's own; None: the whole catalogue."""
    named = [codecs] if isinstance(codecs, str) else codecs
    specs = [shipped().spec(c) or c for c in named] if named else shipped().codecs()
    return [c for c in dict.fromkeys(specs) if c not in DDP]
