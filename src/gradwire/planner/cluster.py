"""Who takes part and what lies between them: GPUs in nodes, links inside a node, one network card a node, a switch.

The ranks of a node share its card. In a ring that goes from node to node the card carries one flow each way; where
everybody sends to everybody, it carries that of all ranks of the node.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from gradwire.core.errors import ConfigError
from gradwire.core.registry import Check
from gradwire.core.units import parse_rate

KINDS = ("sum", "gather", "scatter", "route")
MOST_GPUS = 1_000_000  # more than any cluster has


@dataclass(frozen=True, kw_only=True)
class Link:
    """One direction of a link: what a message costs beside its bytes, and the bits a second that payloads get."""

    latency_seconds: float
    bits_per_second: float  # nominal
    efficiency: float = 1.0  # payload bits a second over nominal: headers, and what protocols leave unused
    start_seconds: float = 0.0  # of an exchange, once, however many messages it takes

    def __post_init__(self) -> None:
        check = Check("link")
        check.number("latency_seconds", self.latency_seconds, 0, 60, "seconds from 0 to 60, such as 2e-5 for 20 us")
        check.number("efficiency", self.efficiency, 1e-3, 2, "the share of the nominal rate, such as 0.93")
        if not 0 < self.bits_per_second < math.inf:
            check.fail("bits_per_second", "a rate above 0, such as '10gbit'", self.bits_per_second)

    @property
    def payload_rate(self) -> float:
        """Payload bits a second."""
        return self.bits_per_second * self.efficiency


@dataclass(frozen=True, kw_only=True)
class Cluster:
    """`kinds` overrides the network's latency and efficiency for some kinds of exchange."""

    gpus: int
    gpus_per_node: int = 1
    network: Link
    inside: Link
    kinds: Mapping[str, Link] = field(default_factory=dict)
    switch_bits_per_second: float | None = None  # between all nodes together; None: nobody is slowed down by the switch

    def __post_init__(self) -> None:
        check_gpus(self.gpus, self.gpus_per_node)
        for kind in self.kinds:
            Check("cluster").one_of("kinds", kind, KINDS)

    @property
    def nodes(self) -> int:
        return self.gpus // self.gpus_per_node

    def link(self, kind: str) -> Link:
        """The network as exchanges of this kind see it: a node's card, or its share of a switch that is slower."""
        link = self.kinds.get(kind, self.network)
        if self.switch_bits_per_second is None:
            return link
        share = min(link.bits_per_second, self.switch_bits_per_second / self.nodes)
        return replace(link, bits_per_second=share)


def check_gpus(gpus: object, gpus_per_node: object) -> None:
    """Refuse numbers that make no cluster, and say which would."""
    check = Check("gradwire")
    check.integer("gpus", gpus, 1)
    check.integer("gpus_per_node", gpus_per_node, 1)
    assert isinstance(gpus, int)
    if gpus > MOST_GPUS:
        check.fail("gpus", f"at most {MOST_GPUS:,}", gpus)
    assert isinstance(gpus_per_node, int)
    if gpus % gpus_per_node:
        below = gpus // gpus_per_node * gpus_per_node
        near = f"{below} or {below + gpus_per_node}" if below else f"{gpus_per_node}"
        raise ConfigError(
            f"gradwire: {gpus} GPUs do not fill nodes of {gpus_per_node}; type a multiple, such as {near}, "
            f"or --gpus-per-node 1"
        )


def check_rate(bandwidth: str | float) -> float:
    """The nominal bit/s of what a user typed."""
    if isinstance(bandwidth, bool) or not isinstance(bandwidth, str | int | float):
        raise ConfigError(f"gradwire: a bandwidth was wanted, such as '10gbit', got {bandwidth!r}")
    return parse_rate(bandwidth)
