"""What a codec is: the contract every compressor is written against.

A compressor is a generator of exchanges. It computes, yields what it wants combined across the workers, is sent the
combined result, and returns ``(mean, own)``: the reduced gradient, equal on all workers bit for bit, and what each
worker itself contributed to it, which is what error feedback subtracts. The workers of a process, one under DDP and all
of them in a virtual cluster, are the rows of one matrix: a codec treats them in one call.

**The simple form** is what a researcher writes, and what defines the meaning:

- A *one-shot* codec writes `encode`, `decode` and `payload_bytes`. `encode` turns a float32 tensor of shape
  (rows, numel) into a payload of as many rows, each decodable by itself, so that the shards of one vector, or the
  vectors of several workers, go through in one call. A strategy carries the payloads: all-reduce, all-gather, or
  scatter-reduce-gather.
- A *multi-round* codec (``combine=Combine.ROUNDS``) writes `reduce` and yields its own exchanges.

**The fast form** is optional and reads and writes gradients where they lie, in one pass over memory: `encode_from` adds
the memory's error, encodes and leaves the new error in one read; `decode_to` and `combine_to` write straight into the
bucket; `reduce_and_encode` is what the owner of a shard does; `reduce_to` is all of a multi-round codec. The
conformance suite holds each to the simple form, bit for bit, memory included.

A codec is a frozen dataclass whose fields are its hyper-parameters. It keeps no state: what must outlive
a step goes through ``ctx.state``, keyed by parameter name. It draws random numbers only from ``ctx.rng``.
It never talks to the network. An all-NaN row must come out as NaN on every worker: one non-finite element makes the
worker's row NaN before it is encoded, so that loss scalers see it whatever was selected; unless the codec is
elementwise, or claims `propagates_nonfinite`.
"""

from __future__ import annotations

import dataclasses
import enum
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, TypeAlias

from torch import Tensor

from gradwire.core.exchange import Payload, Program
from gradwire.core.layout import Layout
from gradwire.core.random import Random
from gradwire.core.registry import Registry, to_spec
from gradwire.core.state import Piece, Slot, Store, Transaction
from gradwire.core.window import Feedback, Window, padded

Reduced: TypeAlias = Program[tuple[Tensor, Tensor | None]]  # (1, numel), and (rows, numel) if anybody wants it
Flag: TypeAlias = Tensor  # a scalar: 0 where all that was written is finite, NaN otherwise


class Combine(enum.Enum):
    """How the workers' payloads become one."""

    SUM = "sum"  # payloads may be added up: an all-reduce of the payload itself works
    GATHER = "gather"  # each payload is decoded, then combined
    ROUNDS = "rounds"  # the codec runs its own exchanges


@dataclass(frozen=True, kw_only=True)
class Traits:
    """Claims a codec makes. The conformance suite holds it to each; memories and strategies dispatch on them."""

    combine: Combine
    memory: str = "none"  # the memory it runs with unless told otherwise
    unbiased: bool = False  # E[decode(encode(x))] = x
    omega: float | None = None  # E|Q(x)-x|² <= omega |x|², for unbiased codecs
    delta: float | None = None  # E|Q(x)-x|² <= (1-delta) |x|², for contracting ones
    fixed_size: bool = True  # the payload's size follows from the number of elements alone
    stochastic: bool = False  # draws private random numbers
    lossless: bool = False  # hands the gradient on as it is, in its own dtype
    elementwise: bool = False  # what comes out for an element depends on that element alone
    propagates_nonfinite: bool = False  # a non-finite input always gives a non-finite output
    sparse: bool = False  # sends some elements as they are and nothing of the others
    shards: bool = True  # a shard of the gradient can be encoded by itself
    ignores_shapes: bool = False  # of ROUNDS: takes the unit as one vector, whatever tensors are in it
    is_mean: bool = True  # the result estimates the mean; False for a vote, which keeps signs only
    odd: bool = True  # C(-x) = -C(x) for the same random numbers
    homogeneous: bool = True  # C(s x) = s C(x) for s > 0; False where a bound is an absolute number
    oracle: bool = False  # knows what no practical method can know: for comparison only


@dataclass(frozen=True)
class Strategy(ABC):
    """How gradients travel; its fields are its options. See `collectives`."""

    name: ClassVar[str]


@dataclass(frozen=True)
class Carrier(Strategy):
    """A strategy that carries the payloads of one-shot codecs and combines them."""

    @abstractmethod
    def reduce(
        self, codec: Codec, source: Window, target: Window, feedback: Feedback | None, ctx: Context
    ) -> Program[Flag]:
        """Reduce the gradient in `source` over the workers and write the mean to `target`."""

    @abstractmethod
    def refusal(self, codec: Codec) -> str | None:
        """Why `codec` cannot run under this strategy, as the rest of a sentence; None if it can."""

    def owner_slot(self, codec: Codec, layout: Layout, ranks: Sequence[int], workers: int, store: Store) -> Slot | None:
        """Where the workers `ranks` keep the errors of what they own of a unit; None where nobody owns anything."""
        return None


@dataclass(frozen=True, kw_only=True)
class Context:
    """What a codec may know beside the gradient: where it runs, and what it may keep.

    Args:
        layout: the tensors of the unit, in order.
        state: what outlives the step.
        rng: random numbers of this step, unit and these workers.
        ranks: the workers of this process, a row for each.
        workers: how many there are in all.
    """

    layout: Layout
    state: Transaction
    rng: Random
    ranks: tuple[int, ...]
    workers: int
    strategy: Carrier | None = None
    source: Window | None = None  # the workers' gradients as they came, before their memory added to them
    observed: Mapping[str, Mapping[str, Tensor]] = field(default_factory=dict)  # by the user: kind, parameter
    rescale: float | Tensor = 1.0  # turns what is kept into today's units, after a change of loss scale or rate
    wants_own: bool = True  # False: nobody needs the workers' own parts, return None for them
    owner_memory: bool = False  # the owner of a shard keeps the error of re-encoding it
    moved: tuple[tuple[Piece, slice], ...] = ()  # owners' errors of elements that others own by now, and where they lie


@dataclass(frozen=True)
class Codec(ABC):
    """Base class of all compressors. Subclass it in one file and add one line to the catalogue."""

    name: ClassVar[str]
    family: ClassVar[str]  # baseline, quantization, sparsification, hybrid or lowrank
    paper: ClassVar[str]
    variants: ClassVar[tuple[str, ...]] = ()  # other settings that the conformance suite shall try

    @property
    @abstractmethod
    def traits(self) -> Traits:
        """The claims; a property, because they may depend on the parameters."""

    @property
    def alignment(self) -> int:
        """Elements that must stay in one shard: shard lengths are multiples of this."""
        return 8

    @property
    def steady_from_step(self) -> int:
        """The first step from which on all steps send alike: after a warm-up, say. Sizes are traced there."""
        return 0

    # ---------------------------------------------------------------- the simple form

    def encode(self, x: Tensor, rng: Random) -> Payload:
        """Encode each row of `x`, float32 of shape (rows, numel)."""
        raise NotImplementedError(f"{self.name}: a one-shot codec must write `encode`")

    def decode(self, payload: Payload, numel: int, rng: Random) -> Tensor:
        """Decode to float32 of shape (rows, numel)."""
        raise NotImplementedError(f"{self.name}: a one-shot codec must write `decode`")

    def payload_bytes(self, numel: int) -> int:
        """Size of one encoded row: exact for fixed-size codecs, an upper bound for others."""
        raise NotImplementedError(f"{self.name}: a one-shot codec must write `payload_bytes`")

    def combine(self, payload: Payload, numel: int, rng: Random, groups: int = 1) -> Tensor:
        """The combined values, (groups, numel): rows come in equal groups, a row of each worker in each."""
        return self.decode(payload, numel, rng).view(groups, -1, numel).mean(1)

    def reduce(self, x: Tensor, ctx: Context) -> Reduced:
        """Reduce the float32 gradients `x`, (rows, numel), over the workers; returns (mean, own)."""
        raise NotImplementedError(f"{self.name}: a multi-round codec must write `reduce`")

    # ---------------------------------------------------------------- the fast form

    def encode_own(self, x: Tensor, rng: Random) -> tuple[Payload, Tensor]:
        """`encode`, and what everybody will decode from it; override where that need not be decoded."""
        payload = self.encode(x, rng)
        return payload, self.decode(payload, x.shape[1], rng)

    def encode_from(
        self, source: Window, feedback: Feedback | None, shards: int, shard: int, rng: Random, factor: float = 1.0
    ) -> Payload:
        """Encode the gradients in `source` with what the memory adds, and leave the new error in ``feedback.out``.

        Each worker's vector, with zeros behind its end, is `shards` rows of `shard` elements. What is decoded will be
        multiplied by `factor`.
        """
        x = source.read() if feedback is None else feedback.compensated(source)
        rows = self.visible(padded(x, shards * shard).view(-1, shard))  # zeros behind the end hide nothing
        if feedback is None:
            return self.encode(rows, rng)
        payload, own = self.encode_own(rows, rng)
        if payload.data.data_ptr() == feedback.out.data_ptr():  # a codec that hands the gradient on as it is
            payload = dataclasses.replace(payload, data=payload.data.clone())
            own = own.clone()
        own = own.view(source.rows, -1)[:, : source.numel]
        feedback.keep(own if factor == 1 else own * factor)
        return payload

    def encode_part(
        self, source: Window, feedback: Feedback | None, share: float, rng: Random, factor: float = 1.0
    ) -> Payload:
        """As `encode_from`, for payloads that add up: each worker's vector is multiplied by `share` first."""
        x = self.visible(source.read() if feedback is None else feedback.compensated(source))
        payload = self.encode(x * share, rng)
        if feedback is not None:
            own = self.decode(payload, source.numel, rng) * (factor / share)
            feedback.keep(own)
        return payload

    def decode_to(self, payload: Payload, target: Window, shard: int, rng: Random, factor: float = 1.0) -> Flag:
        """Decode the rows, the shards of one vector, side by side into `target`, times `factor`."""
        values = self.decode(payload, shard, rng).view(1, -1)[:, : target.numel]
        return self._written(target, values if factor == 1 else values * factor)

    def combine_to(self, payload: Payload, target: Window, rng: Random, factor: float = 1.0) -> Flag:
        """Combine the rows, one from each worker, into `target`, times `factor`."""
        values = self.combine(payload, target.numel, rng)
        return self._written(target, values if factor == 1 else values * factor)

    def reduce_and_encode(
        self,
        payload: Payload,
        numel: int,
        rng: Random,
        down: Random,
        feedback: Feedback | None,
        groups: int,
        factor: float = 1.0,
    ) -> Payload:
        """What the owner of a shard does: combine its rows, add what it kept, encode that with `down`.

        Rows come in `groups`, one for each owner in this process. The new error goes to ``feedback.out``.
        """
        return reduce_and_encode(self, self, payload, numel, rng, down, feedback, groups, factor)

    def reduce_to(self, source: Window, target: Window, feedback: Feedback | None, ctx: Context) -> Program[Flag]:
        """Reduce the gradients in `source` over the workers, write the mean to `target`, keep the errors."""
        source, feedback = repaid(source, feedback, ctx)
        if ctx.strategy is not None:
            return (yield from ctx.strategy.reduce(self, source, target, feedback, ctx))
        x = self.visible(source.read() if feedback is None else feedback.compensated(source))
        mean, own = yield from self.reduce(x, ctx)
        if feedback is not None:
            assert own is not None, f"{self.name}: `reduce` must return what the workers sent"
            feedback.keep(own)
        return self._written(target, mean)

    def visible(self, x: Tensor) -> Tensor:
        """`x`, and NaN throughout the rows that are not finite, unless the codec makes that visible by itself."""
        if self.traits.propagates_nonfinite or self.traits.elementwise:
            return x
        bad = (x * 0).sum(1, keepdim=True)
        if x.device.type == "cpu" and not bool(bad.isnan().any()):
            return x
        return x + bad

    def _written(self, target: Window, values: Tensor) -> Flag:
        """Write to `target`; whether that is finite."""
        if values.shape != (1, target.numel):
            raise RuntimeError(f"{self.name}: reduced {[1, target.numel]} to {list(values.shape)}")
        target.write_(values)
        return nonfinite_flag(values)

    @property
    def spec(self) -> str:
        """The string that builds this codec again."""
        return to_spec(self)

    def config(self) -> dict[str, Any]:
        """The parameters, ready for JSON."""
        return dataclasses.asdict(self)


def nonfinite_flag(x: Tensor) -> Flag:
    """0 where `x` is finite throughout, NaN otherwise."""
    return (x * 0).sum() if x.numel() else x.new_zeros(())


def repaid(source: Window, feedback: Feedback | None, ctx: Context) -> tuple[Window, Feedback | None]:
    """Owners' errors for elements that another worker owns by now go into the gradient of the worker that kept them.

    Shards move when DDP rebuilds its buckets, the number of workers changes, or a controller gives a tensor another
    codec. The owner's error counts fully in the mean and a worker's gradient only by 1/n, hence the factor.
    """
    if not ctx.moved:
        return source, feedback
    x = source.read().clone() if feedback is None else feedback.compensated(source)
    for piece, place in ctx.moved:
        x[piece.row, place] += ctx.workers * ctx.rescale * piece.entry.tensor.reshape(-1)
    return Window.whole(x, scratch=True), None if feedback is None else feedback.done()


def reduce_and_encode(
    up: Codec,
    down: Codec,
    payload: Payload,
    numel: int,
    rng: Random,
    again: Random,
    feedback: Feedback | None,
    groups: int,
    factor: float = 1.0,
) -> Payload:
    """`Codec.reduce_and_encode` step by step, with a codec for each way."""
    mean = up.combine(payload, numel, rng, groups)
    if factor != 1:
        mean = mean * factor
    if feedback is None:
        return down.encode(down.visible(mean), again)
    return down.encode_from(Window.whole(mean), feedback, 1, numel, again, factor if down is up else 1.0)


codecs: Registry[Codec] = Registry("codec", "gradwire.codecs", entry_point_group="gradwire.codecs")
strategies: Registry[Strategy] = Registry("strategy", "gradwire.collectives")
register = codecs.register
codec = codecs.build
codec_names = codecs.names
