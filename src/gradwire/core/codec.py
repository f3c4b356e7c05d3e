"""What a codec is: the contract every compressor is written against.

A compressor is a generator of exchanges. `reduce` computes, yields what it wants combined across the
workers, is sent the combined result, and returns ``(mean, own)``: the reduced gradient, equal on all
workers bit for bit, and what this worker itself contributed to it, which is what error feedback subtracts.

- A *one-shot* codec writes `encode`, `decode` and `payload_bytes` and inherits `reduce`, which hands the
  job to a strategy: all-reduce, all-gather, or scatter-reduce-gather. All three work on **rows**: `encode`
  turns a float32 tensor of shape (rows, numel) into a payload of as many rows, each decodable by itself, so that
  the shards of one vector, or the vectors of several workers, go through in one call.
- A *multi-round* codec (``combine=Combine.ROUNDS``) writes `reduce` on a flat vector and yields its own exchanges.

A codec is a frozen dataclass whose fields are its hyper-parameters. It keeps no state: what must outlive
a step goes through ``ctx.state``, keyed by parameter name. It draws random numbers only from ``ctx.rng``.
It never talks to the network. An all-NaN input must come out as NaN on every worker: the engine turns one
non-finite element into an all-NaN unit, so that loss scalers see it whatever was selected; unless the codec is
elementwise, or claims `propagates_nonfinite`.
"""

from __future__ import annotations

import dataclasses
import enum
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, TypeAlias

from torch import Tensor

from gradwire.core.exchange import Payload, Program
from gradwire.core.layout import Layout
from gradwire.core.random import Random
from gradwire.core.registry import Registry, to_spec
from gradwire.core.state import Transaction

Reduced: TypeAlias = Program[tuple[Tensor, Tensor | None]]


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
    def __call__(self, codec: Codec, x: Tensor, ctx: Context) -> Reduced:
        """Reduce the flat gradient `x` over the workers; returns (mean, own share)."""

    @abstractmethod
    def refusal(self, codec: Codec) -> str | None:
        """Why `codec` cannot run under this strategy, as the rest of a sentence; None if it can."""

    def held(self, codec: Codec, layout: Layout, rank: int, workers: int) -> Layout:
        """The pieces of a unit for which worker `rank` keeps an owner's error memory."""
        return Layout(())


@dataclass(frozen=True, kw_only=True)
class Context:
    """What a codec may know beside the gradient: where it runs, and what it may keep."""

    layout: Layout
    state: Transaction
    rng: Random
    rank: int
    workers: int
    strategy: Carrier | None = None
    gradient: Tensor | None = None  # the worker's gradient as it came, before its memory added to it
    observed: Mapping[str, Mapping[str, Tensor]] = field(
        default_factory=dict
    )  # what the user told: kind, parameter, tensor
    rescale: float | Tensor = (
        1.0  # turns what was kept into today's units, after a change of loss scale or learning rate
    )
    wants_own: bool = True  # False: nobody needs the own share, return None for it
    owner_memory: bool = False  # the owner of a shard keeps the error of re-encoding it


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

    def encode(self, x: Tensor, rng: Random) -> Payload:
        """Encode each row of `x`, float32 of shape (rows, numel)."""
        raise NotImplementedError(f"{self.name}: a one-shot codec must write `encode`")

    def decode(self, payload: Payload, numel: int, rng: Random) -> Tensor:
        """Decode to float32 of shape (rows, numel)."""
        raise NotImplementedError(f"{self.name}: a one-shot codec must write `decode`")

    def encode_own(self, x: Tensor, rng: Random) -> tuple[Payload, Tensor]:
        """`encode`, and what everybody will decode from it; override where one pass over memory gives both."""
        payload = self.encode(x, rng)
        return payload, self.decode(payload, x.shape[1], rng)

    def payload_bytes(self, numel: int) -> int:
        """Size of one encoded row: exact for fixed-size codecs, an upper bound for others."""
        raise NotImplementedError(f"{self.name}: a one-shot codec must write `payload_bytes`")

    def combine(self, payload: Payload, numel: int, rng: Random) -> Tensor:
        """The combined value, shape (1, numel), of the rows that the workers encoded."""
        return self.decode(payload, numel, rng).mean(0, keepdim=True)

    def reduce_and_encode(
        self, payload: Payload, numel: int, rng: Random, down: Random, kept: Tensor | None, remember: bool
    ) -> tuple[Payload, Tensor | None]:
        """What the owner of a shard does: combine the workers' rows, add what it `kept`, encode that with `down`.

        Returns the encoded mean and, if it is to be remembered, what encoding lost of it, both of one row. Override
        where one pass over memory does it all.
        """
        return reduce_and_encode(self, self, payload, numel, rng, down, kept, remember)

    def reduce(self, x: Tensor, ctx: Context) -> Reduced:
        """Reduce the flat float32 gradient `x` over the workers; returns (mean, own share)."""
        if ctx.strategy is None:
            raise NotImplementedError(f"{self.name}: a multi-round codec must write `reduce`")
        return (yield from ctx.strategy(self, x, ctx))

    @property
    def spec(self) -> str:
        """The string that builds this codec again."""
        return to_spec(self)

    def config(self) -> dict[str, Any]:
        """The parameters, ready for JSON."""
        return dataclasses.asdict(self)


def encode(codec: Codec, x: Tensor, ctx: Context) -> tuple[Payload, Tensor | None]:
    """The payload, and this worker's own share if anybody wants it."""
    return codec.encode_own(x, ctx.rng) if ctx.wants_own else (codec.encode(x, ctx.rng), None)


def reduce_and_encode(
    up: Codec,
    down: Codec,
    payload: Payload,
    numel: int,
    rng: Random,
    again: Random,
    kept: Tensor | None,
    remember: bool,
) -> tuple[Payload, Tensor | None]:
    """`Codec.reduce_and_encode` step by step, with a codec for each way."""
    mean = up.combine(payload, numel, rng)
    if kept is not None:
        mean = mean + kept
    result = down.encode(mean, again)
    return result, mean - down.decode(result, numel, again) if remember else None


codecs: Registry[Codec] = Registry("codec", "gradwire.codecs", entry_point_group="gradwire.codecs")
strategies: Registry[Strategy] = Registry("strategy", "gradwire.collectives")
register = codecs.register
codec = codecs.build
codec_names = codecs.names
