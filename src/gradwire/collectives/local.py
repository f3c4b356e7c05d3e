"""The virtual driver: all workers in one process, as rows, on whatever device their tensors are.

What crosses the network elsewhere is a sum over rows, the rows as they are, or their transpose here.
"""

from __future__ import annotations

from typing import Any, TypeVar

import torch
from torch import Tensor

from gradwire.collectives.meter import Meter
from gradwire.core.errors import ExchangeFailed
from gradwire.core.exchange import (
    Exchange,
    Gather,
    Max,
    Payload,
    Program,
    Reduction,
    Route,
    Scatter,
    as_answer,
    as_batch,
)

R = TypeVar("R")


def run(program: Program[R], workers: int, meter: Meter | None = None) -> R:
    """Drive the program of all workers to its end; `meter` counts what worker 0 sends."""
    answer: Any = None
    while True:
        try:
            request = program.send(answer)
        except StopIteration as done:
            return done.value  # type: ignore[no-any-return]
        batch = as_batch(request)
        if meter is not None:
            for exchange in batch:
                meter.count(exchange, workers, 0)
        answer = as_answer(request, [carry_out(e) for e in batch])


def carry_out(exchange: Exchange) -> Any:
    """The answer to an exchange whose rows are those of all who take part."""
    if isinstance(exchange, Reduction):
        return reduced(exchange.tensor, maximum=isinstance(exchange, Max))
    if isinstance(exchange, Gather):
        return exchange.payload
    if isinstance(exchange, Scatter):
        return transposed(exchange.payload, exchange.workers)
    return routed(exchange)


def reduced(rows: Tensor, *, maximum: bool) -> Tensor:
    """One row: the sum of the rows, or their maximum, taken one after the other."""
    total = rows[:1].clone()
    for row in rows[1:]:
        total = torch.maximum(total, row) if maximum else total.add_(row)
    return total


def transposed(payload: Payload, workers: int) -> Payload:
    """Row r of each worker becomes a row of worker r."""
    if payload.rows != workers**2:
        raise ExchangeFailed(f"{workers} workers scatter {workers**2} rows, got {payload.rows}")
    order = torch.arange(payload.rows).view(workers, workers).t().reshape(-1)
    lengths = None if payload.lengths is None else payload.lengths[order]
    data = payload.data.view(workers, workers, -1).transpose(0, 1).reshape(payload.data.shape)
    return Payload(data, lengths)


def routed(route: Route) -> Payload:
    """What arrives at each worker; sender and receiver must agree."""
    for rank, (to, source) in enumerate(zip(route.to, route.source, strict=True)):
        if to is not None and route.source[to] != rank:
            raise ExchangeFailed(f"worker {rank} sends to worker {to}, which expects a row from {route.source[to]}")
        if source is not None and route.to[source] != rank:
            raise ExchangeFailed(f"worker {rank} expects a row from worker {source}, which sends to {route.to[source]}")
    data = route.payload.data
    sources = [rank if source is None else source for rank, source in enumerate(route.source)]
    return Payload(torch.stack([data[source] for source in sources]))  # an index would wait for the device


def stack(payloads: list[Payload]) -> Payload:
    """Rows of several payloads under each other; rows of different widths are padded with zeros."""
    width = max(p.data.shape[1] for p in payloads)
    data = [torch.nn.functional.pad(p.data, (0, width - p.data.shape[1])) for p in payloads]
    lengths = [p.lengths for p in payloads if p.lengths is not None]
    return Payload(torch.cat(data), torch.cat(lengths) if lengths else None)
