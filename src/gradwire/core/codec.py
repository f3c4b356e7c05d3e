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
import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar, TypeAlias, TypeVar

from torch import Tensor

from gradwire.core import contract
from gradwire.core.context import Carrier as Carrier
from gradwire.core.context import Context as Context
from gradwire.core.context import Flag as Flag
from gradwire.core.context import Strategy as Strategy
from gradwire.core.exchange import Payload, Program
from gradwire.core.random import Random
from gradwire.core.registry import Registry, to_spec
from gradwire.core.traits import Combine as Combine
from gradwire.core.traits import Traits as Traits
from gradwire.core.window import Feedback, Window, padded
from gradwire.core.window import nonfinite_flag as nonfinite_flag

Reduced: TypeAlias = Program[tuple[Tensor, Tensor | None]]
"""What `Codec.reduce` is: a generator that yields exchanges and returns ``(mean, own)``, of shape (1, numel) and
(rows, numel). `own` is what each worker contributed; it may be None where ``ctx.wants_own`` is False."""
C = TypeVar("C", bound="Codec")


@dataclass(frozen=True)
class Codec(ABC):
    """Base class of all compressors: a frozen dataclass whose fields are its parameters.

    A one-shot codec writes `traits`, `encode`, `decode` and `payload_bytes`. A codec with rounds of its own writes
    `traits` and `reduce`. All other methods have a default; override them for speed.

    Attributes:
        name: the name in specs such as ``"topk(ratio=0.01)"``.
        family: baseline, quantization, sparsification, hybrid or lowrank.
        paper: where the method comes from.
        variants: other specs that the conformance suite shall try.

    Example:
        >>> import torch, gradwire
        >>> from gradwire.core.random import Random
        >>> codec = gradwire.codec("topk(ratio=0.5)")
        >>> payload = codec.encode(torch.tensor([[4.0, -1.0, 0.0, 3.0]]), Random())
        >>> codec.decode(payload, 4, Random())
        tensor([[4., 0., 0., 3.]])
        >>> codec.payload_bytes(4) == payload.nbytes
        True
    """

    name: ClassVar[str]
    family: ClassVar[str]
    paper: ClassVar[str]
    variants: ClassVar[tuple[str, ...]] = ()

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

    @property
    def plain_on_gpu(self) -> str:
        """Why plain torch computes it on a GPU, or some of it; empty: Triton's kernels do all."""
        return "no kernels are written for it"

    # ---------------------------------------------------------------- the simple form

    def encode(self, x: Tensor, rng: Random) -> Payload:
        """Encode each row by itself.

        Args:
            x: float32 of shape (rows, numel), not to be written to: workers' gradients, or the shards of one.
            rng: the only source of random numbers.
        """
        raise NotImplementedError(f"{self.name}: a one-shot codec must write `encode`")

    def decode(self, payload: Payload, numel: int, rng: Random) -> Tensor:
        """Decode each row, to float32 of shape (rows, numel).

        Args:
            payload: what `encode` made.
            numel: the number of elements of a row.
            rng: the same source as `encode` had.
        """
        raise NotImplementedError(f"{self.name}: a one-shot codec must write `decode`")

    def payload_bytes(self, numel: int) -> int:
        """The bytes of one encoded row: exact for fixed-size codecs, an upper bound for others.

        Args:
            numel: the number of elements of a row.
        """
        raise NotImplementedError(f"{self.name}: a one-shot codec must write `payload_bytes`")

    def combine(self, payload: Payload, numel: int, rng: Random, groups: int = 1) -> Tensor:
        """Decode and combine the workers' rows, by default to their mean. The result has the shape (groups, numel).

        Args:
            payload: rows in equal groups, with a row of each worker in each group.
            numel: the number of elements of a row.
            rng: the same source as `encode` had.
            groups: how many groups there are.
        """
        return self._decoded(payload, numel, rng).reshape(groups, -1, numel).mean(1)

    def reduce(self, x: Tensor, ctx: Context) -> Reduced:
        """Reduce gradients over the workers in exchanges of the codec's own; returns ``(mean, own)``.

        Args:
            x: float32 of shape (rows, numel), a row for each worker of this process.
            ctx: where it runs, and what it may keep.
        """
        raise NotImplementedError(f"{self.name}: a multi-round codec must write `reduce`")

    # ---------------------------------------------------------------- the fast form

    def encode_own(self, x: Tensor, rng: Random) -> tuple[Payload, Tensor]:
        """Encode, and say what everybody will decode from it. Override it where that need not be decoded.

        Args:
            x: as in `encode`.
            rng: as in `encode`.
        """
        payload = self._encoded(x, rng)
        return payload, self._decoded(payload, x.shape[1], rng)

    def encode_from(
        self, source: Window, feedback: Feedback | None, shards: int, shard: int, rng: Random, factor: float = 1.0
    ) -> Payload:
        """Encode gradients with what the memory adds, and leave the new error in ``feedback.out``.

        Args:
            source: the gradients, where they lie.
            feedback: what the memory adds, and where the error goes; None: there is no memory.
            shards: into how many rows each worker's vector is cut. Behind its end are zeros.
            shard: elements of such a row.
            rng: as in `encode`.
            factor: what is decoded will be multiplied by this.
        """
        x = source.read() if feedback is None else feedback.compensated(source)
        rows = self.visible(padded(x, shards * shard).view(-1, shard))  # zeros behind the end hide nothing
        if feedback is None:
            return self._encoded(rows, rng)
        payload, own = self.encode_own(rows, rng)
        if payload.data.data_ptr() == feedback.out.data_ptr():  # a codec that hands the gradient on as it is
            payload = dataclasses.replace(payload, data=payload.data.clone())
            own = own.clone()
        own = own.reshape(source.rows, -1)[:, : source.numel]  # of rows that may be cut out of longer ones
        feedback.keep(own if factor == 1 else own * factor)
        return payload

    def encode_part(
        self, source: Window, feedback: Feedback | None, share: float, rng: Random, factor: float = 1.0
    ) -> Payload:
        """As `encode_from`, for payloads that add up.

        Args:
            source: the gradients, where they lie.
            feedback: what the memory adds, and where the error goes; None: there is no memory.
            share: each worker's vector is multiplied by this first.
            rng: as in `encode`.
            factor: what is decoded will be multiplied by this.
        """
        x = self.visible(source.read() if feedback is None else feedback.compensated(source))
        payload = self._encoded(x * share, rng)
        if feedback is not None:
            own = self._decoded(payload, source.numel, rng) * (factor / share)
            feedback.keep(own)
        return payload

    def decode_to(self, payload: Payload, target: Window, shard: int, rng: Random, factor: float = 1.0) -> Flag:
        """Decode the shards of one vector side by side to where they belong.

        Args:
            payload: a row for each shard.
            target: where the values are written.
            shard: elements of a row.
            rng: as in `decode`.
            factor: multiplies the values.
        """
        values = self._decoded(payload, shard, rng).reshape(1, -1)[:, : target.numel]
        return self._written(target, values if factor == 1 else values * factor)

    def combine_to(self, payload: Payload, target: Window, rng: Random, factor: float = 1.0) -> Flag:
        """Combine the workers' rows to where the result belongs.

        Args:
            payload: a row from each worker.
            target: where the result is written.
            rng: as in `decode`.
            factor: multiplies the result.
        """
        values = self._combined(payload, target.numel, rng)
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
        """What the owner of a shard does: combine the workers' rows, add what it kept, and encode the sum.

        Args:
            payload: rows in equal groups, a group for each owner in this process.
            numel: the number of elements of a row.
            rng: the source of those who encoded the rows.
            down: the source for encoding the sum.
            feedback: what the owner kept, and where its new error goes; None: there is no memory.
            groups: how many groups there are.
            factor: multiplies the combined values.
        """
        return reduce_and_encode(self, self, payload, numel, rng, down, feedback, groups, factor)

    def reduce_to(self, source: Window, target: Window, feedback: Feedback | None, ctx: Context) -> Program[Flag]:
        """Reduce gradients over the workers, from where they lie to where the mean belongs.

        Args:
            source: the gradients.
            target: where the mean is written.
            feedback: what the memory adds, and where the errors go; None: there is no memory.
            ctx: where it runs, and what it may keep.
        """
        source, feedback = ctx.repaid(source, feedback)
        if ctx.strategy is not None:
            return (yield from ctx.strategy.reduce(self, source, target, feedback, ctx))
        x = self.visible(source.read() if feedback is None else feedback.compensated(source))
        mean, own = yield from contract.followed(self, x, self.reduce(x, ctx))
        if feedback is not None:
            if own is None:
                remedy = "return None only where ctx.wants_own is False"
                raise contract.fail(
                    self, "reduce", "return what each worker contributed, for its memory", "None", remedy
                )
            feedback.keep(own)
        return self._written(target, mean)

    def visible(self, x: Tensor) -> Tensor:
        """Make rows that are not finite NaN throughout, unless the codec makes that visible by itself.

        Args:
            x: of shape (rows, numel).
        """
        if self.traits.propagates_nonfinite or self.traits.elementwise:
            return x
        bad = (x * 0).sum(1, keepdim=True)
        if x.device.type == "cpu" and not bool(bad.isnan().any()):
            return x
        return x.masked_fill(bad.isnan(), math.nan)

    def _written(self, target: Window, values: Tensor) -> Flag:
        """Write to `target`; whether that is finite."""
        target.write_(values)
        return nonfinite_flag(values)

    def _encoded(self, x: Tensor, rng: Random) -> Payload:
        """`encode`, held to its contract."""
        return contract.encoded(self, x, self.encode(x, rng), steady=rng.step >= self.steady_from_step)

    def _decoded(self, payload: Payload, numel: int, rng: Random) -> Tensor:
        """`decode`, held to its contract."""
        return contract.decoded(self, "decode", self.decode(payload, numel, rng), (payload.rows, numel))

    def _combined(self, payload: Payload, numel: int, rng: Random, groups: int = 1) -> Tensor:
        """`combine`, held to its contract."""
        return contract.decoded(self, "combine", self.combine(payload, numel, rng, groups), (groups, numel))

    @property
    def spec(self) -> str:
        """The string that builds this codec again."""
        return to_spec(self)

    def config(self) -> dict[str, Any]:
        """The parameters, ready for JSON."""
        return dataclasses.asdict(self)


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
    mean = up._combined(payload, numel, rng, groups)
    if factor != 1:
        mean = mean * factor
    if feedback is None:
        return down._encoded(down.visible(mean), again)
    return down.encode_from(Window.whole(mean), feedback, 1, numel, again, factor if down is up else 1.0)


codecs: Registry[Codec] = Registry("codec", "gradwire.codecs", entry_point_group="gradwire.codecs")
strategies: Registry[Strategy] = Registry("strategy", "gradwire.collectives")


def register(cls: type[C]) -> type[C]:
    """Make a codec known by its name. Use it as a class decorator.

    Args:
        cls: the codec's class, a frozen dataclass.

    Example:
        >>> import gradwire
        >>> from dataclasses import dataclass
        >>> @gradwire.register
        ... @dataclass(frozen=True)
        ... class Halves(type(gradwire.codec("fp16"))):
        ...     name = "halves"
        >>> gradwire.codec("halves(scale=2.0)")
        Halves(scale=2.0, sum='float16')
    """
    contract.check_class(cls)
    codecs.register(cls)
    return cls


def codec(spec: str) -> Codec:
    """Build the codec that a spec describes.

    Args:
        spec: a name, with arguments if you like, as in a call: ``"powersgd(rank=4)"``.

    Example:
        >>> import gradwire
        >>> gradwire.codec("topk(ratio=0.1)").payload_bytes(1000)
        466
    """
    return codecs.build(spec)


def codec_names() -> list[str]:
    """List the names of all codecs, those of other packages included.

    Example:
        >>> import gradwire
        >>> gradwire.codec_names()[:3]
        ['adaptivethreshold', 'atomo', 'bf16']
    """
    return codecs.names()
