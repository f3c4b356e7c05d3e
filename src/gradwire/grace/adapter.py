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
by worker, step and tensor, and the global state is put back.

What a compressor asks torch.distributed for inside ``compress``, as GRACE's PowerSGD does, travels among our workers
and is counted (`calls`); its workers then draw the same random numbers. Before a payload is sent, the workers agree in
24 bytes on two things:

1. **Whether all gradients are finite.** One that is not never reaches foreign code, all get NaN, and the step is
   skipped. What the objects have become in a step is kept only if the whole step is finite: each step works on a copy.
2. **Whether sizes are equal**, where they were declared so. If not, all workers end with a sentence.

What the objects keep is theirs: it is not part of any ``state_dict``.
"""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, ClassVar
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from gradwire.core.codec import Codec, Combine, Context, Reduced, Traits
from gradwire.core.errors import CodecError, ConfigError, CorruptPayload
from gradwire.core.exchange import Gather, Max, Payload, Program
from gradwire.core.layout import Segment
from gradwire.core.state import Store
from gradwire.grace.calls import Call, run_together

Objects = list[tuple[Any, Any]]  # compressor and memory of each worker of this process


class Workers:
    """The objects of an engine's workers: as the last good step left them, and as this step has changed them.

    Args:
        given: compressor and memory, of which each worker gets a copy.
        workers: how many are in this process.
    """

    def __init__(self, given: tuple[Any, Any], workers: int) -> None:
        self._kept: Objects = [copy.deepcopy(given) for _ in range(workers)]
        self._now: Objects | None = None
        self._step, self._seen = -1, set[str]()
        self._lock = threading.Lock()  # units of a step come in several threads
        self.exchanging: dict[str, bool] = {}  # whether `compress` asks for collectives, by tensor

    def begin(self, step: int, names: Sequence[str]) -> Objects:
        """Objects to work with in this step. One that was abandoned, and begins again, leaves nothing behind."""
        with self._lock:
            if self._now is None or step != self._step or self._seen & set(names):
                self._now, self._step, self._seen = copy.deepcopy(self._kept), step, set()
            self._seen |= set(names)
            return self._now

    def keep(self) -> None:
        """The step was good."""
        with self._lock:
            if self._now is not None:
                self._kept, self._now = self._now, None


@dataclass(frozen=True, eq=False)
class GraceCodec(Codec):
    """A foreign compressor, and its memory if it has one. Made by `adapt`."""

    name: ClassVar[str] = "grace"
    family: ClassVar[str] = "adapter"
    paper: ClassVar[str] = "Xu et al., GRACE, ICDCS 2021"
    compressor: Any
    memory: Any = None
    _workers: WeakKeyDictionary[Store, Workers] = field(init=False, repr=False, default_factory=WeakKeyDictionary)

    @property
    def traits(self) -> Traits:
        # foreign code may do in one step what it does not do in the next: nothing is promised, and nothing is captured
        return Traits(combine=Combine.ROUNDS, fixed_size=False, shards=False, odd=False, homogeneous=False)

    @property
    def spec(self) -> str:
        return f"grace({type(self.compressor).__name__})"

    def config(self) -> dict[str, Any]:
        memory = None if self.memory is None else type(self.memory).__name__
        return {"compressor": type(self.compressor).__name__, "memory": memory}

    def reduce(self, x: Tensor, ctx: Context) -> Reduced:
        finite = x.isfinite().all(1)
        clean = torch.where(finite[:, None], x, 0.0)
        workers = self._of_these_workers(ctx)
        objects = workers.begin(ctx.rng.step, ctx.layout.names)
        self._rehearse(clean, workers, objects, ctx)
        jobs = [partial(self._encode, row, i, objects[i], workers, ctx) for i, row in enumerate(clean)]
        encoded = yield from self._together(jobs, x, ctx)
        ctx.state.then(workers.keep)
        same = bool(getattr(self.compressor, "tensors_size_are_same", True))
        payloads = [_payload(sent, same, x.device) for sent, _ in encoded]
        sizes = torch.tensor([p.data.shape[1] for p in payloads], device=x.device)
        bad, most, least = (yield Max(torch.stack([finite.logical_not().long(), sizes, -sizes], 1)))[0].tolist()
        if bad:
            return x.new_full((1, x.shape[1]), torch.nan), None
        if same and most != -least:
            raise CodecError(
                f"{self.spec}: the workers' tensors take between {-least} and {most} bytes, and it declares that their "
                "sizes are the same; set tensors_size_are_same = False on the compressor"
            )
        nothing = Payload(x.new_empty((ctx.workers, 0), dtype=torch.uint8))
        rows = (yield Gather(_stacked(payloads), most=None if same else most)) if most else nothing
        decode = partial(self._decode, rows, same, ctx)
        means = yield from self._together([partial(decode, *encoded[i], objects[i]) for i in range(len(x))], x, ctx)
        return means[0], None

    def _together(self, jobs: Sequence[Callable[[], Any]], x: Tensor, ctx: Context) -> Program[list[Any]]:
        return (yield from run_together([Call(job, self.spec, ctx.workers, x.device) for job in jobs]))

    def _rehearse(self, x: Tensor, workers: Workers, objects: Objects, ctx: Context) -> None:
        """Find out, once for each tensor, whether `compress` asks for collectives. Nothing is exchanged."""
        for segment, piece in zip(ctx.layout.segments, ctx.layout.split(x[0]), strict=True):
            if segment.name not in workers.exchanging:
                job = partial(_compressed, piece, segment, copy.deepcopy(objects[0]))
                call = Call(job, self.spec, ctx.workers, x.device)
                call.go()
                workers.exchanging[segment.name] = call.wish is not None
                call.drop()

    def _encode(
        self, x: Tensor, i: int, worker: tuple[Any, Any], workers: Workers, ctx: Context
    ) -> tuple[list[Tensor], list[tuple[int, Any]]]:
        """What the worker of row `i` sends, and what it must know to decode what others sent."""
        sent, contexts = list[Tensor](), []
        for segment, piece in zip(ctx.layout.segments, ctx.layout.split(x), strict=True):
            alike = workers.exchanging[segment.name]  # what is then summed must come from the same draws
            keys = ctx.rng.common(segment.name).keys if alike else ctx.rng.private(segment.name).keys
            _seed(x.device, keys[0 if alike else i])
            tensors, context = _compressed(piece, segment, worker)
            contexts.append((len(tensors), context))
            sent += [_checked(t, self.spec, segment) for t in tensors]
        return sent, contexts

    def _decode(
        self,
        rows: Payload,
        same: bool,
        ctx: Context,
        sent: list[Tensor],
        contexts: list[tuple[int, Any]],
        worker: tuple[Any, Any],
    ) -> Tensor:
        compressor, outs, first = worker[0], list[Tensor](), 0
        received = [_tensors(rows, i, sent, same) for i in range(ctx.workers)]
        for segment, (count, context) in zip(ctx.layout.segments, contexts, strict=True):
            decoded = [compressor.decompress(one[first : first + count], context) for one in received]
            mean = _aggregated(compressor, decoded, ctx.workers).float()
            if mean.numel() != segment.numel:
                raise CodecError(
                    f"{self.spec}: `decompress` of {segment.name!r} must give {segment.numel} elements, and gives "
                    f"{mean.numel()}"
                )
            outs.append(mean.reshape(1, segment.numel))
            first += count
        return torch.cat(outs, 1)

    def _of_these_workers(self, ctx: Context) -> Workers:
        """Engines are told apart by their stores."""
        store = ctx.state.store
        if store not in self._workers:
            self._workers[store] = Workers((self.compressor, self.memory), len(ctx.ranks))
        return self._workers[store]


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


def _compressed(piece: Tensor, segment: Segment, worker: tuple[Any, Any]) -> tuple[Sequence[Tensor], Any]:
    """What GRACE does with a tensor before it is sent."""
    compressor, memory = worker
    tensor = piece.clone().view(segment.shape)
    if memory is None:
        tensors, context = compressor.compress(tensor, segment.name)
        return list(tensors), context
    tensor = memory.compensate(tensor, segment.name)
    tensors, context = compressor.compress(tensor, segment.name)
    memory.update(tensor, segment.name, compressor, tensors, context)
    return list(tensors), context


def _seed(device: torch.device, key: int) -> None:
    torch.default_generator.manual_seed(key >> 1)
    if device.type == "cuda":
        torch.cuda.manual_seed(key >> 1)


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


def _payload(tensors: Sequence[Tensor], same: bool, device: torch.device) -> Payload:
    """All tensors as one row of bytes; where sizes differ between workers, their element counts come first."""
    parts = [t.contiguous().reshape(-1).view(torch.uint8).to(device) for t in tensors if t.numel()]
    if not same and tensors:
        parts.insert(0, torch.tensor([t.numel() for t in tensors], device=device).view(torch.uint8))
    data = torch.cat(parts) if parts else torch.empty(0, dtype=torch.uint8, device=device)
    return Payload(data[None], None if same else torch.tensor([data.numel()]))


def _stacked(payloads: Sequence[Payload]) -> Payload:
    """The rows of all workers here, padded to one width."""
    width = max(p.data.shape[1] for p in payloads)
    lengths = [p.lengths for p in payloads if p.lengths is not None]
    data = torch.cat([torch.nn.functional.pad(p.data, (0, width - p.data.shape[1])) for p in payloads])
    return Payload(data, torch.cat(lengths) if lengths else None)


def _tensors(rows: Payload, worker: int, like: Sequence[Tensor], same: bool) -> list[Tensor]:
    """One worker's tensors again; `like` are this worker's own, for dtypes and shapes."""
    row = rows.data[worker] if rows.lengths is None else rows.data[worker, : int(rows.lengths[worker])]
    start, counts = 0, [t.numel() for t in like]
    if not same:
        start = 8 * len(like)
        counts = row[:start].clone().view(torch.int64).tolist() if start <= row.numel() else [-1] * len(like)
    size = start + sum(count * mine.element_size() for mine, count in zip(like, counts, strict=True))
    if min(counts, default=0) < 0 or size != row.numel():
        raise CorruptPayload(f"its counts are {counts}, and {row.numel():,} bytes came", worker)
    out = []
    for mine, count in zip(like, counts, strict=True):
        stop = start + count * mine.element_size()
        values = row[start:stop].clone().view(mine.dtype) if count else mine.new_empty(0)
        out.append(values.view(mine.shape) if count == mine.numel() else values)
        start = stop
    return out
