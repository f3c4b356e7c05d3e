"""The tracer: which exchanges a program makes, with how many bytes, in which order. Nothing is sent.

Every exchange is answered as if all workers had handed in what this one did. On meta tensors no gradient is ever
allocated or computed, so a model of any size is traced at once.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeVar

from gradwire.collectives.local import stack
from gradwire.collectives.meter import Meter
from gradwire.core.exchange import Exchange, Payload, Program, Reduction, Route, Scatter, as_answer, as_batch

R = TypeVar("R")


@dataclass(frozen=True)
class TracedExchange:
    """One exchange of one worker."""

    kind: str  # sum, max, gather, scatter or route
    round: int  # exchanges of the same round travel together
    payload_bytes: int  # of this worker's own gradient
    sent_bytes: int  # that leave this worker by the network
    node_bytes: int = 0  # that leave it for others of its node
    handed_bytes: int = 0  # that this worker hands in, results it relays included
    received_bytes: int = 0  # for which it needs room; sums come back where they were


def run(program: Program[R], workers: int, rank: int = 0) -> tuple[list[TracedExchange], R]:
    """Drive `program` as worker `rank` of `workers`; what it exchanges, and what it returns."""
    traced: list[TracedExchange] = []
    answer: Any = None
    round_ = 0
    while True:
        try:
            request = program.send(answer)
        except StopIteration as done:
            return traced, done.value
        batch, answers = as_batch(request), list[Any]()
        for exchange in batch:
            meter = Meter()
            meter.count(exchange, workers, rank)
            kind = type(exchange).__name__.lower()
            found = echo(exchange, workers)
            handed = exchange.payload_bytes if isinstance(exchange, Reduction) else exchange.payload.nbytes
            received = 0 if isinstance(exchange, Reduction) else found.nbytes
            counts = meter.payload_bytes, meter.sent_bytes, meter.node_bytes, handed, received
            traced.append(TracedExchange(kind, round_, *counts))
            answers.append(found)
        answer = as_answer(request, answers)
        round_ += 1


def echo(exchange: Exchange, workers: int) -> Any:
    """What a worker is sent if all workers had handed in what it did."""
    if isinstance(exchange, Reduction):
        return exchange.tensor
    if isinstance(exchange, Route):
        return exchange.payload
    if exchange.team is not None:
        workers = len(exchange.team.ranks)
    if exchange.into is not None:
        return Payload(exchange.into.view(-1, *exchange.payload.data.shape).copy_(exchange.payload.data).flatten(0, 1))
    return exchange.payload if isinstance(exchange, Scatter) else stack([exchange.payload] * workers)
