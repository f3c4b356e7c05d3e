"""What workers can ask the network for. Codecs and strategies yield these; drivers carry them out.

A program stands for all workers of one process: one under torch.distributed, all of them in a virtual cluster. Tensors
and payloads have a first dimension of rows, as many as the process has workers, in order of rank. With n workers in
all, of which w are here:

| exchange | this process gives | it gets | bytes a worker sends |
|---|---|---|---|
| `Sum`, `Max` | a tensor of w rows | one row: the elementwise sum or maximum | 2 (n-1)/n of a row (ring) |
| `Gather` | a payload of w rows | n rows, one a worker | n-1 copies of a row |
| `Scatter` | w·n rows: n for each worker here | w·n rows: for worker r, row r of each worker | all rows but its own |
| `Route` | w rows | w rows: what others sent here, the own row where none did | the row, if it goes anywhere |

A generator yields one exchange, or a tuple of exchanges that may travel together, and is sent the
answer, or the tuple of answers. What it yields belongs to the driver from then on (it may be reduced in
place); what it is sent is shared and must not be written to.

Workers may also exchange in teams: `within` marks all that a program asks for. The n workers of the table are then
those of the team, counted in its order.
"""

from __future__ import annotations

import math
from collections.abc import Generator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias, TypeVar

from torch import Tensor

from gradwire.core import wire


@dataclass(frozen=True)
class Payload:
    """Encoded rows. What crosses the network is `data`, and nothing else.

    `data` has one row per encoded vector. Codecs whose payloads are summed use the dtype they sum in, all
    others uint8. Where a row's size depends on the data, `lengths` (int64, on the CPU) says how many bytes
    of each row are meant; the rest of the row is padding that never leaves the worker.
    """

    data: Tensor
    lengths: Tensor | None = None

    @property
    def rows(self) -> int:
        return self.data.shape[0]

    @property
    def nbytes(self) -> int:
        if self.lengths is not None:
            return int(self.lengths.sum()) + 8 * self.lengths.numel()  # the lengths travel too
        return self.data.numel() * self.data.element_size()

    def row_bytes(self, row: int) -> int:
        if self.lengths is not None:
            return int(self.lengths[row]) + 8
        return self.data[row].numel() * self.data.element_size()


@dataclass(frozen=True)
class Team:
    """Some of the workers, who exchange among themselves. `inside`: all are in one node, so nothing leaves it."""

    ranks: range
    inside: bool = False


@dataclass(frozen=True)
class Reduction:
    """Elementwise over the workers. Use `Sum` or `Max`."""

    tensor: Tensor
    team: Team | None = field(default=None, kw_only=True)

    @property
    def payload_bytes(self) -> int:
        """What of a worker's own gradient goes into the exchange."""
        return self.tensor[0].numel() * self.tensor.element_size()

    def sent_bytes(self, workers: int, rank: int) -> int:
        """Bytes that leave the worker, in a ring."""
        return math.ceil(wire.reduced(self.payload_bytes, workers))


class Sum(Reduction):
    """The elementwise sum over the workers."""


class Max(Reduction):
    """The elementwise maximum over the workers."""


@dataclass(frozen=True)
class Gather:
    """Every worker gets every worker's row. `relay` marks rows that carry a result, not a gradient."""

    payload: Payload
    relay: bool = False
    team: Team | None = field(default=None, kw_only=True)

    @property
    def payload_bytes(self) -> int:
        return 0 if self.relay else self.payload.row_bytes(0)

    def sent_bytes(self, workers: int, rank: int) -> int:
        return int(wire.gathered(self.payload.row_bytes(0), workers))


@dataclass(frozen=True)
class Scatter:
    """Row r of each worker goes to worker r. `workers` is how many there are."""

    payload: Payload
    workers: int
    team: Team | None = field(default=None, kw_only=True)

    @property
    def payload_bytes(self) -> int:
        """Of the first worker here."""
        return sum(self.payload.row_bytes(row) for row in range(self.workers))

    def sent_bytes(self, workers: int, rank: int) -> int:
        return self.payload_bytes - self.payload.row_bytes(rank)


@dataclass(frozen=True)
class Route:
    """For each worker here: its row goes to worker `to`, and one comes from worker `source`; None: none does.

    For rings, trees and swaps of partners. All workers take part in the round, each `to` must name a worker whose
    `source` names it back, and all rows must have the same size. `relay` marks rows that carry a partial result.
    """

    payload: Payload
    to: tuple[int | None, ...]
    source: tuple[int | None, ...]
    relay: bool = False
    team: Team | None = field(default=None, kw_only=True)

    @property
    def payload_bytes(self) -> int:
        return 0 if self.relay else self.payload.row_bytes(0)

    def sent_bytes(self, workers: int, rank: int) -> int:
        return 0 if self.to[0] is None or self.to[0] == rank else self.payload.row_bytes(0)


Exchange: TypeAlias = Reduction | Gather | Scatter | Route
R = TypeVar("R")
Program: TypeAlias = Generator[Any, Any, R]  # yields Exchange | tuple[Exchange, ...], returns R


def place(exchange: Exchange, workers: int, rank: int) -> tuple[int, int]:
    """How many workers take part in an exchange that worker `rank` of `workers` asks for, and which of them it is."""
    team = exchange.team
    return (workers, rank) if team is None else (len(team.ranks), team.ranks.index(rank))


def as_batch(request: Any) -> tuple[Exchange, ...]:
    """What a program yielded, as a tuple."""
    return request if isinstance(request, tuple) else (request,)


def as_answer(request: Any, answers: list[Any]) -> Any:
    """What to send back for `request`: one answer, or a tuple where a tuple was asked."""
    return tuple(answers) if isinstance(request, tuple) else answers[0]


def together(main: Program[R], extras: tuple[Exchange, ...]) -> Program[tuple[R, tuple[Any, ...]]]:
    """Run `main`, and let `extras` travel with its first exchange; returns both results."""
    if not extras:
        return (yield from main), ()
    try:
        request = next(main)
    except StopIteration as done:  # main had nothing to send
        return done.value, (yield extras)
    batch = as_batch(request)
    answers = yield (*batch, *extras)
    answer = as_answer(request, list(answers[: len(batch)]))
    while True:
        try:
            request = main.send(answer)
        except StopIteration as done:
            return done.value, answers[len(batch) :]
        answer = yield request


def side_by_side(programs: Sequence[Program[R]]) -> Program[list[R]]:
    """Run all programs in step: their exchanges of a round travel together; returns their results in order."""
    if len(programs) == 1:
        return [(yield from programs[0])]
    results: dict[int, R] = {}
    requests: dict[int, Any] = {}

    def resume(index: int, answer: Any) -> None:
        try:
            requests[index] = programs[index].send(answer)
        except StopIteration as done:
            results[index] = done.value

    for index in range(len(programs)):
        resume(index, None)
    while requests:
        round_, requests = requests, {}
        answers = iter((yield tuple(exchange for request in round_.values() for exchange in as_batch(request))))
        for index, request in round_.items():
            resume(index, as_answer(request, [next(answers) for _ in as_batch(request)]))
    return [results[index] for index in range(len(programs))]


def within(program: Program[R], team: Team) -> Program[R]:
    """`program`, with all its exchanges among the workers of `team`."""
    answer: Any = None
    while True:
        try:
            request = program.send(answer)
        except StopIteration as done:
            return done.value  # type: ignore[no-any-return]
        marked = [replace(exchange, team=team) for exchange in as_batch(request)]
        answer = yield as_answer(request, marked)
