"""A unit of compression, prepared: which of its tensors each codec gets, and where they lie.

A unit has one part, unless a controller gives its tensors different codecs. What no codec gets, vectors and tiny
tensors, travels as it is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from gradwire.collectives.choose import check
from gradwire.core.codec import Carrier, Codec, Context, codecs
from gradwire.core.exchange import Program
from gradwire.core.layout import Layout
from gradwire.core.received import guarded
from gradwire.core.state import Transaction
from gradwire.core.window import Feedback, Flag, Spans, Window
from gradwire.memory.base import Memory
from gradwire.memory.none import NoMemory

GLANCE = 64  # elements that mostly tell that a tensor is used


@dataclass(frozen=True)
class FittedCodec:
    """A codec, and the same as it runs under an engine's memory."""

    codec: Codec
    running: Codec

    @classmethod
    def of(cls, codec: str | Codec, memory: Memory, carrier: Carrier | None) -> FittedCodec:
        """Refuses a codec that fits neither, with the reason."""
        built = codecs.build(codec) if isinstance(codec, str) else codec
        check(built, carrier)
        return cls(built, memory.fit(built))


@dataclass(frozen=True)
class Unit:
    """Where the parts of a unit lie in its buffer."""

    whole: Layout
    parts: tuple[tuple[FittedCodec, Layout, Spans], ...]  # what each codec gets
    rest: Layout
    rest_spans: Spans


@dataclass(frozen=True, eq=False)
class Errors:
    """Of the tensors that codecs reduced in one step: squares of each one's error, and of its exact mean."""

    names: tuple[str, ...]
    squares: Tensor  # (2, tensors)

    @classmethod
    def of(cls, layout: Layout, mean: Tensor, exact: Tensor) -> Errors:
        """Of the result `mean`, beside what it should be."""
        squares = [(mean - exact).float().square(), exact.float().square()]
        return cls(layout.names, torch.stack([torch.stack([p.sum() for p in layout.split(s)]) for s in squares]))

    @classmethod
    def joined(cls, parts: Sequence[Errors]) -> Errors:
        """Of all parts of a unit."""
        return cls(tuple(n for part in parts for n in part.names), torch.cat([part.squares for part in parts], 1))

    @property
    def total(self) -> Tensor:
        """Of error and exact mean, of all tensors together."""
        return self.squares.sum(1)


@dataclass(frozen=True, eq=False)
class UnitResult:
    """What a unit's program returns: the mean, and what `finish_step` needs."""

    out: Tensor  # (1, total)
    flags: tuple[Flag, ...]  # of all that was written; none where nothing is kept
    squares: Tensor | None  # of error and exact mean, where they were measured
    writes: tuple[Transaction, ...]
    errors: Errors | None = None  # the same by tensor, where one rank knows them


@dataclass
class UnitPart:
    """The tensors of one codec in a unit, in one step: compensated, reduced, and what is kept of them."""

    fitted: FittedCodec
    memory: Memory
    ctx: Context
    source: Window
    target: Window
    feedback: Feedback | None = None

    def prepare(self, flags: Mapping[str, Tensor], measured: bool) -> None:
        """Let the memory say what it adds. `flags`: which tensors the workers here used, where that is tracked."""
        self.source, self.feedback = self.memory.prepare(self.source, self.ctx)
        self._kept: dict[str, tuple[Tensor, Tensor | None]] = {}
        if (measured or flags) and self.feedback is not None:
            self.source = Window.whole(self.feedback.compensated(self.source), scratch=True)
            self.feedback = self.feedback.done()
        for name in _unused_here(flags):
            place = self._place(name)
            momentum = None if self.feedback is None else self.feedback.momentum
            if self.feedback is not None:
                kept = None if momentum is None else momentum[:, place].clone()
                self._kept[name] = self.feedback.out[:, place].clone(), kept

    def program(self) -> Program[Tensor]:
        """Reduces what is sent over the workers, and writes it to the target; returns whether that is finite."""
        if not self.source.numel:
            return self.target.buffer.new_zeros((), dtype=torch.float32)
        program = self.fitted.running.reduce_to(self.source, self.target, self.feedback, self.ctx)
        return (yield from guarded(program, self.fitted.codec.name, self.ctx.workers))

    def hold_unused(self, used: Mapping[str, Tensor]) -> None:
        """DDP drops the result of parameters that no worker used: send nothing of theirs, keep their memory."""
        for name, (error, momentum) in self._kept.items():
            place, unused = self._place(name), used[name] == 0
            assert self.feedback is not None
            out = self.feedback.out[:, place]
            out.copy_(torch.where(unused, error, out))
            if momentum is not None and self.feedback.momentum is not None:
                new = self.feedback.momentum[:, place]
                new.copy_(torch.where(unused, momentum, new))
            mean = self.target.read(self.target.buffer.dtype)[:, place]
            self._write(place, torch.where(unused, 0.0, mean))
            self._hold_owners(name, unused)

    def keep(self) -> None:
        """What is left of the gradient is known: let the memory keep it."""
        if self.feedback is not None:
            self.memory.keep(self.feedback, self.ctx)

    def _place(self, name: str) -> slice:
        return self.ctx.layout.find(self.ctx.layout.segments[self.ctx.layout.names.index(name)])

    def _write(self, place: slice, values: Tensor) -> None:
        at = 0
        for part in self.target.parts:
            low, high = max(place.start, at), min(place.stop, at + part.shape[1])
            if low < high:
                part[:, low - at : high - at] = values[:, low - place.start : high - place.start]
            at += part.shape[1]

    def _hold_owners(self, name: str, unused: Tensor) -> None:
        ctx = self.ctx
        if ctx.strategy is None:
            return
        slot = ctx.strategy.owner_slot(self.fitted.codec, ctx.layout, ctx.ranks, ctx.workers, ctx.state.store)
        pending = None if slot is None else ctx.state.written(slot)
        if slot is None or pending is None:
            return
        for row, layout in enumerate(slot.layouts):
            for segment in layout.segments:
                if segment.name == name:
                    place = layout.find(segment)
                    old = 0.0 if slot.current is None else ctx.rescale * slot.current[row, place]
                    pending[row, place] = torch.where(unused[0], old, pending[row, place])


def default_memory(choices: Sequence[Codec]) -> str:
    """That of the first codec that asks for one."""
    return next((c.traits.memory for c in choices if c.traits.memory != NoMemory.name), NoMemory.name)


def used_here(x: Tensor, layout: Layout) -> Tensor:
    """Whether a worker here has used each tensor: (rows, tensors), 1 where it has a gradient other than zero."""
    pieces = layout.split(x)
    if x.device.type != "cpu":
        return torch.stack([p.ne(0).any(1) for p in pieces], 1).to(x.dtype)
    # most tensors show it at once
    seen = [bool(p[:, :GLANCE].ne(0).any(1).all()) for p in pieces]
    columns = [torch.ones(len(x), dtype=torch.bool) if s else p.ne(0).any(1) for s, p in zip(seen, pieces, strict=True)]
    return torch.stack(columns, 1).to(x.dtype)


def _unused_here(flags: Mapping[str, Tensor]) -> list[str]:
    """The tensors that some worker here has not used; where the host would have to wait for that, all."""
    return [name for name, flag in flags.items() if flag.device.type != "cpu" or bool((flag == 0).any())]
