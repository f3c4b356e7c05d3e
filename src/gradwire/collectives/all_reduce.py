"""All-reduce of the payload itself, for codecs whose payloads add up.

1. Encode the gradient divided by the number of workers (before any narrowing, so that sums stay in range).
2. Sum the payloads.
3. Decode the sum: that is the mean.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from gradwire.core.codec import Carrier, Codec, Combine, Context, Reduced, strategies
from gradwire.core.exchange import Payload, Sum, once


@strategies.register
@dataclass(frozen=True)
class AllReduce(Carrier):
    """Sends 2 (n-1)/n of a payload."""

    name: ClassVar[str] = "all_reduce"

    def __call__(self, codec: Codec, x: Tensor, ctx: Context) -> Reduced:
        # multiplied, not divided: bit for bit what DDP does without a hook
        payload = codec.encode(x[None] * (1.0 / ctx.workers), ctx.rng)
        own = codec.decode(payload, x.numel(), ctx.rng)[0] * ctx.workers if ctx.wants_own else None
        total = yield Sum(payload.data)
        return once(total, lambda: codec.decode(Payload(total), x.numel(), ctx.rng)[0]), own

    def refusal(self, codec: Codec) -> str | None:
        if codec.traits.combine is Combine.SUM:
            return None
        return "its payloads cannot be added up"
