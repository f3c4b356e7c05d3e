"""A codec whose output is multiplied by a constant: what turns an unbiased codec of large variance into a contraction.

With E[Q(x)] = x and E‖Q(x) − x‖² ≤ ω‖x‖², the codec Q/(1+ω) satisfies E‖Q(x)/(1+ω) − x‖² ≤ (1 − 1/(1+ω)) ‖x‖², which
is what error feedback needs.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from torch import Tensor

from gradwire.core.codec import Codec, Combine, Context, Reduced, Traits
from gradwire.core.exchange import Payload
from gradwire.core.random import Random


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

    def encode_own(self, x: Tensor, rng: Random) -> tuple[Payload, Tensor]:
        payload, own = self.codec.encode_own(x, rng)
        return payload, own * self.factor

    def decode(self, payload: Payload, numel: int, rng: Random) -> Tensor:
        return self.codec.decode(payload, numel, rng) * self.factor

    def combine(self, payload: Payload, numel: int, rng: Random) -> Tensor:
        return self.codec.combine(payload, numel, rng) * self.factor

    def payload_bytes(self, numel: int) -> int:
        return self.codec.payload_bytes(numel)

    def reduce(self, x: Tensor, ctx: Context) -> Reduced:
        if self.codec.traits.combine is not Combine.ROUNDS:
            return (yield from super().reduce(x, ctx))
        mean, own = yield from self.codec.reduce(x, ctx)
        return mean * self.factor, None if own is None else own * self.factor
