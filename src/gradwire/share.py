"""What one codec gets of a unit, on one worker, in one step: what is sent, the program that reduces it, what is kept.

A unit has one share, unless a controller gives its tensors different codecs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from gradwire.collectives.choose import check
from gradwire.collectives.scatter_reduce_gather import OWNER_ERROR
from gradwire.core.codec import Carrier, Codec, Context, codecs
from gradwire.core.exchange import Program
from gradwire.core.layout import Layout
from gradwire.kernels.finite import poisoned
from gradwire.memory.base import Memory
from gradwire.memory.none import NoMemory

Reduction = tuple[Tensor, Tensor | None]  # the mean, and the own share if anybody wants it


@dataclass(frozen=True)
class Level:
    """A codec, and the same as it runs under an engine's memory."""

    codec: Codec
    running: Codec

    @classmethod
    def of(cls, codec: str | Codec, memory: Memory, carrier: Carrier | None) -> Level:
        """Refuses a codec that fits neither, with the reason."""
        built = codecs.build(codec) if isinstance(codec, str) else codec
        check(built, carrier)
        return cls(built, memory.fit(built))

    @property
    def shows(self) -> bool:
        """Whether a bad element is visible in the result without our help."""
        return self.codec.traits.propagates_nonfinite or self.codec.traits.elementwise


@dataclass(frozen=True)
class Share:
    """The tensors of one level in a unit, compensated and ready to go."""

    level: Level
    memory: Memory
    ctx: Context
    sent: Tensor

    @classmethod
    def of(cls, gradient: Tensor, level: Level, memory: Memory, ctx: Context) -> Share:
        sent = _repay(memory.compensate(gradient, ctx), level.codec, ctx)
        return cls(level, memory, ctx, sent if level.shows else poisoned(sent))

    def program(self) -> Program[Reduction]:
        """Reduces what is sent over the workers."""
        if not self.sent.numel():
            return self.sent, self.sent if self.ctx.wants_own else None
        return (yield from self.level.running.reduce(self.sent, self.ctx))

    def settle(self, reduced: Reduction, used: Mapping[str, Tensor]) -> Tensor:
        """The mean, once the memory has kept what the own share left behind. `used`: which tensors anybody used."""
        mean, own = reduced
        if own is None:
            return mean
        if used:
            mean, own = self._hold_unused(mean, own, used)
        self.memory.update(self.sent.float(), own.float(), self.ctx)  # of a lossless codec they may be half floats
        return mean

    def _hold_unused(self, mean: Tensor, own: Tensor, used: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
        """DDP drops the result of parameters that no worker used: send nothing of theirs, keep their memory."""
        ctx = self.ctx
        flags = [(used[name] != 0).to(mean.dtype) for name in ctx.layout.names]
        mask = torch.cat([flag.expand(size) for flag, size in zip(flags, ctx.layout.sizes, strict=True)])
        held = _held(self.level.codec, ctx)
        if ctx.state.wrote(OWNER_ERROR, held):
            new, old = ctx.state.written(OWNER_ERROR, held), ctx.state.flat(OWNER_ERROR, held)
            kept = torch.cat([mask[ctx.layout.find(segment)] for segment in held.segments])
            ctx.state.put_flat(OWNER_ERROR, held, torch.where(kept > 0, new, 0.0 if old is None else ctx.rescale * old))
        return mean * mask, own * mask


def default_memory(choices: Sequence[Codec]) -> str:
    """That of the first codec that asks for one."""
    return next((c.traits.memory for c in choices if c.traits.memory != NoMemory.name), NoMemory.name)


def _repay(sent: Tensor, codec: Codec, ctx: Context) -> Tensor:
    """Owners' errors for elements that another worker owns by now go into this worker's gradient.

    Shards move when DDP rebuilds its buckets, the number of workers changes, or a controller gives a tensor another
    codec. The owner's error counts fully in the mean and a worker's gradient only by 1/n, hence the factor.
    """
    store = ctx.state.store
    if not store.entries.get(OWNER_ERROR):
        return sent
    held = _held(codec, ctx)
    moved = store.outside(OWNER_ERROR, ctx.layout, held)
    if not moved:
        return sent
    sent = sent.clone()
    for piece, error in moved:
        sent[ctx.layout.find(piece)] += ctx.workers * ctx.rescale * error
        if piece.name not in held.names:
            ctx.state.forget(OWNER_ERROR, piece.name)
    return sent


def _held(codec: Codec, ctx: Context) -> Layout:
    """The pieces of the share whose owner this worker is."""
    if ctx.strategy is None:
        return Layout(())
    return ctx.strategy.held(codec, ctx.layout, ctx.rank, ctx.workers)


def joined(x: Tensor, parts: Mapping[str, Tensor], layout: Layout) -> Tensor:
    """The tensors of `layout` as one flat tensor like `x`."""
    return torch.cat([parts[name] for name in layout.names]) if layout.segments else x.new_empty(0)


def merged(whole: Layout, layouts: Sequence[Layout], flats: Sequence[Tensor], dtype: torch.dtype) -> Tensor:
    """All parts of a unit in its order."""
    values = {
        name: piece
        for layout, flat in zip(layouts, flats, strict=True)
        for name, piece in zip(layout.names, layout.split(flat), strict=True)
    }
    out = torch.empty(whole.numel, dtype=dtype, device=flats[0].device)
    torch._foreach_copy_(list(whole.split(out)), [values[name] for name in whole.names])
    return out
