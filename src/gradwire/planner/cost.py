"""Seconds of one exchange on a cluster. Latency and bandwidth; who waits for whom is the timeline's business.

p workers in nodes of g, b bytes handed in by each. A way to carry an exchange says how many messages follow one another
and how many bytes the busiest card and the busiest link inside a node carry:

| way | messages one after the other | bytes over a card | bytes inside a node |
|---|---|---|---|
| sum by `ring` | 2 (p-1) | 2 (p-1)/p b | the same |
| sum by `tree` | 2 log2 p | 2 b | 2 b |
| sum by `hierarchical` | 2 (g-1) inside, 2 (p/g-1) across | 2 (p/g-1)/(p/g) b | 2 (g-1)/g b |
| sum by `parameter_server` | 2 | 2 (p-1) b, at the server | - |
| gather by `ring` | p-1 | (p-1) b | the same |
| gather by `direct` | p-1 | g (p-g) b | (g-1) b |
| gather by `hierarchical` | g-1 inside, p/g-1 across | (p-g) b | (p-1) b |
| gather by `parameter_server` | 2 | p (p-1) b, at the server | - |
| scatter by `direct` | p-1 | g (p-g)/p b | (g-1)/p b |
| route | 1 | g b | - |

A sum by `auto` goes by the fastest of ring, tree and hierarchical for its bytes, as NCCL chooses. In a ring a message
passes p/g cards and p-p/g links inside, so a hop costs their mean. A max is a sum. Each exchange also costs what it
takes to start one.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from gradwire.core.errors import ConfigError
from gradwire.core.units import transfer_seconds
from gradwire.core.wire import gathered, reduced, scattered
from gradwire.planner.cluster import Cluster

WAYS = {
    "sum": ("ring", "tree", "hierarchical", "parameter_server"),
    "gather": ("ring", "direct", "hierarchical", "parameter_server"),
    "scatter": ("direct",),
    "route": ("direct",),
}
AUTO = "auto"
SUMS = (*WAYS["sum"], AUTO)  # what may be asked for
CHOSEN_FROM = ("ring", "tree", "hierarchical")  # by `auto`


class Cost(NamedTuple):
    """Of one exchange. Exchanges that travel together wait for the longest latency and share the bandwidth."""

    latency_seconds: float
    transfer_seconds: float

    @property
    def seconds(self) -> float:
        return self.latency_seconds + self.transfer_seconds

    def times(self, num_bytes: float) -> Cost:
        """Of so many times the bytes: they all cost the same, and latency is there once."""
        return Cost(self.latency_seconds, self.transfer_seconds * num_bytes)


def together(costs: list[Cost]) -> float:
    """Seconds of exchanges that start at once."""
    return max((c.latency_seconds for c in costs), default=0.0) + sum(c.transfer_seconds for c in costs)


def cost(kind: str, num_bytes: float, cluster: Cluster, way: str | None = None) -> Cost:
    """Of an exchange to which each worker hands `num_bytes` (of a scatter: all its rows)."""
    kind = "sum" if kind == "max" else kind
    way = way or WAYS[kind][0]
    if way not in WAYS[kind]:
        raise ConfigError(f"gradwire: a {kind} cannot go by {way!r}; known: {', '.join(WAYS[kind])}")
    if cluster.gpus == 1:
        return Cost(0.0, 0.0)
    inside_messages, messages, inside_bytes, card_bytes = _load(kind, way, num_bytes, cluster)
    network = cluster.link(kind)
    start = network.start_seconds if cluster.nodes > 1 else cluster.inside.start_seconds
    latency = start + inside_messages * cluster.inside.latency_seconds + messages * network.latency_seconds
    inside = transfer_seconds(inside_bytes, cluster.inside.payload_rate)
    across = transfer_seconds(card_bytes, network.payload_rate) if cluster.nodes > 1 else 0.0
    sequential = way == "hierarchical"  # inside, then across; elsewhere both at once
    return Cost(latency, inside + across if sequential else max(inside, across))


def _load(kind: str, way: str, b: float, cluster: Cluster) -> tuple[float, float, float, float]:
    """Messages inside and across, one after the other; bytes inside and over a card."""
    p, g, nodes = cluster.gpus, cluster.gpus_per_node, cluster.nodes
    across_share = nodes / p if nodes > 1 else 0.0  # of a ring's hops
    if way == "ring":
        hops = 2 * (p - 1) if kind == "sum" else p - 1
        sent = reduced(b, p) if kind == "sum" else gathered(b, p)
        return hops * (1 - across_share), hops * across_share, sent if g > 1 else 0.0, sent
    if way == "tree":
        depth = 2 * math.ceil(math.log2(p))
        across = 2 * math.ceil(math.log2(nodes)) if nodes > 1 else 0
        return depth - across, across, 2 * b if g > 1 else 0.0, 2 * b
    if way == "hierarchical":
        if kind == "sum":
            return 2 * (g - 1), 2 * (nodes - 1), reduced(b, g), reduced(b, nodes)
        return g - 1, nodes - 1, gathered(b, p) if g > 1 else 0.0, gathered(g * b, nodes)
    if way == "parameter_server":
        times = 2 if kind == "sum" else p  # it hands out one sum, or everybody's row
        return 0, 2, 0.0, times * gathered(b, p)
    if kind == "gather":
        return 0, p - 1, (g - 1) * b, g * (p - g) * b
    if kind == "scatter":
        return 0, p - 1, (g - 1) / p * b, g * (scattered(b, p) - (g - 1) / p * b)
    return 0, 1, 0.0, g * b
