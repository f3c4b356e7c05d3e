"""All-gather: every worker gets every payload.

1. Encode the gradient.
2. Gather the payloads of all workers.
3. Decode and combine all of them. Cost and memory grow with the number of workers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from gradwire.core.codec import Carrier, Codec, Context, Reduced, encode, strategies
from gradwire.core.exchange import Gather, once


@strategies.register
@dataclass(frozen=True)
class AllGather(Carrier):
    """Sends n-1 payloads."""

    name: ClassVar[str] = "all_gather"

    def __call__(self, codec: Codec, x: Tensor, ctx: Context) -> Reduced:
        payload, own = encode(codec, x[None], ctx)
        rows = yield Gather(payload)
        mean = once(rows, lambda: codec.combine(rows, x.numel(), ctx.rng)[0])
        return mean, None if own is None else own[0]

    def refusal(self, codec: Codec) -> str | None:
        return None
