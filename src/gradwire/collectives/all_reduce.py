"""All-reduce of the payload itself, for codecs whose payloads add up.

1. Encode the gradient divided by the number of workers (before any narrowing, so that sums stay in range).
2. Sum the payloads.
3. Decode the sum: that is the mean.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from gradwire.core.codec import Carrier, Codec, Combine, Context, Flag, strategies
from gradwire.core.exchange import Payload, Program, Sum
from gradwire.core.window import Feedback, Window


@strategies.register
@dataclass(frozen=True)
class AllReduce(Carrier):
    """Sends 2 (n-1)/n of a payload."""

    name: ClassVar[str] = "all_reduce"

    def reduce(
        self, codec: Codec, source: Window, target: Window, feedback: Feedback | None, ctx: Context
    ) -> Program[Flag]:
        # multiplied, not divided: bit for bit what DDP does without a hook
        payload = codec.encode_part(source, feedback, 1.0 / ctx.workers, ctx.rng)
        total = yield Sum(payload.data, in_ring=True)
        return codec.decode_to(Payload(total), target, target.numel, ctx.rng.of((0,), (0,)))

    def refusal(self, codec: Codec) -> str | None:
        if codec.traits.combine is Combine.SUM:
            return None
        return "its payloads cannot be added up"
