"""A codec whose output is multiplied by a constant: what turns an unbiased codec of large variance into a contraction.

With E[Q(x)] = x and E‖Q(x) − x‖² ≤ ω‖x‖², the codec Q/(1+ω) satisfies E‖Q(x)/(1+ω) − x‖² ≤ (1 − 1/(1+ω)) ‖x‖², which
is what error feedback needs.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from torch import Tensor

from gradwire.core.codec import Codec, Context, Flag, Reduced, Traits
from gradwire.core.exchange import Payload
from gradwire.core.random import Random
from gradwire.core.window import Feedback, Window


@dataclass(frozen=True)
class Scaled(Codec):
    """`codec`, its results multiplied by `factor`. The wire stays the same."""

    name: ClassVar[str] = "scaled"
    family: ClassVar[str] = "combinator"
    paper: ClassVar[str] = ""
    codec: Codec
    factor: float

    @property
    def traits(self) -> Traits:
        return replace(self.codec.traits, unbiased=False, omega=None, delta=self.factor)

    @property
    def alignment(self) -> int:
        return self.codec.alignment

    @property
    def steady_from_step(self) -> int:
        return self.codec.steady_from_step

    def encode(self, x: Tensor, rng: Random) -> Payload:
        return self.codec.encode(x, rng)

    def decode(self, payload: Payload, numel: int, rng: Random) -> Tensor:
        return self.codec.decode(payload, numel, rng) * self.factor

    def payload_bytes(self, numel: int) -> int:
        return self.codec.payload_bytes(numel)

    def combine(self, payload: Payload, numel: int, rng: Random, groups: int = 1) -> Tensor:
        return self.codec.combine(payload, numel, rng, groups) * self.factor

    def reduce(self, x: Tensor, ctx: Context) -> Reduced:
        mean, own = yield from self.codec.reduce(x, ctx)
        return mean * self.factor, None if own is None else own * self.factor

    def encode_from(
        self, source: Window, feedback: Feedback | None, shards: int, shard: int, rng: Random, factor: float = 1.0
    ) -> Payload:
        return self.codec.encode_from(source, feedback, shards, shard, rng, factor * self.factor)

    def encode_part(
        self, source: Window, feedback: Feedback | None, share: float, rng: Random, factor: float = 1.0
    ) -> Payload:
        return self.codec.encode_part(source, feedback, share, rng, factor * self.factor)

    def decode_to(self, payload: Payload, target: Window, shard: int, rng: Random, factor: float = 1.0) -> Flag:
        return self.codec.decode_to(payload, target, shard, rng, factor * self.factor)

    def combine_to(self, payload: Payload, target: Window, rng: Random, factor: float = 1.0) -> Flag:
        return self.codec.combine_to(payload, target, rng, factor * self.factor)

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
        return self.codec.reduce_and_encode(payload, numel, rng, down, feedback, groups, factor * self.factor)
