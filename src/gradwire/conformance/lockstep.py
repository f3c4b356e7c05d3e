"""Workers that are engines of their own, one row each, driven in lock step in one process.

This is what the ranks of a distributed run are. Checks hold them to agree with each other bit for bit, and with the
workers of a `VirtualCluster`, which are the rows of one engine.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any
from unittest.mock import patch

import torch

from gradwire.collectives.local import reduced, routed, stack
from gradwire.collectives.meter import Meter
from gradwire.core.errors import ExchangeFailed
from gradwire.core.exchange import Gather, Max, Payload, Reduction, Route, Team, as_answer, as_batch
from gradwire.engine import Engine
from gradwire.kernels import workspace


def engines(count: int, codec: Any, **options: Any) -> list[Engine]:
    """One engine a worker."""
    return [Engine(codec, ranks=(rank,), workers=count, **options) for rank in range(count)]


def step(
    workers: Sequence[Engine], layout: Any, flats: Sequence[torch.Tensor]
) -> tuple[list[torch.Tensor], list[Meter]]:
    """One step over one unit; what each worker holds then, flat, and what it sent."""
    meters = [Meter() for _ in workers]
    with torch.no_grad():
        programs = [e.reduce(x[None], layout) for e, x in zip(workers, flats, strict=True)]
        results = run(programs, meters)
        for engine, result in zip(workers, results, strict=True):
            engine.finish_step([result])
    return [r.out[0] for r in results], meters


def run(programs: Sequence[Any], meters: Sequence[Meter] | None = None) -> list[Any]:
    """Drive one program per worker to its end; returns their results in order of rank."""
    everybody = Team(range(len(programs)))
    requests: dict[int, Any] = {}
    results: dict[int, Any] = {}
    rooms = [threading.local() for _ in programs]  # each rank has a process of its own elsewhere

    def resume(rank: int, answer: Any) -> None:
        try:
            with patch.object(workspace, "_kept", rooms[rank]):
                request = requests[rank] = programs[rank].send(answer)
        except StopIteration as done:
            results[rank] = done.value
        else:
            if meters is not None:
                for exchange in as_batch(request):
                    meters[rank].count(exchange, len(programs), rank)

    for rank in everybody.ranks:
        resume(rank, None)
    while requests:
        teams = {rank: _team(request) or everybody for rank, request in requests.items()}
        ready = [t for t in dict.fromkeys(teams.values()) if all(teams.get(rank) == t for rank in t.ranks)]
        if not ready:
            raise ExchangeFailed(f"{len(results)} of {len(programs)} workers ended while the others still exchange")
        for team in ready:
            answers = _carry_out([requests.pop(rank) for rank in team.ranks])
            for rank, answer in zip(team.ranks, answers, strict=True):
                resume(rank, answer)
    return [results[rank] for rank in everybody.ranks]


def _team(request: Any) -> Team | None:
    (team,) = {exchange.team for exchange in as_batch(request)}
    return team


def _carry_out(requests: list[Any]) -> list[Any]:
    batches = [as_batch(r) for r in requests]
    if len({len(b) for b in batches}) != 1:
        raise ExchangeFailed("the workers ask for different numbers of exchanges in the same round")
    columns = [_combine(column) for column in zip(*batches, strict=True)]
    return [as_answer(r, list(row)) for r, row in zip(requests, zip(*columns, strict=True), strict=True)]


def _combine(column: Sequence[Any]) -> list[Any]:
    """One exchange over all workers: the answers in order of rank."""
    workers, first = len(column), column[0]
    if len({type(e) for e in column}) != 1:
        kinds = ", ".join(type(e).__name__ for e in column)
        raise ExchangeFailed(f"the workers ask for different exchanges in the same round: {kinds}")
    if isinstance(first, Reduction):
        total = reduced(torch.cat([e.tensor for e in column]), maximum=isinstance(first, Max))
        return [total] * workers
    payloads = [e.payload for e in column]
    if isinstance(first, Route):
        whole = Route(stack(payloads), tuple(e.to[0] for e in column), tuple(e.source[0] for e in column))
        return [Payload(row[None]) for row in routed(whole).data]
    if isinstance(first, Gather):
        return [stack(payloads)] * workers
    return [stack([_row(p, rank) for p in payloads]) for rank in range(workers)]


def _row(payload: Payload, index: int) -> Payload:
    lengths = payload.lengths
    return Payload(payload.data[index : index + 1], None if lengths is None else lengths[index : index + 1])
