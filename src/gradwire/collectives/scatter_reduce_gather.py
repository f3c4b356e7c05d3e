"""Scatter-reduce-gather: bandwidth-optimal for any codec whose gradient can be cut into shards.

1. Cut the gradient into n equal shards (zeros behind the end) and encode each; worker r owns shard r.
2. Scatter: row r of everybody goes to worker r.
3. The owner decodes its n rows and combines them in float32 (for sign codecs: a vote), adding what its
   own memory kept from re-encoding this shard last time.
4. The owner encodes the result, with the codec of the way down, and remembers what that lost.
5. Gather: everybody, the owner too, decodes the n re-encoded shards, so replicas agree bit for bit.

Wire: 2 (n-1)/n of a payload for any n, where all-gather sends n-1 payloads.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

from torch import Tensor

from gradwire.core.codec import Carrier, Codec, Combine, Context, Flag, codecs, reduce_and_encode, strategies
from gradwire.core.errors import Incompatible
from gradwire.core.exchange import Gather, Payload, Program, Scatter, Sum
from gradwire.core.layout import Layout
from gradwire.core.random import Random
from gradwire.core.received import longest_row
from gradwire.core.slots import Slot
from gradwire.core.state import Store
from gradwire.core.window import Feedback, Window

OWNER_ERROR = "owner_error"


@strategies.register
@dataclass(frozen=True)
class ScatterReduceGather(Carrier):
    """`down` is the codec of the second leg (the same if None); `owner_memory` follows the codec's memory if None."""

    name: ClassVar[str] = "scatter_reduce_gather"
    down: str | None = None
    owner_memory: bool | None = None

    def __post_init__(self) -> None:
        problem = None if self._down is None else self.refusal(self._down)
        if self._down is not None and problem:
            raise Incompatible(f"scatter_reduce_gather: {self._down.name} cannot serve as `down`: {problem}")

    @cached_property
    def _down(self) -> Codec | None:
        return None if self.down is None else codecs.build(self.down)

    def reduce(
        self, codec: Codec, source: Window, target: Window, feedback: Feedback | None, ctx: Context
    ) -> Program[Flag]:
        shard = shard_length(codec, source.numel, ctx.workers)
        down, step = self._down or codec, ctx.rng.step
        sent = codec.encode_from(source, feedback, ctx.workers, shard, ctx.rng)
        received = yield Scatter(sent, ctx.workers, most=longest_row(codec, shard, step))
        result = self._owned(codec, received, shard, ctx)
        rows = yield Gather(result, relay=True, most=longest_row(down, shard, step))
        return down.decode_to(rows, target, shard, ctx.rng.fold("down").of((0,), (0,)))

    def _owned(self, codec: Codec, received: Payload, shard: int, ctx: Context) -> Payload:
        """What the workers of this process make of the shards that they own."""
        senders, again = _senders(ctx, shard), ctx.rng.fold("down").at(*[rank * shard for rank in ctx.ranks])
        feedback, slot = None, self.owner_slot(codec, ctx.layout, ctx.ranks, ctx.workers, ctx.state.store)
        if slot is not None and (ctx.owner_memory if self.owner_memory is None else self.owner_memory):
            out = ctx.state.write(slot, slot.spare(received.data.device))
            feedback = Feedback(out, slot.current, ctx.rescale)
        groups = len(ctx.ranks)
        if self._down is None:
            result = codec.reduce_and_encode(received, shard, senders, again, feedback, groups)
        else:
            result = reduce_and_encode(codec, self._down, received, shard, senders, again, feedback, groups)
        if feedback is not None and slot is not None:
            for row, layout in enumerate(slot.layouts):  # what lies behind the end of the unit is nobody's
                if layout.numel < shard:
                    feedback.out[row, layout.numel :] = 0.0
        return result

    def refusal(self, codec: Codec) -> str | None:
        if codec.traits.combine is Combine.ROUNDS or not codec.traits.shards:
            return "a shard of its gradient cannot be encoded by itself"
        return None

    def owner_slot(self, codec: Codec, layout: Layout, ranks: Sequence[int], workers: int, store: Store) -> Slot | None:
        shard = shard_length(codec, layout.numel, workers)
        held = [layout.cut(rank * shard, (rank + 1) * shard) for rank in ranks]
        return store.slot(OWNER_ERROR, held, shard) if any(piece.numel for piece in held) else None


def scattered(
    codec: Codec, source: Window, shard: int, out: Tensor, feedback: Feedback | None, ctx: Context
) -> Program[Flag]:
    """The first leg alone: each worker gets the mean of its own shard, in full precision, in its row of `out`.

    The flag that comes back is all workers'.
    """
    sent = codec.encode_from(source, feedback, ctx.workers, shard, ctx.rng)
    received = yield Scatter(sent, ctx.workers, most=longest_row(codec, shard, ctx.rng.step))
    mean = codec.combine(received, shard, _senders(ctx, shard), len(ctx.ranks))
    out.copy_(mean)
    flags: Tensor = yield Sum((mean * 0).sum(1, keepdim=True))
    return flags[0, 0]


def _senders(ctx: Context, shard: int) -> Random:
    """The source for the rows that the owners here received: one of each worker for each owner's shard."""
    lows = [rank * shard for rank in ctx.ranks for _ in range(ctx.workers)]
    return ctx.rng.of([i for _ in ctx.ranks for i in range(ctx.workers)], lows)


def shard_length(codec: Codec, numel: int, workers: int) -> int:
    """Elements of one shard: an equal share, rounded up to the codec's alignment."""
    return -(-numel // (workers * codec.alignment)) * codec.alignment
