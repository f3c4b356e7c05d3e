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
from functools import cached_property
from typing import Any, TypeAlias, TypeVar

from torch import Tensor

from gradwire.core import wire

LENGTH_BYTES = 8  # of a row's length, which travels where lengths differ


@dataclass(frozen=True)
class Payload:
    """Encoded rows. What crosses the network is `data`, and nothing else.

    Args:
        data: one row for each encoded vector. Codecs whose payloads are summed use the dtype they sum in, all others
            uint8.
        lengths: only where the size of a row depends on the data: how many bytes of each row are meant, int64 on the
            CPU. The rest of the row is padding that never leaves the worker.

    Example:
        >>> import torch, gradwire
        >>> gradwire.Payload(torch.zeros(2, 100, dtype=torch.uint8)).nbytes
        200
        >>> gradwire.Payload(torch.zeros(2, 100, dtype=torch.uint8), lengths=torch.tensor([10, 20])).nbytes
        46
    """

    data: Tensor
    lengths: Tensor | None = None

    @property
    def rows(self) -> int:
        """How many vectors are encoded."""
        return self.data.shape[0]

    @property
    def nbytes(self) -> int:
        """The bytes of all rows on the wire; a length takes 8 of them."""
        if self.lengths is not None:
            return int(self.lengths.sum()) + LENGTH_BYTES * self.lengths.numel()
        return self.data.numel() * self.data.element_size()

    def row_bytes(self, row: int) -> int:
        """The bytes of one row on the wire.

        Args:
            row: its number.
        """
        if self.lengths is not None:
            return int(self.lengths[row]) + LENGTH_BYTES
        return self._fixed

    @cached_property
    def _fixed(self) -> int:  # asked for again in each replayed step
        return math.prod(self.data.shape[1:]) * self.data.element_size()


@dataclass(frozen=True)
class Team:
    """Some of the workers, who exchange among themselves. `inside`: all are in one node, so nothing leaves it."""

    ranks: range
    inside: bool = False


@dataclass(frozen=True)
class Reduction:
    """Elementwise over the workers. Use `Sum` or `Max`."""

    tensor: Tensor
    in_ring: bool = field(default=False, kw_only=True)
    team: Team | None = field(default=None, kw_only=True)

    @property
    def payload_bytes(self) -> int:
        """What of a worker's own gradient goes into the exchange."""
        return math.prod(self.tensor.shape[1:]) * self.tensor.element_size()

    def sent_bytes(self, workers: int, rank: int) -> int:
        """Bytes that leave a worker, in a ring or by shares.

        Args:
            workers: how many there are.
            rank: which one it is.
        """
        return math.ceil(wire.reduced(self.payload_bytes, workers))


class Sum(Reduction):
    """Add up a tensor over the workers, element by element. The answer has one row.

    Args:
        tensor: a row for each worker of this process.
        in_ring: as DDP adds up its buckets, so that sums round alike; else a small one may go another way.
        team: the workers among whom it happens; None: all.

    Example:
        >>> import torch, gradwire
        >>> from gradwire.collectives import local
        >>> def program():
        ...     return (yield gradwire.Sum(torch.tensor([[1.0, 5.0], [3.0, 2.0]])))
        >>> local.run(program(), 2)
        tensor([[4., 7.]])
    """


class Max(Reduction):
    """Find the maximum of a tensor over the workers, element by element. The answer has one row.

    Args:
        tensor: a row for each worker of this process.
        in_ring: of no account, as maxima do not round.
        team: the workers among whom it happens; None: all.

    Example:
        >>> import torch, gradwire
        >>> from gradwire.collectives import local
        >>> def program():
        ...     return (yield gradwire.Max(torch.tensor([[1.0, 5.0], [3.0, 2.0]])))
        >>> local.run(program(), 2)
        tensor([[3., 5.]])
    """


@dataclass(frozen=True)
class Gather:
    """Give every worker the row of every worker. The answer has a row for each.

    Args:
        payload: a row for each worker of this process.
        relay: the rows carry a result, not a gradient; they do not count as payload.
        team: the workers among whom it happens; None: all.
        into: where the answer may be put; None: the driver finds room for it.
        most: bytes that a row may have where their sizes differ; None: nobody knows.

    Example:
        >>> import torch, gradwire
        >>> from gradwire.collectives import local
        >>> def program():
        ...     return (yield gradwire.Gather(gradwire.Payload(torch.tensor([[1, 2], [3, 4]], dtype=torch.uint8))))
        >>> local.run(program(), 2).data
        tensor([[1, 2],
                [3, 4]], dtype=torch.uint8)
    """

    payload: Payload
    relay: bool = False
    team: Team | None = field(default=None, kw_only=True)
    into: Tensor | None = field(default=None, kw_only=True)
    most: int | None = field(default=None, kw_only=True)

    @property
    def payload_bytes(self) -> int:
        """What of the first worker's own gradient goes into the exchange."""
        return 0 if self.relay else self.payload.row_bytes(0)

    def sent_bytes(self, workers: int, rank: int) -> int:
        """Bytes that leave a worker.

        Args:
            workers: how many there are.
            rank: which one it is.
        """
        return int(wire.gathered(self.payload.row_bytes(0), workers))


@dataclass(frozen=True)
class Scatter:
    """Send row r of each worker to worker r. The answer has, for each worker here, a row from everybody.

    Args:
        payload: for each worker of this process as many rows as there are workers.
        workers: how many there are.
        relay: the rows carry no gradient; they do not count as payload.
        team: the workers among whom it happens; None: all.
        into: where the answer may be put; None: the driver finds room for it.
        most: bytes that a row may have where their sizes differ; None: nobody knows.

    Example:
        >>> import torch, gradwire
        >>> from gradwire.collectives import local
        >>> def program():
        ...     rows = torch.tensor([[1], [2], [3], [4]], dtype=torch.uint8)  # two of each worker
        ...     return (yield gradwire.Scatter(gradwire.Payload(rows), workers=2))
        >>> local.run(program(), 2).data.flatten()
        tensor([1, 3, 2, 4], dtype=torch.uint8)
    """

    payload: Payload
    workers: int
    relay: bool = field(default=False, kw_only=True)
    team: Team | None = field(default=None, kw_only=True)
    into: Tensor | None = field(default=None, kw_only=True)
    most: int | None = field(default=None, kw_only=True)

    @property
    def payload_bytes(self) -> int:
        """What of the first worker's own gradient goes into the exchange."""
        return 0 if self.relay else self._all_bytes()

    def sent_bytes(self, workers: int, rank: int) -> int:
        """Bytes that leave a worker.

        Args:
            workers: how many there are.
            rank: which one it is.
        """
        return self._all_bytes() - self.payload.row_bytes(rank)

    def _all_bytes(self) -> int:
        if self.payload.lengths is None:
            return self.workers * self.payload.row_bytes(0)
        return sum(self.payload.row_bytes(row) for row in range(self.workers))


@dataclass(frozen=True)
class Route:
    """Send each worker's row to one other worker: for rings, trees and swaps of partners.

    All workers take part in the round. Each `to` must name a worker whose `source` names it back, and all rows must
    have the same size. A worker to which nobody sends keeps its own row.

    Args:
        payload: a row for each worker of this process.
        to: for each of them, the worker to which its row goes; None: it is not sent.
        source: for each of them, the worker whose row comes; None: none does.
        relay: the rows carry a partial result, not a gradient; they do not count as payload.
        team: the workers among whom it happens; None: all.

    Example:
        >>> import torch, gradwire
        >>> from gradwire.collectives import local
        >>> def program():  # two workers swap
        ...     payload = gradwire.Payload(torch.tensor([[1, 2], [3, 4]], dtype=torch.uint8))
        ...     return (yield gradwire.Route(payload, to=(1, 0), source=(1, 0)))
        >>> local.run(program(), 2).data
        tensor([[3, 4],
                [1, 2]], dtype=torch.uint8)
    """

    payload: Payload
    to: tuple[int | None, ...]
    source: tuple[int | None, ...]
    relay: bool = False
    team: Team | None = field(default=None, kw_only=True)

    @property
    def payload_bytes(self) -> int:
        """What of the first worker's own gradient goes into the exchange."""
        return 0 if self.relay else self.payload.row_bytes(0)

    def sent_bytes(self, workers: int, rank: int) -> int:
        """Bytes that leave a worker.

        Args:
            workers: how many there are.
            rank: which one it is.
        """
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
