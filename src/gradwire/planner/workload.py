"""What a codec does with a model's gradients: its units of compression, and what each of them exchanges.

A workload comes from the tracer, so there is no formula of any codec here. Traces of the catalogue's codecs on the
catalogue's models are shipped (``data/traces.json.gz``, made by ``make traces``), at a few numbers of
workers. Between those, bytes are taken from the curve a + b n + c/n through three of them, which holds exactly for
shares of a gradient that carry a header each; where the exchanges themselves differ, the nearest is taken.
"""

from __future__ import annotations

import gzip
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from importlib.resources import files
from typing import Any

from gradwire.core.errors import UnknownName, suggestion
from gradwire.core.wire import gathered, reduced, scattered
from gradwire.planner.simulated_buckets import buckets

ANCHORS = (2, 4, 8, 16, 32, 64)  # numbers of workers that are traced
OVERLAP, AFTER = "overlap", "after_backward"


@dataclass(frozen=True)
class Exchange:
    """What one worker asks for."""

    kind: str  # sum, max, gather, scatter or route
    round: int  # exchanges of the same round travel together
    num_bytes: float  # handed in by one worker; of a scatter: all its rows

    def sent_bytes(self, workers: int) -> float:
        """That leave the worker."""
        if self.kind in ("sum", "max"):
            return reduced(self.num_bytes, workers)
        if self.kind == "route":
            return self.num_bytes
        return gathered(self.num_bytes, workers) if self.kind == "gather" else scattered(self.num_bytes, workers)


@dataclass(frozen=True)
class Unit:
    """What is compressed at once: a bucket, or the whole gradient."""

    elements: int
    compressed: int  # elements that the codec gets; the others travel as they are
    strategy: str  # that carries it
    exchanges: tuple[Exchange, ...]
    ready: float = 1.0  # share of the backward pass after which its gradients are there


@dataclass(frozen=True)
class Workload:
    """All units of one step, for some number of workers."""

    model: str
    codec: str
    strategy: str  # as wished
    mode: str
    workers: int
    units: tuple[Unit, ...]
    keeps: bool = False  # a memory as large as the gradient
    estimated: bool = False  # sizes depend on the data: of noise, not of real gradients

    @property
    def elements(self) -> int:
        return sum(u.elements for u in self.units)

    @property
    def sent_bytes(self) -> float:
        return sum(e.sent_bytes(self.workers) for u in self.units for e in u.exchanges)


@dataclass(frozen=True)
class ModelShape:
    """The gradients of a model, and how the backward pass comes by them."""

    name: str
    shapes: tuple[tuple[int, ...], ...]
    shares: tuple[float, ...]  # of the backward pass, after which each gradient is there

    @classmethod
    def evenly(cls, name: str, shapes: Sequence[tuple[int, ...]]) -> ModelShape:
        """Gradients come one after the other, the last parameter's first, all after the same time."""
        count = len(shapes)
        return cls(name, tuple(shapes), tuple(round((count - i) / count, 4) for i in range(count)))

    @property
    def elements(self) -> int:
        return sum(math.prod(s) for s in self.shapes)

    def ready(self) -> list[float]:
        """When each of DDP's buckets is complete."""
        return [max(self.shares[i] for i in bucket) for bucket in buckets(self.shapes)]


class Traces:
    """Traces by model, codec, strategy, mode and number of workers, as `data/traces.json.gz` holds them."""

    def __init__(self, content: Mapping[str, Any]) -> None:
        self._content = content
        self._specs = {w: s for s, known in reversed(content["codecs"].items()) for w in known["written"]}
        self._anchors: dict[tuple[str, str, str, str], dict[int, list[Unit]]] = {}
        self._ready: dict[str, list[float]] = {}
        self._by_model: dict[str, Mapping[str, Any]] = {}
        self._workloads: dict[tuple[str, str, str, str, int], Workload] = {}

    def content(self) -> dict[str, Any]:
        """All of it, as it was given; traces are read where they were texts."""
        return {**self._content, "traces": {model: dict(self._of(model)) for model in self._content["traces"]}}

    def models(self) -> list[str]:
        return sorted(self._content["models"])

    def codecs(self) -> list[str]:
        """Specs, in the catalogue's order; defaults are left out of a spec."""
        return list(self._content["codecs"])

    def spec(self, codec: str) -> str | None:
        """The spec under which a codec is kept: another way to write it may be known, too."""
        return self._specs.get("".join(codec.split()))

    def check_model(self, model: str) -> None:
        """Refuse a name that nobody knows."""
        if model not in self._content["models"]:
            raise UnknownName(f"no model named {model!r}; {suggestion(model, self.models())}")

    def shape(self, model: str) -> ModelShape:
        """The model's gradients."""
        self.check_model(model)
        kept = self._content["models"][model]
        return ModelShape(model, tuple(tuple(s) for s in kept["shapes"]), tuple(kept["shares"]))

    def has(self, model: str, codec: str, strategy: str) -> bool:
        spec = self.spec(codec)
        return spec is not None and strategy in self._of(model).get(spec, {})

    def workload(self, model: str, codec: str, strategy: str, mode: str, workers: int) -> Workload:
        """What the codec does there. Kept: one question asks for the same few workloads hundreds of times."""
        key = (model, codec, strategy, mode, workers)
        if key not in self._workloads:
            self._workloads[key] = self._workload(*key)
        return self._workloads[key]

    def _workload(self, model: str, codec: str, strategy: str, mode: str, workers: int) -> Workload:
        if model not in self._ready:
            self._ready[model] = self.shape(model).ready()
        spec = self.spec(codec)
        if spec is None:
            raise UnknownName(f"no trace of codec {codec!r}; {suggestion(codec, self.codecs())}")
        units = between(self._traced(model, spec, strategy, mode), workers)
        ready = self._ready[model] if mode == OVERLAP else [1.0]
        kept = self._content["codecs"][spec]
        return Workload(
            model,
            spec,
            strategy,
            mode,
            workers,
            tuple(replace(u, ready=r) for u, r in zip(units, ready, strict=True)),
            keeps=kept["keeps"],
            estimated=not kept["fixed_size"],
        )

    def work(self, strategy: str, workers: int) -> tuple[float, float]:
        """How many gradients a worker encodes and decodes under a strategy.

        Sums and a codec's own rounds take one of each: what they cost is measured as a whole.
        """
        traced = self._content["work"].get(strategy)
        if traced is None:
            return 1.0, 1.0
        encodes, decodes = _numbers(traced, workers)
        return encodes, decodes

    def inside(self, ranks: int) -> tuple[list[Exchange], list[Exchange]]:
        """Under `hierarchical`, what a rank exchanges in its node before and after nodes do, in bytes an element.

        Args:
            ranks: of a node.
        """
        kept = self._content["inside"]
        sizes = _numbers(kept["bytes"], ranks)
        found = [Exchange(kind, i, size) for i, (kind, size) in enumerate(zip(kept["kinds"], sizes, strict=True))]
        return found[: kept["before"]], found[kept["before"] :]

    def _of(self, model: str) -> Mapping[str, Any]:
        """Traces of one model: text of its own in a file, so that nobody has to read those of all others."""
        if model not in self._by_model:
            kept = self._content["traces"].get(model, {})
            self._by_model[model] = json.loads(kept) if isinstance(kept, str) else kept
        return self._by_model[model]

    def _traced(self, model: str, spec: str, strategy: str, mode: str) -> dict[int, list[Unit]]:
        """Units by the number of workers that was traced."""
        by_strategy = self._of(model).get(spec, {})
        if strategy not in by_strategy:
            raise UnknownName(
                f"no trace of {spec} under strategy {strategy!r}; known: {', '.join(by_strategy) or 'none'}"
            )
        key = (model, spec, strategy, mode)
        if key not in self._anchors:
            self._anchors[key] = {int(n): _units(units) for n, units in by_strategy[strategy][mode].items()}
        return self._anchors[key]


@cache
def shipped() -> Traces:
    """The catalogue's."""
    return Traces(json.loads(gzip.decompress((files("gradwire.planner") / "data" / "traces.json.gz").read_bytes())))


def between(anchors: Mapping[int, Sequence[Unit]], workers: int) -> tuple[Unit, ...]:
    """The units for a number of workers, from those at the anchors."""
    if workers in anchors:
        return tuple(anchors[workers])
    order = sorted(anchors, key=lambda n: abs(math.log(n / workers)))
    nearest = anchors[order[0]]
    alike = [n for n in order if _structure(anchors[n]) == _structure(nearest)][:3]
    if len(alike) < 3:
        return tuple(nearest)
    weights = _weights(alike, workers)
    least = order[0] / workers if workers > order[0] else 0.0  # a share shrinks in proportion at most: no curve below 0
    units = []
    for position, unit in enumerate(nearest):
        rows = [anchors[n][position].exchanges for n in alike]
        exchanges = tuple(
            Exchange(
                e.kind,
                e.round,
                max(least * e.num_bytes, sum(w * row[i].num_bytes for w, row in zip(weights, rows, strict=True))),
            )
            for i, e in enumerate(unit.exchanges)
        )
        units.append(replace(unit, exchanges=exchanges))
    return tuple(units)


def _numbers(traced: Mapping[str, Sequence[float]], workers: int) -> list[float]:
    """Numbers for so many workers, from those at the anchors, by the same curve."""
    anchors = {int(n): found for n, found in traced.items()}
    if workers in anchors:
        return list(anchors[workers])
    near = sorted(anchors, key=lambda n: abs(math.log(n / workers)))[:3]
    weights = _weights(near, workers)
    return [
        sum(w * x for w, x in zip(weights, row, strict=True)) for row in zip(*(anchors[n] for n in near), strict=True)
    ]


def _structure(units: Sequence[Unit]) -> list[Any]:
    return [(u.strategy, [(e.kind, e.round) for e in u.exchanges]) for u in units]


def _weights(anchors: Sequence[int], workers: int) -> list[float]:
    """By which values at three anchors add up to that of a + b n + c/n: Lagrange's, since n times it is a parabola."""
    weights = []
    for i, x in enumerate(anchors):
        others = [y for j, y in enumerate(anchors) if j != i]
        weights.append(x / workers * math.prod((workers - y) / (x - y) for y in others))
    return weights


def _units(kept: Sequence[Any]) -> list[Unit]:
    return [
        Unit(elements, compressed, strategy, tuple(Exchange(kind, round_, size) for kind, round_, size in exchanges))
        for elements, compressed, strategy, exchanges in kept
    ]
