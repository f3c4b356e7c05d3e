"""Workloads of any codec on any model, by running the tracer: for the shipped traces, and for what is not among them.

What users bring of their own, a codec or a model, is traced when first asked for and kept in the user's cache, under a
name that changes with the model's shapes, the codec's parameters and the source of gradwire's codecs and strategies.
"""

from __future__ import annotations

import dataclasses
import gzip
import hashlib
import inspect
import json
import math
import os
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

import gradwire
from gradwire import models
from gradwire.collectives.choose import possible
from gradwire.core.baselines import DDP
from gradwire.core.codec import Codec, Combine, Traits, codecs
from gradwire.core.exchange import Payload
from gradwire.core.random import Random
from gradwire.core.registry import to_spec
from gradwire.planner.simulated_buckets import buckets
from gradwire.planner.workload import AFTER, ANCHORS, OVERLAP, ModelShape, Traces, Workload, shipped
from gradwire.tracing import Trace, trace

SAMPLE = (512, 512)  # on which a codec is run whose sizes depend on the data; its bytes are scaled to the unit
ACTIVATION = 100.0  # multiply-adds in the time that one element of an activation is read and written
AUTO, ALL_GATHER = "auto", "all_gather"
VARIANTS = (  # traced beside every codec with its defaults
    "blockint(bits=8)",
    "powersgd(rank=1)",
    "powersgd(rank=2)",
    "powersgd(rank=8)",
    "powersgd(rank=16)",
    "topk(ratio=0.001)",
    "mstopk(ratio=0.001)",
    "qsgd(levels=1)",
)
CACHE = "GRADWIRE_CACHE"

CARRIERS = ("all_gather", "scatter_reduce_gather")  # strategies that encode and decode, all codecs alike

Tensors = Sequence[tuple[str, tuple[int, ...]]]


@dataclasses.dataclass(frozen=True)
class Counting(Codec):
    """Sends what it gets, and counts the elements that it encodes and decodes."""

    name: ClassVar[str] = "counting"
    family: ClassVar[str] = "quantization"
    paper: ClassVar[str] = "none"
    seen: Counter[str] = dataclasses.field(default_factory=Counter, compare=False)

    @property
    def traits(self) -> Traits:
        return Traits(combine=Combine.GATHER, memory="none", delta=0.0)

    def encode(self, x: Tensor, rng: Random) -> Payload:
        self.seen["encode"] += x.numel()
        return Payload(x.contiguous().view(torch.uint8))

    def decode(self, payload: Payload, numel: int, rng: Random) -> Tensor:
        found = payload.data.view(torch.float32)
        self.seen["decode"] += found.numel()
        return found

    def payload_bytes(self, numel: int) -> int:
        return 4 * numel


def counted(strategy: str, workers: int) -> tuple[float, float]:
    """Gradients that one worker encodes and decodes.

    Args:
        strategy: that carries them.
        workers: how many there are.
    """
    codec = Counting()
    trace(codec, [("matrix", SAMPLE)], workers=workers, strategy=strategy)
    elements = math.prod(SAMPLE)
    return codec.seen["encode"] / elements, codec.seen["decode"] / elements


def work(anchors: Sequence[int] = ANCHORS) -> dict[str, dict[str, tuple[float, float]]]:
    """What `counted` says by strategy and number of workers, as `Traces` keeps it."""
    return {strategy: {str(n): counted(strategy, n) for n in anchors} for strategy in CARRIERS}


def shape(name: str, module: nn.Module, inputs: tuple[Tensor, ...] | None) -> ModelShape:
    """A model's gradients; with inputs (on the meta device), how the backward pass comes by them."""
    tensors = models.trained(name, module)
    work = _work(module, inputs) if inputs is not None else {}
    total, passed = sum(work.values()), 0.0
    if not total:
        return ModelShape.evenly(name, [s for _, s in tensors])
    shares = []
    for parameter, _ in reversed(tensors):
        passed += work.pop(parameter.rpartition(".")[0], 0.0)
        shares.append(passed / total)
    rounded = [round(min(1.0, s), 4) for s in reversed(shares)]
    rounded[0] = 1.0  # the first parameter's gradient is the last thing that the backward pass finds
    return ModelShape(name, tuple(s for _, s in tensors), tuple(rounded))


def _work(module: nn.Module, inputs: tuple[Tensor, ...]) -> dict[str, float]:
    """Multiply-adds of each module that owns parameters; what activations cost until the next one is added."""
    work: dict[str, float] = {}
    last: list[str] = []

    def hook(name: str) -> Callable[..., None]:
        def count(layer: nn.Module, _: Any, output: Any) -> None:
            found = output[0] if isinstance(output, tuple) else output
            if not isinstance(found, Tensor):
                return
            weights = [p for p in layer.parameters(recurse=False) if p.dim() >= 2]
            positions = found.numel() / (found.shape[1] if found.dim() == 4 else found.shape[-1])
            macs = 0.0 if isinstance(layer, nn.Embedding) else sum(positions * p.numel() for p in weights)
            if list(layer.parameters(recurse=False)):
                last[:] = [name]
            if last:
                work[last[0]] = work.get(last[0], 0.0) + macs + ACTIVATION * found.numel()

        return count

    leaves = [(n, m) for n, m in module.named_modules() if not list(m.children()) or list(m.parameters(recurse=False))]
    handles = [layer.register_forward_hook(hook(name)) for name, layer in leaves]
    try:
        with torch.no_grad():
            module(*inputs)
    finally:
        for handle in handles:
            handle.remove()
    return work


def model_shape(name: str) -> ModelShape:
    """Of a model of the catalogue, or of what ``module:factory`` returns."""
    module = models.build(name)
    if ":" not in name:
        return shape(name, module, models.example(name, module, 2, "meta"))
    with suppress(Exception):  # an own model may not run on the meta device: then gradients come evenly
        return shape(name, module, models.example(name, module, 2, "meta"))
    return shape(name, module, None)


def traced(
    model: ModelShape, codec: str, strategies: Iterable[str], anchors: Sequence[int] = ANCHORS
) -> dict[str, Any]:
    """Units by strategy, mode and number of workers, as `perf.workload.Traces` keeps them."""
    whole = [tuple(model.shapes)]
    modes = {OVERLAP: [tuple(model.shapes[i] for i in b) for b in buckets(model.shapes)], AFTER: whole}
    return {
        strategy: {
            mode: {str(n): [_unit(codec, unit, strategy, n) for unit in units] for n in _anchors(strategy, anchors)}
            for mode, units in modes.items()
        }
        for strategy in strategies
    }


def _anchors(strategy: str, anchors: Sequence[int]) -> Sequence[int]:
    """A row for everybody is the same for any number of workers."""
    return anchors[:1] if strategy == ALL_GATHER else anchors


@cache
def _unit(codec: str, shapes: tuple[tuple[int, ...], ...], strategy: str, workers: int) -> list[Any]:
    built = codecs.build(codec)
    named = [(f"{i}", s) for i, s in enumerate(shapes)]
    if not built.traits.fixed_size:
        return _scaled(_sample(codec, strategy, workers), named)
    tensors = "all" if codec in DDP else "matrices"
    found = trace(built, named, workers=workers, strategy=strategy, tensors=tensors)
    exchanges = [[e.kind, e.round, e.handed_bytes] for e in found.exchanges]
    return [found.elements, found.compressed, found.strategy, exchanges]


@cache
def _sample(codec: str, strategy: str, workers: int) -> Trace:
    return trace(codec, [("matrix", SAMPLE)], workers=workers, strategy=strategy)


def _scaled(sample: Trace, tensors: Tensors) -> list[Any]:
    """A unit of a codec whose sizes depend on the data, from a sample; what travels uncompressed comes on top."""
    unit = trace("topk", tensors, workers=2)  # any codec of fixed size tells what of a unit is compressed
    times = unit.compressed / sample.elements
    exchanges = [[e.kind, e.round, round(times * e.handed_bytes)] for e in sample.exchanges]
    if unit.elements > unit.compressed:
        exchanges.append(["sum", 0, 4 * (unit.elements - unit.compressed)])
    return [unit.elements, unit.compressed, sample.strategy, exchanges]


def description(codec: str) -> dict[str, Any]:
    """What answers need to know of a codec beside its exchanges."""
    built = codecs.build(codec)
    defaults = ", ".join(f"{k}={v!r}" for k, v in _parameters(built).items())
    full = "".join(f"{built.name}({defaults})".split())
    written = {to_spec(built), full}
    if to_spec(built) == built.name:  # otherwise one parameter alone does not say which codec it is
        written |= {f"{built.name}()", *(f"{built.name}({k}={v!r})" for k, v in _parameters(built).items())}
    return {
        "written": sorted({"".join(w.split()) for w in written}),
        "keeps": built.traits.memory != "none",
        "fixed_size": built.traits.fixed_size,
        "family": built.family,
    }


def _parameters(codec: Codec) -> dict[str, Any]:
    return {f.name: getattr(codec, f.name) for f in dataclasses.fields(codec) if f.init}


def strategies_of(codec: str) -> list[str]:
    """Those that are traced: the usual choice, and all-gather, by which the literature sends what cannot be summed."""
    return [AUTO, *(s for s in possible(codecs.build(codec)) if s == ALL_GATHER and codec not in DDP)]


def content(
    model: ModelShape, codec: str, strategies: Sequence[str], anchors: Sequence[int] = ANCHORS
) -> dict[str, Any]:
    """One model and one codec, as `perf.workload.Traces` holds them."""
    return {
        "models": {model.name: _kept(model)},
        "codecs": {codec: description(codec)},
        "traces": {model.name: {codec: traced(model, codec, strategies, anchors)}},
    }


def _kept(model: ModelShape) -> dict[str, Any]:
    return {"shapes": [list(s) for s in model.shapes], "shares": list(model.shares)}


def catalogue(
    model_names: Sequence[str] | None = None,
    specs: Sequence[str] | None = None,
    on_done: Callable[[str, str], None] = lambda model, codec: None,
) -> dict[str, Any]:
    """All that is shipped: every codec on every model."""
    chosen = list(specs or [*codecs.names(), *VARIANTS])
    found: dict[str, Any] = {
        "models": {},
        "codecs": {c: description(c) for c in chosen},
        "work": work(),
        "inside": inside(),
        "traces": {},
    }
    for name in model_names or models.names():
        model = model_shape(name)
        found["models"][name] = _kept(model)
        found["traces"][name] = {}
        for codec in chosen:
            found["traces"][name][codec] = traced(model, codec, strategies_of(codec))
            on_done(name, codec)
    return found


def inside(ranks: Sequence[int] = ANCHORS) -> dict[str, Any]:
    """What goes on inside nodes of so many ranks under `hierarchical`, as `Traces` keeps it: bytes an element.

    Args:
        ranks: of a node.
    """
    traces = [
        trace(Counting(), [("matrix", SAMPLE)], workers=2 * n, strategy=f"hierarchical(per_node={n})") for n in ranks
    ]
    within = [[e for e in found.exchanges if e.node_bytes] for found in traces]
    (kinds,) = {tuple(e.kind for e in found) for found in within}
    first = next(e.round for e in traces[0].exchanges if e.sent_bytes)
    sizes = {
        str(n): [e.handed_bytes / math.prod(SAMPLE) for e in found] for n, found in zip(ranks, within, strict=True)
    }
    return {"kinds": list(kinds), "before": sum(e.round < first for e in within[0]), "bytes": sizes}


@cache
def single(model: str, codec: str, mode: str, workers: int) -> Workload:
    """Of a model of the catalogue with any codec, for one number of workers alone; kept in no file."""
    spec = to_spec(codecs.build(codec))
    return Traces(content(shipped().shape(model), spec, [AUTO], (workers,))).workload(model, spec, AUTO, mode, workers)


def _text(content: Any) -> str:
    return json.dumps(content, separators=(",", ":"), sort_keys=True)


def dump(content: dict[str, Any]) -> bytes:
    """As shipped; the same content gives the same bytes. Traces of a model are a text in the text, read when needed."""
    traces = {model: _text(found) for model, found in content["traces"].items()}
    text = _text({**content, "traces": traces})
    return gzip.compress(text.encode(), compresslevel=9, mtime=0)


# -------------------------------------------------------------------- what users bring


@cache
def own(model: str, codec: str, strategy: str) -> Traces:
    """Traces of one model and codec, from the user's cache or made now."""
    found, spec = model_shape(model), to_spec(codecs.build(codec))
    kept = _cache_file(found, spec, strategy)
    if kept.is_file():
        with suppress(OSError, ValueError):
            return Traces(json.loads(gzip.decompress(kept.read_bytes())))
    made = content(found, spec, [strategy])
    with suppress(OSError):  # a cache that cannot be written costs a second next time
        kept.parent.mkdir(parents=True, exist_ok=True)
        kept.write_bytes(dump(made))
    return Traces(made)


def _cache_file(model: ModelShape, spec: str, strategy: str) -> Path:
    built = type(codecs.build(spec))
    source = inspect.getsource(sys.modules[built.__module__])
    about = [gradwire.__version__, ANCHORS, model.name, model.shapes, model.shares, spec, strategy, source]
    key = json.dumps(about)
    home = Path(os.environ.get(CACHE) or Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "gradwire")
    return home / "traces" / f"{hashlib.blake2b(key.encode(), digest_size=12).hexdigest()}.json.gz"
