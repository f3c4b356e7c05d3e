"""Counts bytes where they leave. The only place where sent bytes are added up."""

from __future__ import annotations

from dataclasses import dataclass

from gradwire.core.exchange import Exchange, place


@dataclass
class Meter:
    """Running totals of one worker."""

    payload_bytes: int = 0  # what of the own gradient was handed to exchanges over the network
    sent_bytes: int = 0  # what left the worker by the network
    node_bytes: int = 0  # what left the worker for others of its node
    exchanges: int = 0

    def count(self, exchange: Exchange, workers: int, rank: int) -> None:
        """Worker `rank` of all `workers` asks for `exchange`; of others' teams it knows nothing."""
        if exchange.team is not None and rank not in exchange.team.ranks:
            return
        sent = exchange.sent_bytes(*place(exchange, workers, rank))
        if exchange.team is not None and exchange.team.inside:
            self.node_bytes += sent
        else:
            self.payload_bytes += exchange.payload_bytes
            self.sent_bytes += sent
        self.exchanges += 1
