"""Which strategy carries a codec, and why a wish cannot be granted.

Left to itself (`auto`): payloads that add up go by all-reduce; multi-round codecs run their own exchanges. All
others go by all-gather where that is cheaper than scatter-reduce-gather's second round trip, which is
for up to two workers, or for units so small that the bytes saved weigh less than one more message.
"""

from __future__ import annotations

from gradwire.collectives.all_gather import AllGather
from gradwire.collectives.all_reduce import AllReduce
from gradwire.collectives.scatter_reduce_gather import ScatterReduceGather
from gradwire.core.codec import Codec, Combine, Strategy, strategies
from gradwire.core.errors import Incompatible

# What a link carries while one message is under way: 0.4 ms at 1 Gbit/s, 50 us at 10 Gbit/s are both near this.
MESSAGE_BYTES = 64 * 1024


def parse(wish: str | Strategy) -> Strategy | None:
    """The strategy a user named; None for `auto`."""
    if isinstance(wish, Strategy):
        return wish
    return None if wish == "auto" else strategies.build(wish)


def check(codec: Codec, wish: Strategy | None) -> None:
    """Refuse, with the reason, a strategy that cannot carry the codec."""
    if wish is None:
        return
    if codec.traits.combine is Combine.ROUNDS:
        raise Incompatible(
            f"{codec.name} cannot run under {wish.name}: it runs its own rounds of exchanges. "
            "Leave the strategy at 'auto'."
        )
    problem = wish.refusal(codec)
    if problem:
        raise Incompatible(
            f"{codec.name} cannot run under {wish.name}: {problem}. "
            f"Use strategy='auto' or one of: {', '.join(possible(codec))}."
        )


def possible(codec: Codec) -> list[str]:
    """The strategies that can carry `codec`."""
    if codec.traits.combine is Combine.ROUNDS:
        return []
    return [name for name in strategies.names() if strategies.cls(name)().refusal(codec) is None]


def choose(codec: Codec, wish: Strategy | None, numel: int, workers: int) -> Strategy | None:
    """The strategy for a unit of `numel` elements; None where the codec runs its own rounds."""
    check(codec, wish)
    if codec.traits.combine is Combine.ROUNDS:
        return None
    if wish is not None:
        return wish
    if codec.traits.combine is Combine.SUM:
        return AllReduce()
    saved = codec.payload_bytes(numel) * (workers - 1) * (1 - 2 / workers)
    if not codec.traits.shards or saved <= MESSAGE_BYTES:
        return AllGather()
    return ScatterReduceGather()
