"""Counts bytes where they leave. The only place where sent bytes are added up."""

from __future__ import annotations

from dataclasses import dataclass

from gradwire.core.exchange import Exchange


@dataclass
class Meter:
    """Running totals of one worker."""

    payload_bytes: int = 0  # what of the own gradient was handed to exchanges
    sent_bytes: int = 0  # what left the worker
    exchanges: int = 0

    def count(self, exchange: Exchange, workers: int, rank: int) -> None:
        self.payload_bytes += exchange.payload_bytes
        self.sent_bytes += exchange.sent_bytes(workers, rank)
        self.exchanges += 1
