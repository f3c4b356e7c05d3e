"""`handle.layers()`: bytes and error of each parameter.

Tensors of a unit are compressed together, so a unit's bytes are shared out, in proportion to what each tensor would
cost alone; both are traced (`gradwire.tracing`). Errors are those of the last step in which they were measured.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache

import torch

from gradwire.core.codec import Codec
from gradwire.core.errors import UnknownName, suggestion
from gradwire.core.layout import Layout, Segment
from gradwire.core.units import format_bytes
from gradwire.engine import Engine
from gradwire.integrations.ways import Way
from gradwire.tracing import trace_unit

AS_IT_IS = "-"  # the codec of tensors that travel as they are


@dataclass(frozen=True, kw_only=True)
class Layer:
    """One parameter's gradient: bytes of one rank, in one step."""

    name: str
    elements: int
    codec: str  # "-": it travels as it is
    sent_bytes: float
    plain_bytes: int
    error: float | None  # of the result, relative to the exact mean; None: not measured

    @property
    def ratio(self) -> float | None:
        """How many times fewer bytes than plain DDP; None where nothing is sent."""
        return self.plain_bytes / self.sent_bytes if self.sent_bytes else None


@dataclass(frozen=True)
class Layers(Sequence[Layer]):
    """In the model's order; by position or by name. As text, a table."""

    layers: tuple[Layer, ...]
    step: int | None  # in which errors were measured

    def __len__(self) -> int:
        return len(self.layers)

    def __iter__(self) -> Iterator[Layer]:
        return iter(self.layers)

    def __getitem__(self, which: int | str) -> Layer:  # type: ignore[override]
        """One of them.

        Args:
            which: its position, or the parameter's name.
        """
        if not isinstance(which, str):
            return self.layers[which]
        names = {layer.name: layer for layer in self.layers}
        if which not in names:
            raise UnknownName(f"layers: there is no parameter named {which!r}; {suggestion(which, names)}")
        return names[which]

    def __repr__(self) -> str:
        width = max([len(layer.name) for layer in self.layers], default=0)
        codecs = max([len(layer.codec) for layer in self.layers], default=0)
        lines = [f"{'':{width}}  {'elements':>12}  {'codec':{codecs}}  {'sent':>9}  {'ratio':>6}  {'error':>7}"]
        for one in self.layers:
            ratio = "-" if one.ratio is None else f"{one.ratio:.3g}"
            error = "-" if one.error is None else f"{one.error:.3g}"
            lines.append(
                f"{one.name:{width}}  {one.elements:>12,}  {one.codec:{codecs}}  {format_bytes(one.sent_bytes):>9}  "
                f"{ratio:>6}  {error:>7}"
            )
        if self.step is None:
            lines.append("Errors are not measured: attach(..., nmse_every=100) does, and sends the full gradient then.")
        else:
            lines.append(f"Errors are of step {self.step}: |result - mean| / |mean|, with what the memory adds.")
        return "\n".join(lines)


def layers_of(engine: Engine, units: Sequence[Layout], dtypes: Mapping[str, torch.dtype], way: Way) -> Layers:
    """All parameters of the units.

    Args:
        engine: that reduces them.
        units: as they are reduced.
        dtypes: of gradients, by parameter.
        way: how they are reduced.
    """
    sent: dict[str, tuple[str, float]] = {}
    for unit in units:
        dtype = dtypes[unit.names[0]]
        prepared = engine.unit(engine.split(unit))
        for fitted, layout, _ in prepared.parts:
            sent |= {
                n: (fitted.codec.spec, b) for n, b in _shared_out(engine, fitted.codec, layout, dtype, way).items()
            }
        for segment in prepared.rest.segments:
            sent[segment.name] = AS_IT_IS, float(_plain(segment, dtype, engine.workers, way))
    errors = _errors(engine)
    found = []
    for segment in (s for unit in units for s in unit.segments):
        codec, size = sent[segment.name]
        plain = _plain(segment, dtypes[segment.name], engine.workers, way)
        error = errors.get(segment.name)
        if codec == AS_IT_IS and engine.errors_step is not None:
            error = 0.0
        found.append(
            Layer(
                name=segment.name,
                elements=segment.numel,
                codec=codec,
                sent_bytes=size,
                plain_bytes=plain,
                error=error,
            )
        )
    order = {name: i for i, name in enumerate(dtypes)}
    return Layers(tuple(sorted(found, key=lambda layer: order[layer.name])), engine.errors_step)


def _plain(segment: Segment, dtype: torch.dtype, workers: int, way: Way) -> int:
    return way.plain_bytes([torch.empty(segment.numel, dtype=dtype, device="meta")], workers)


def _shared_out(engine: Engine, codec: Codec, layout: Layout, dtype: torch.dtype, way: Way) -> dict[str, float]:
    """Bytes of the tensors of one codec in a unit."""

    def fresh() -> Engine:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # told when it was attached
            strategy = "auto" if engine.strategy is None else engine.strategy
            options = {"ranks": engine.ranks, "workers": engine.workers, "seed": engine.seed}
            return Engine(codec, memory=engine.memory, strategy=strategy, tensors="all", **options)  # type: ignore[arg-type]

    @cache
    def alone(shape: tuple[int, ...]) -> int:
        return trace_unit(fresh, Layout.of([("", shape)]), dtype, way.program).sent_bytes

    if not layout.segments:
        return {}
    each = {s.name: float(alone(s.shape)) for s in layout.segments}
    total, whole = sum(each.values()), trace_unit(fresh, layout, dtype, way.program).sent_bytes
    return {name: whole * size / total if total else 0.0 for name, size in each.items()}


def _errors(engine: Engine) -> dict[str, float]:
    """Relative errors of the last measured step; an accelerator is waited for."""
    found: dict[str, float] = {}
    for unit in engine.errors:
        for name, error, exact in zip(unit.names, *unit.squares.tolist(), strict=True):
            found[name] = math.sqrt(error / exact) if exact > 0 else math.nan if error else 0.0
    return found
