"""The virtual driver: N workers in one process, in lock step, on whatever device their tensors are.

Workers that exchange in a team wait for those of the team alone, so that other teams may do more rounds, or fewer.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any, TypeVar

import torch

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
    Team,
    as_answer,
    as_batch,
    shared,
)

R = TypeVar("R")


def run(programs: Sequence[Program[R]], meters: Sequence[Meter], *, share: bool = False) -> list[R]:
    """Drive one program per worker to its end; returns their results in order of rank.

    With `share`, what all workers make of an answer alike is computed once: see `core.exchange.once`.
    """
    everybody = Team(range(len(programs)))
    requests: dict[int, Any] = {}
    results: dict[int, R] = {}

    def resume(rank: int, answer: Any) -> None:
        try:
            request = requests[rank] = programs[rank].send(answer)
        except StopIteration as done:
            results[rank] = done.value
        else:
            for exchange in as_batch(request):
                meters[rank].count(exchange, len(programs), rank)

    for rank in everybody.ranks:
        resume(rank, None)
    while requests:
        teams = {rank: _team(request) or everybody for rank, request in requests.items()}
        ready = [t for t in dict.fromkeys(teams.values()) if all(teams.get(rank) == t for rank in t.ranks)]
        if not ready:
            raise _stuck(len(results), len(programs))
        for team in ready:
            answers = _carry_out([requests.pop(rank) for rank in team.ranks])
            with shared() if share else nullcontext():
                for rank, answer in zip(team.ranks, answers, strict=True):
                    resume(rank, answer)
    return [results[rank] for rank in everybody.ranks]


def _team(request: Any) -> Team | None:
    """The team that exchanges; None for all workers."""
    teams = {exchange.team for exchange in as_batch(request)}
    if len(teams) != 1:
        raise ExchangeFailed("a worker asks for exchanges of different teams in the same round")
    return teams.pop()


def _stuck(ended: int, workers: int) -> ExchangeFailed:
    if ended:
        return ExchangeFailed(f"{ended} of {workers} workers ended while the others still exchange")
    return ExchangeFailed("the workers wait for each other: each team lacks some of its workers")


def _carry_out(requests: list[Any]) -> list[Any]:
    """One round: what each worker is sent for what each worker asked."""
    batches = [as_batch(r) for r in requests]
    if len({len(b) for b in batches}) != 1:
        raise ExchangeFailed("the workers ask for different numbers of exchanges in the same round")
    columns = [_combine(column) for column in zip(*batches, strict=True)]
    return [as_answer(r, list(row)) for r, row in zip(requests, zip(*columns, strict=True), strict=True)]


def _combine(column: Sequence[Exchange]) -> list[Any]:
    """One exchange over all workers: the answers in order of rank."""
    workers = len(column)
    if len({type(e) for e in column}) != 1:
        kinds = ", ".join(type(e).__name__ for e in column)
        raise ExchangeFailed(f"the workers ask for different exchanges in the same round: {kinds}")
    first = column[0]
    if isinstance(first, Reduction):
        total = first.tensor.clone()
        for other in column[1:]:
            assert isinstance(other, Reduction)
            total = torch.maximum(total, other.tensor) if isinstance(first, Max) else total + other.tensor
        return [total] * workers
    if isinstance(first, Route):
        return _routed([e for e in column if isinstance(e, Route)])
    payloads = [e.payload for e in column if isinstance(e, Gather | Scatter)]
    if isinstance(first, Gather):
        return [stack(payloads)] * workers
    return [stack([row(p, rank) for p in payloads]) for rank in range(workers)]


def _routed(column: list[Route]) -> list[Payload | None]:
    """What arrives at each worker; sender and receiver must agree."""
    for rank, route in enumerate(column):
        if route.to is not None and column[route.to].source != rank:
            raise ExchangeFailed(
                f"worker {rank} sends to worker {route.to}, which expects a row from {column[route.to].source}"
            )
        if route.source is not None and column[route.source].to != rank:
            raise ExchangeFailed(
                f"worker {rank} expects a row from worker {route.source}, which sends to {column[route.source].to}"
            )
    return [None if route.source is None else column[route.source].payload for route in column]


def row(payload: Payload, index: int) -> Payload:
    """One row of a payload."""
    lengths = payload.lengths
    return Payload(payload.data[index : index + 1], None if lengths is None else lengths[index : index + 1])


def stack(payloads: Sequence[Payload]) -> Payload:
    """Rows of several workers under each other; rows of different widths are padded with zeros."""
    width = max(p.data.shape[1] for p in payloads)
    data = [torch.nn.functional.pad(p.data, (0, width - p.data.shape[1])) for p in payloads]
    lengths = [p.lengths for p in payloads if p.lengths is not None]
    return Payload(torch.cat(data), torch.cat(lengths) if lengths else None)
