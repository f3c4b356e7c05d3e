"""Did what was sent arrive? Checksums travel beside every exchange: `attach(..., checksum=True)`.

1. Beside a gather, a scatter or a route goes another of the same kind, with 16 bytes for each row: its sums, see
   `kernels.checksum`. Who receives a row computes its sums again. If they differ, the row was changed on the way.
2. Parts of a sum or a maximum cannot be told apart by whoever receives it. But all workers must get the same one: the
   sums of its bytes are gathered beside the next exchange, or after the last one, and compared. A part that was changed
   before it was added up, alike for all, goes unseen.

On a GPU the host waits for the answer of each exchange.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import torch
from torch import Tensor

from gradwire.core.errors import CorruptPayload
from gradwire.core.exchange import (
    Exchange,
    Gather,
    Payload,
    Program,
    Reduction,
    Route,
    Scatter,
    Team,
    as_answer,
    as_batch,
)
from gradwire.core.received import WHAT_TO_DO, named
from gradwire.kernels.checksum import sums

R = TypeVar("R")


@dataclass(frozen=True)
class Result:
    """A sum or maximum that all workers of `team` should have alike."""

    team: Team | None
    rows: int  # workers of this process
    sums: Tensor  # of its bytes: (1, 2)


def checksummed(program: Program[R], reader: str, workers: int) -> Program[R]:
    """`program`, in which every answer is held to the checksums of those who sent it.

    Args:
        program: of exchanges.
        reader: who reads the answers, for errors.
        workers: who take part.

    Example:
        >>> import torch, gradwire
        >>> from gradwire.collectives import local
        >>> def program():
        ...     return (yield gradwire.Sum(torch.tensor([[1.0, 5.0], [3.0, 2.0]])))
        >>> local.run(checksummed(program(), "mine", 2), 2)
        tensor([[4., 7.]])
    """
    answer: Any = None
    results: list[Result] = []  # that nobody has compared yet
    while True:
        try:
            request = program.send(answer)
        except StopIteration as done:
            if results:
                _compare(results, (yield tuple(_agreements(results))), reader)
            return done.value  # type: ignore[no-any-return]
        batch = as_batch(request)
        rows = [e for e in batch if not isinstance(e, Reduction)]
        beside, agreements = [_of_rows(e) for e in rows], list(_agreements(results))
        answers = list((yield (*batch, *beside, *agreements)))
        told = answers[len(batch) : len(batch) + len(beside)]
        _compare(results, answers[len(batch) + len(beside) :], reader)
        came = [a for e, a in zip(batch, answers, strict=False) if not isinstance(e, Reduction)]
        for exchange, payload, wanted in zip(rows, came, told, strict=True):
            _check(exchange, payload, wanted, reader, workers)
        results = [
            _result(e, a) for e, a in zip(batch, answers, strict=False) if isinstance(e, Reduction) and a.numel()
        ]
        answer = as_answer(request, answers[: len(batch)])


# ---------------------------------------------------------------- rows


def _of_rows(exchange: Gather | Scatter | Route) -> Exchange:
    """What carries the sums of an exchange's rows to where the rows go."""
    payload = Payload(_sums(exchange.payload).view(torch.uint8))
    if isinstance(exchange, Route):
        return replace(exchange, payload=payload, relay=True)
    return replace(exchange, payload=payload, relay=True, into=None, most=None)


def _sums(payload: Payload) -> Tensor:
    return sums(_bytes(payload.data), payload.lengths)


def _bytes(x: Tensor) -> Tensor:
    """(rows, bytes)"""
    if not x.numel():
        return x.new_zeros((x.shape[0], 0), dtype=torch.uint8)
    return x.contiguous().view(x.shape[0], -1).view(torch.uint8)


def _check(exchange: Exchange, came: Payload, told: Payload, reader: str, workers: int) -> None:
    different = (_sums(came) != _words(told)).any(1)
    if not bool(different.any()):
        return
    row = int(different.nonzero()[0])
    team = exchange.team
    if isinstance(exchange, Route):
        source = exchange.source[row]
        assert source is not None, "a row that stayed here has not changed"
        row = source
    peers = workers if team is None else len(team.ranks)
    sender = row % peers if team is None else team.ranks[row % peers]
    raise named(CorruptPayload("its bytes are not those of its checksum", sender), reader, workers)


def _words(told: Payload) -> Tensor:
    return told.data.contiguous().view(torch.int64)


# ---------------------------------------------------------------- sums


def _result(exchange: Reduction, answer: Tensor) -> Result:
    rows = exchange.tensor.shape[0]
    return Result(exchange.team, rows, sums(_bytes(answer.reshape(1, -1))))


def _agreements(results: Sequence[Result]) -> Iterator[Gather]:
    """What tells all workers of each team the sums of each other's results."""
    for team in dict.fromkeys(result.team for result in results):
        found = [result for result in results if result.team == team]
        row = torch.cat([result.sums for result in found], 1).view(torch.uint8)
        yield Gather(Payload(row.expand(found[0].rows, -1).contiguous()), relay=True, team=team)


def _compare(results: Sequence[Result], answers: Sequence[Payload], reader: str) -> None:
    teams = dict.fromkeys(result.team for result in results)
    for team, answer in zip(teams, answers, strict=True):
        rows = _words(answer)
        different = (rows != rows.mode(0).values).any(1)
        if bool(different.any()):
            who = [i if team is None else team.ranks[i] for i in different.nonzero().flatten().tolist()]
            workers = f"worker {who[0]}" if len(who) == 1 else f"workers {', '.join(map(str, who))}"
            told = f"{reader}: {workers} got another sum of all workers' tensors than the others. {WHAT_TO_DO}"
            raise CorruptPayload(told, who[0], named=True)
