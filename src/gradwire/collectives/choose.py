"""Which strategy carries a codec, and why a wish cannot be granted.

Left to itself (`auto`): payloads that add up go by all-reduce; multi-round codecs run their own exchanges. All
others go by all-gather where that is cheaper than scatter-reduce-gather's second round trip, which is
for up to two workers, or for units so small that the bytes saved weigh less than one more message. How much that is
follows from latency and bandwidth: of a measured `Link` (strategy `measured`), or a guess that fits usual networks.
"""

from __future__ import annotations

from gradwire.collectives.all_gather import AllGather
from gradwire.collectives.all_reduce import AllReduce
from gradwire.collectives.link import Link
from gradwire.collectives.scatter_reduce_gather import ScatterReduceGather
from gradwire.core.codec import Carrier, Codec, Combine, Strategy, strategies
from gradwire.core.errors import Incompatible

# What a link carries while one message is under way: 0.4 ms at 1 Gbit/s, 50 us at 10 Gbit/s are both near this.
MESSAGE_BYTES = 64 * 1024
AUTO, MEASURED = "auto", "measured"


def parse(wish: str | Strategy) -> Strategy | None:
    """The strategy a user named; None where it is chosen unit by unit."""
    if isinstance(wish, Strategy):
        return wish
    return None if wish in (AUTO, MEASURED) else strategies.build(wish)


def check(codec: Codec, wish: Carrier | None) -> None:
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
    carriers = (cls for cls in map(strategies.cls, strategies.names()) if issubclass(cls, Carrier))
    return [cls.name for cls in carriers if cls().refusal(codec) is None]


def choose(codec: Codec, wish: Carrier | None, numel: int, workers: int, link: Link | None = None) -> Carrier | None:
    """The strategy for a unit of `numel` elements; None where the codec runs its own rounds."""
    check(codec, wish)
    if codec.traits.combine is Combine.ROUNDS:
        return None
    if wish is not None:
        return wish
    if codec.traits.combine is Combine.SUM:
        return AllReduce()
    saved = codec.payload_bytes(numel) * (workers - 1) * (1 - 2 / workers)
    if not codec.traits.shards or saved <= (MESSAGE_BYTES if link is None else link.message_bytes):
        return AllGather()
    return ScatterReduceGather()
