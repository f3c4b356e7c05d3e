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

from dataclasses import dataclass, field
from functools import partial
from typing import ClassVar

import torch.nn.functional as F
from torch import Tensor

from gradwire.core.codec import Carrier, Codec, Combine, Context, Reduced, codecs, encode, reduce_and_encode, strategies
from gradwire.core.errors import Incompatible
from gradwire.core.exchange import Gather, Scatter, once
from gradwire.core.layout import Layout

OWNER_ERROR = "owner_error"


@strategies.register
@dataclass(frozen=True)
class ScatterReduceGather(Carrier):
    """`down` is the codec of the second leg (the same if None); `owner_memory` follows the codec's memory if None."""

    name: ClassVar[str] = "scatter_reduce_gather"
    down: str | None = None
    owner_memory: bool | None = None
    _down: Codec | None = field(init=False, repr=False, compare=False, default=None)

    def __post_init__(self) -> None:
        if self.down is None:
            return
        codec = codecs.build(self.down)
        problem = self.refusal(codec)
        if problem:
            raise Incompatible(f"scatter_reduce_gather: {codec.name} cannot serve as `down`: {problem}")
        object.__setattr__(self, "_down", codec)

    def __call__(self, codec: Codec, x: Tensor, ctx: Context) -> Reduced:
        shard = shard_length(codec, x.numel(), ctx.workers)
        low = ctx.rank * shard
        up, own = encode(codec, _padded(x, ctx.workers * shard).view(ctx.workers, shard), ctx)
        received = yield Scatter(up)
        down, rng = self._down or codec, ctx.rng.fold("down")
        held = self.held(codec, ctx.layout, ctx.rank, ctx.workers)
        remember = held.numel > 0 and (ctx.owner_memory if self.owner_memory is None else self.owner_memory)
        kept = ctx.state.flat(OWNER_ERROR, held) if remember else None
        if kept is not None:
            kept = ctx.rescale * _padded(kept, shard)[None]
        owner = codec.reduce_and_encode if self._down is None else partial(reduce_and_encode, codec, self._down)
        result, lost = owner(received, shard, ctx.rng.at(low), rng.at(low), kept, remember)
        if lost is not None:
            ctx.state.put_flat(OWNER_ERROR, held, lost[0, : held.numel])
        rows = yield Gather(result, relay=True)
        out = once(rows, lambda: down.decode(rows, shard, rng).view(-1)[: x.numel()])
        return out, None if own is None else own.view(-1)[: x.numel()]

    def refusal(self, codec: Codec) -> str | None:
        if codec.traits.combine is Combine.ROUNDS or not codec.traits.shards:
            return "a shard of its gradient cannot be encoded by itself"
        return None

    def held(self, codec: Codec, layout: Layout, rank: int, workers: int) -> Layout:
        shard = shard_length(codec, layout.numel, workers)
        return layout.cut(rank * shard, (rank + 1) * shard)


def shard_length(codec: Codec, numel: int, workers: int) -> int:
    """Elements of one shard: an equal share, rounded up to the codec's alignment."""
    return -(-numel // (workers * codec.alignment)) * codec.alignment


def _padded(x: Tensor, numel: int) -> Tensor:
    """Zeros behind the end; no copy where there is nothing to add."""
    return F.pad(x, (0, numel - x.numel())) if numel > x.numel() else x
