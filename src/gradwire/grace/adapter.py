"""Runs a compressor written against GRACE's interface as a codec, unchanged.

    handle = gradwire.attach(ddp_model, gradwire.grace.adapt(MyCompressor(0.01), memory=MyMemory()))

What is asked of the objects, and all that is: ``compress(tensor, name) -> (tensors, ctx)`` and ``decompress(tensors,
ctx)``; optionally ``aggregate(list of tensors)`` (else their sum), ``average`` (default True: divided by the number of
workers) and ``tensors_size_are_same`` (default True; False if sizes differ between workers). A memory has
``compensate(tensor, name)`` and ``update(tensor, name, compressor, tensors, ctx)``.

As GRACE does, each tensor is compressed by itself, and the context stays on its worker: everybody decodes everybody's
tensors with his own. Unlike there, all tensors of a unit travel as one payload of bytes; bits are counted as they are,
so a compressor that does not pack pays for it. Every worker gets a copy of the objects as they were given, so that
virtual workers do not share a memory. Random numbers that a compressor draws from torch's global generator are seeded
by worker, step and tensor, and the global state is put back. The memory is updated after the exchange, and only if the
result is finite. What the objects keep is theirs: it is not part of any ``state_dict``.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, ClassVar
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from gradwire.core.codec import Codec, Combine, Context, Reduced, Traits
from gradwire.core.errors import ConfigError
from gradwire.core.exchange import Gather, Payload
from gradwire.core.layout import Segment
from gradwire.core.state import Store


@dataclass(frozen=True, eq=False)
class GraceCodec(Codec):
    """A foreign compressor, and its memory if it has one. Made by `adapt`."""

    name: ClassVar[str] = "grace"
    family: ClassVar[str] = "adapter"
    paper: ClassVar[str] = "Xu et al., GRACE, ICDCS 2021"
    compressor: Any
    memory: Any = None
    _copies: WeakKeyDictionary[Store, list[tuple[Any, Any]]] = field(
        init=False, repr=False, default_factory=WeakKeyDictionary
    )

    @property
    def traits(self) -> Traits:
        same = bool(getattr(self.compressor, "tensors_size_are_same", True))
        return Traits(combine=Combine.ROUNDS, fixed_size=same, shards=False, odd=False, homogeneous=False)

    @property
    def spec(self) -> str:
        return f"grace({type(self.compressor).__name__})"

    def config(self) -> dict[str, Any]:
        memory = None if self.memory is None else type(self.memory).__name__
        return {"compressor": type(self.compressor).__name__, "memory": memory}

    def reduce(self, x: Tensor, ctx: Context) -> Reduced:
        copies = self._of_these_workers(ctx)
        encoded = [self._encode(row, i, copies[i], ctx) for i, row in enumerate(x)]
        rows = yield Gather(_stacked([_payload(sent, self.traits.fixed_size) for sent, _ in encoded]))
        means = [self._decode(rows, *encoded[i], copies[i], ctx) for i in range(len(x))]
        return means[0], None

    def _encode(self, x: Tensor, i: int, worker: tuple[Any, Any], ctx: Context) -> tuple[list[Tensor], list[Any]]:
        """What the worker of row `i` sends, and what it must know to decode what others sent."""
        (compressor, memory), sent, contexts = worker, list[Tensor](), []
        for segment, piece in zip(ctx.layout.segments, ctx.layout.split(x), strict=True):
            tensor = piece.clone().view(segment.shape)
            with _seeded(x.device, ctx.rng.private(segment.name).keys[i]):
                if memory is not None:
                    tensor = memory.compensate(tensor, segment.name)
                tensors, context = compressor.compress(tensor, segment.name)
            contexts.append((tensor, list(tensors), context))
            sent += [_checked(t, self.spec, segment) for t in tensors]
        return sent, contexts

    def _decode(
        self, rows: Payload, sent: list[Tensor], contexts: list[Any], worker: tuple[Any, Any], ctx: Context
    ) -> Tensor:
        (compressor, memory), outs, first = worker, list[Tensor](), 0
        workers = [_tensors(rows, i, sent, self.traits.fixed_size) for i in range(ctx.workers)]
        for segment, (_, tensors, context) in zip(ctx.layout.segments, contexts, strict=True):
            decoded = [compressor.decompress(w[first : first + len(tensors)], context) for w in workers]
            outs.append(_aggregated(compressor, decoded, ctx.workers).float().reshape(1, segment.numel))
            first += len(tensors)
        mean = torch.cat(outs, 1)
        if memory is not None and bool(mean.isfinite().all()):
            for segment, (tensor, tensors, context) in zip(ctx.layout.segments, contexts, strict=True):
                memory.update(tensor, segment.name, compressor, tensors, context)
        return mean

    def _of_these_workers(self, ctx: Context) -> list[tuple[Any, Any]]:
        """Each worker's copies. Engines are told apart by their stores."""
        store = ctx.state.store
        if store not in self._copies:
            self._copies[store] = [copy.deepcopy((self.compressor, self.memory)) for _ in ctx.ranks]
        return self._copies[store]


def adapt(compressor: Any, memory: Any = None) -> Codec:
    """Make a codec that runs a compressor written for GRACE.

    Args:
        compressor: an object with ``compress(tensor, name)`` and ``decompress(tensors, ctx)``; see the module's text
            for what else it may have.
        memory: an object with ``compensate(tensor, name)`` and ``update(tensor, name, compressor, tensors, ctx)``.

    Example:
        >>> import torch, gradwire
        >>> class Half:
        ...     def compress(self, tensor, name):
        ...         return [tensor.half()], None
        ...
        ...     def decompress(self, tensors, ctx):
        ...         return tensors[0].float()
        >>> cluster = gradwire.VirtualCluster(workers=2, codec=gradwire.grace.adapt(Half()))
        >>> cluster.reduce({"w": [torch.ones(2), torch.zeros(2)]})["w"]
        tensor([0.5000, 0.5000])
    """
    for thing, methods in ((compressor, ("compress", "decompress")), (memory, ("compensate", "update"))):
        missing = [m for m in methods if not callable(getattr(thing, m, None))]
        if thing is not None and (missing or isinstance(thing, type)):
            what = "is a class, not an object: call it" if isinstance(thing, type) else f"has no `{missing[0]}`"
            raise ConfigError(f"grace.adapt: {thing!r} {what}; wanted an object with {' and '.join(methods)}")
    if compressor is None:
        raise ConfigError("grace.adapt: got None; wanted an object with compress and decompress")
    return GraceCodec(compressor, memory)


@contextmanager
def _seeded(device: torch.device, key: int) -> Iterator[None]:
    """Global randomness that depends on `key` inside, and is untouched outside."""
    with torch.random.fork_rng([device] if device.type == "cuda" else []):
        torch.default_generator.manual_seed(key >> 1)
        if device.type == "cuda":
            torch.cuda.manual_seed(key >> 1)
        yield


def _checked(tensor: Any, who: str, segment: Segment) -> Tensor:
    if not isinstance(tensor, Tensor):
        raise ConfigError(
            f"{who}: `compress` of {segment.name!r} returned a {type(tensor).__name__} among its tensors; "
            "what is not a tensor belongs into the context"
        )
    return tensor.detach()


def _aggregated(compressor: Any, decoded: list[Tensor], workers: int) -> Tensor:
    aggregate: Callable[[list[Tensor]], Any] = getattr(compressor, "aggregate", sum)
    total: Tensor = aggregate(decoded)
    return total / workers if getattr(compressor, "average", True) else total


def _payload(tensors: Sequence[Tensor], fixed: bool) -> Payload:
    """All tensors as one row of bytes; where sizes differ between workers, their element counts come first."""
    parts = [t.contiguous().reshape(-1).view(torch.uint8) for t in tensors if t.numel()]
    device = tensors[0].device if tensors else torch.device("cpu")
    if not fixed:
        counts = torch.tensor([t.numel() for t in tensors], dtype=torch.int64, device=device)
        parts.insert(0, counts.view(torch.uint8) if tensors else torch.empty(0, dtype=torch.uint8, device=device))
    data = torch.cat([p.to(device) for p in parts]) if parts else torch.empty(0, dtype=torch.uint8, device=device)
    return Payload(data[None], None if fixed else torch.tensor([data.numel()]))


def _stacked(payloads: Sequence[Payload]) -> Payload:
    """The rows of all workers here, padded to one width."""
    width = max(p.data.shape[1] for p in payloads)
    lengths = [p.lengths for p in payloads if p.lengths is not None]
    data = torch.cat([torch.nn.functional.pad(p.data, (0, width - p.data.shape[1])) for p in payloads])
    return Payload(data, torch.cat(lengths) if lengths else None)


def _tensors(rows: Payload, worker: int, like: Sequence[Tensor], fixed: bool) -> list[Tensor]:
    """One worker's tensors again; `like` are this worker's own, for dtypes and shapes."""
    row, start = rows.data[worker], 0
    counts = [t.numel() for t in like]
    if not fixed:
        start = 8 * len(like)
        counts = row[:start].clone().view(torch.int64).tolist() if like else []
    out = []
    for mine, count in zip(like, counts, strict=True):
        stop = start + count * mine.element_size()
        values = row[start:stop].clone().view(mine.dtype) if count else mine.new_empty(0)
        out.append(values.view(mine.shape) if count == mine.numel() else values)
        start = stop
    return out
