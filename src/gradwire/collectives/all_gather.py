"""All-gather: every worker gets every payload.

1. Encode the gradient.
2. Gather the payloads of all workers.
3. Decode and combine all of them. Cost and memory grow with the number of workers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from gradwire.core.codec import Carrier, Codec, Context, Flag, strategies
from gradwire.core.exchange import Gather, Program
from gradwire.core.received import longest_row
from gradwire.core.window import Feedback, Window


@strategies.register
@dataclass(frozen=True)
class AllGather(Carrier):
    """Sends n-1 payloads."""

    name: ClassVar[str] = "all_gather"

    def reduce(
        self, codec: Codec, source: Window, target: Window, feedback: Feedback | None, ctx: Context
    ) -> Program[Flag]:
        payload = codec.encode_from(source, feedback, 1, source.numel, ctx.rng)
        rows = yield Gather(payload, most=longest_row(codec, source.numel, ctx.rng.step))
        return codec.combine_to(rows, target, ctx.rng.of(range(ctx.workers), [0] * ctx.workers))

    def refusal(self, codec: Codec) -> str | None:
        return None
