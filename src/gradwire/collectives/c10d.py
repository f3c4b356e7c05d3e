"""The distributed driver: carries a program's exchanges out over a torch.distributed process group.

`run` blocks until the program has ended; DDP's hook calls it from a worker thread (see
`gradwire.integrations.ddp`) so that the backward pass goes on meanwhile. All exchanges of a round are started before
the first is waited for.

On gloo, the small exchanges of a round travel together, see `collectives.bundle`. Large rows for single peers go in
pairs: in turn s every worker sends to the one s places on and receives from the one s places back, so that no link has
two senders. Gloo's own all-to-all starts everything at once, and with large rows loses time to the queues and to
control messages that wait in them. Its all-gather is a ring; between two workers, who send both ways over one
connection then, large rows take a quarter less in pairs (results/gather_neoverse-n1_2026-11-15.jsonl).
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor

from gradwire.collectives import bundle
from gradwire.collectives.meter import Meter
from gradwire.core.errors import CorruptPayload, ExchangeFailed
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
)
from gradwire.core.received import check_lengths, named

R = TypeVar("R")
ROOMS = 256  # kept at most
TELLING = 1 << 16  # bytes of a round: fewer are mostly latency, and tell no rate
LARGE_ROW = 1 << 19  # bytes: below, gloo's own all-gather is quicker between two workers, too

# torch 2.13 renamed this one and warns about the old name; the new name is unknown before.
_all_gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor


@dataclass
class Clock:
    """Seconds on the host clock: before the first exchange over the network, waiting, and after its answer."""

    encode: float = 0.0
    communicate: float = 0.0
    decode: float = 0.0
    bytes_per_second: float = 0.0  # of the fastest round of some size, since somebody last looked

    def exchanged(self, seconds: float, sent_bytes: int) -> None:
        """A round of exchanges took so long, and so many bytes left by the network."""
        self.communicate += seconds
        if sent_bytes >= TELLING:
            self.bytes_per_second = max(self.bytes_per_second, sent_bytes / seconds)


class ProcessGroupDriver:
    """Drives programs over `group`, one at a time, counting bytes and seconds; `teams` have groups of their own."""

    def __init__(self, group: dist.ProcessGroup, teams: Mapping[Team, dist.ProcessGroup] | None = None) -> None:
        self.group = group
        self.rank: int = dist.get_rank(group)
        self.workers: int = dist.get_world_size(group)
        self.meter = Meter()
        self.clock = Clock()
        self._peers: dict[Team | None, _Peers] = {team: _Peers(g) for team, g in (teams or {}).items()}
        self._peers[None] = _Peers(group)

    def run(self, program: Program[R]) -> R:
        """Drive `program` to its end and return its result."""
        answer: Any = None
        for peers in self._peers.values():
            peers.used = 0  # what the last program received is used up
        encoding, start = True, time.perf_counter()
        while True:
            try:
                request = program.send(answer)
            except StopIteration as done:
                self._spent(encoding, time.perf_counter() - start)
                return done.value  # type: ignore[no-any-return]
            sent = time.perf_counter()
            self._spent(encoding, sent - start)
            batch, before = as_batch(request), self.meter.sent_bytes
            answer = as_answer(request, self._exchange(batch))
            encoding = encoding and all(e.team is not None and e.team.inside for e in batch)
            start = time.perf_counter()
            self.clock.exchanged(start - sent, self.meter.sent_bytes - before)

    def _spent(self, encoding: bool, seconds: float) -> None:
        if encoding:
            self.clock.encode += seconds
        else:
            self.clock.decode += seconds

    def _exchange(self, batch: Sequence[Exchange]) -> list[Any]:
        """Carry out the exchanges of a round: the small ones together, then other collectives, then those in pairs.

        The order matters when a peer dies. A collective of gloo fails then and forgets its buffers. What others still
        send into them is never read, and all that they send later waits behind it: what is exchanged in pairs would end
        at the time-out only.
        """
        bundles: dict[Team | None, list[int]] = {}
        alone: list[int] = []
        for i, exchange in enumerate(batch):
            self.meter.count(exchange, self.workers, self.rank)
            small = self._peers[exchange.team].bundles(exchange)
            (bundles.setdefault(exchange.team, []) if small else alone).append(i)
        alone.sort(key=lambda i: isinstance(batch[i], (Scatter, Route)))
        order = [*bundles.values(), *([i] for i in alone)]
        waits = [self._start([batch[i] for i in places]) for places in order]
        answers: dict[int, Any] = {}
        for places, wait in zip(order, waits, strict=True):
            answers |= zip(places, wait(), strict=True)
        return [answers[i] for i in range(len(batch))]

    def _start(self, batch: Sequence[Exchange]) -> Callable[[], list[Any]]:
        """Start an exchange, or a bundle of them; the returned function waits for it and gives the answers."""
        try:
            wait = self._peers[batch[0].team].begin_all(batch)
        except RuntimeError as problem:
            raise self._failed(batch[0], problem) from problem

        def finish() -> list[Any]:
            try:
                return wait()
            except RuntimeError as problem:
                raise self._failed(batch[0], problem) from problem

        return finish

    def _failed(self, exchange: Exchange, problem: RuntimeError) -> ExchangeFailed:
        if isinstance(problem, CorruptPayload):
            return named(problem, "gradwire", self.workers)
        lines = str(problem).strip().splitlines()
        return ExchangeFailed(
            f"rank {self.rank} of {self.workers}: {type(exchange).__name__.lower()} did not finish: "
            f"{lines[0] if lines else type(problem).__name__}. A peer has most likely died or timed out; look for the "
            "first error among the other ranks' output, then restart from the last checkpoint."
        )


class _Peers:
    """Those who exchange over one process group, seen from one of them."""

    def __init__(self, group: dist.ProcessGroup) -> None:
        self.group = group
        self.rank: int = dist.get_rank(group)
        self.workers: int = dist.get_world_size(group)
        self._pairs = dist.get_backend(group) == "gloo"
        self._rooms: dict[tuple[int, torch.Size, torch.dtype], Tensor] = {}
        self.used = 0  # rooms, by the program that runs now
        self._tag = 0  # of the last exchange in pairs; all workers count alike

    def _room(self, like: Tensor, shape: Sequence[int], into: Tensor | None = None) -> Tensor:
        """Where to receive rows. Large rooms are kept for the next program: fresh pages cost more than the copy."""
        if into is not None:
            return into.view(tuple(shape))
        if like.device.type != "cpu" or math.prod(shape) * like.element_size() < LARGE_ROW:
            return like.new_empty(tuple(shape))
        key = (self.used, torch.Size(shape), like.dtype)
        self.used += 1
        if key not in self._rooms:
            if len(self._rooms) > ROOMS:
                self._rooms.clear()
            self._rooms[key] = like.new_empty(tuple(shape))
        return self._rooms[key]

    def bundles(self, exchange: Exchange) -> bool:
        """Whether an exchange travels with other small ones."""
        data = exchange.tensor if isinstance(exchange, Reduction) else exchange.payload.data
        return self._pairs and data.device.type == "cpu" and bundle.fits(exchange, self.workers)

    def begin_all(self, batch: Sequence[Exchange]) -> Callable[[], list[Any]]:
        """Start one exchange, or several that travel together."""
        if self.bundles(batch[0]):
            return bundle.begin(batch, self.workers, self._all_to_all)
        (exchange,) = batch
        wait = self.begin(exchange)
        return lambda: [wait()]

    def _all_to_all(self, rows: Tensor) -> Callable[[], Tensor]:
        receive = torch.empty_like(rows)
        work = dist.all_to_all_single(receive, rows, group=self.group, async_op=True)
        return self._finished([work], rows, receive)

    def begin(self, exchange: Exchange) -> Callable[[], Any]:
        if isinstance(exchange, Reduction):
            return self._reduce(exchange)
        if isinstance(exchange, Route):
            return self._route(exchange)
        if exchange.payload.lengths is not None:
            return self._variable(exchange)
        send = exchange.payload.data.contiguous()
        if isinstance(exchange, Gather):
            receive = self._room(send, (self.workers, *send.shape[1:]), exchange.into)
            large = exchange.payload.nbytes >= LARGE_ROW
            if large and self._pairs and self.workers == 2 and send.device.type == "cpu":
                swapped = self._finished(self._swap_in_pairs([send[0]] * 2, list(receive)), send, receive)
                return lambda: Payload(swapped())
            wait = self._async(receive, lambda: _all_gather(receive, send, group=self.group, async_op=True))
            return lambda: Payload(wait(send))
        if not send.numel():
            return lambda: Payload(send)
        counts = [send[0].numel()] * self.workers
        swapped = self._swap(send.view(-1), counts, counts, exchange.into)
        return lambda: Payload(swapped().view_as(send))

    def _route(self, exchange: Route) -> Callable[[], Payload]:
        assert exchange.payload.lengths is None, "rows of a route have a fixed size"
        row, (to,), (source,) = exchange.payload.data[0].contiguous(), exchange.to, exchange.source
        outgoing, incoming = ([row.numel() if r == peer else 0 for r in range(self.workers)] for peer in (to, source))
        swapped = self._swap(row if to is not None else row[:0], outgoing, incoming)

        def finish() -> Payload:
            received = swapped()
            return Payload(row[None] if source is None else received.view(1, -1))

        return finish

    def _swap(
        self, send: Tensor, outgoing: Sequence[int], incoming: Sequence[int], into: Tensor | None = None
    ) -> Callable[[], Tensor]:
        """Start to send the next `outgoing[r]` elements of a flat tensor to each worker r; the answer has theirs."""
        receive = self._room(send, (sum(incoming),), into)
        if not self._pairs or send.device.type != "cpu":
            sizes = list(incoming), list(outgoing)
            works = [dist.all_to_all_single(receive, send, *sizes, group=self.group, async_op=True)]
        else:
            works = self._swap_in_pairs(torch.split(send, list(outgoing)), torch.split(receive, list(incoming)))

        return self._finished(works, send, receive)

    def _finished(self, works: Sequence[dist.Work], send: Tensor, receive: Tensor) -> Callable[[], Tensor]:
        """What waits for all of it and gives what has come."""

        def wait(_kept_alive: Tensor = send) -> Tensor:
            for work in works:
                work.wait()
            return receive

        return wait

    def _swap_in_pairs(self, outgoing: Sequence[Tensor], incoming: Sequence[Tensor]) -> list[dist.Work]:
        self._tag += 1
        me, n, tag = self.rank, self.workers, self._tag
        incoming[me].copy_(outgoing[me])
        before, after = [(me - s) % n for s in range(1, n)], [(me + s) % n for s in range(1, n)]
        works = [self.group.recv([incoming[r]], r, tag) for r in before if incoming[r].numel()]
        return works + [self.group.send([outgoing[r]], r, tag) for r in after if outgoing[r].numel()]

    def _reduce(self, exchange: Reduction) -> Callable[[], Tensor]:
        tensor = exchange.tensor.contiguous()
        op = dist.ReduceOp.MAX if isinstance(exchange, Max) else dist.ReduceOp.SUM
        wait = self._async(tensor, lambda: dist.all_reduce(tensor, op=op, group=self.group, async_op=True))
        return lambda: wait(tensor)

    def _async(self, result: Tensor, start: Callable[[], Any]) -> Callable[[Tensor], Tensor]:
        """Start a collective unless there is nothing to send; what it reads is kept alive until it is done."""
        work = start() if result.numel() else None

        def wait(_kept_alive: Tensor) -> Tensor:
            if work is not None:
                work.wait()
            return result

        return wait

    def _variable(self, exchange: Gather | Scatter) -> Callable[[], Payload]:
        """Rows whose sizes depend on the data: the lengths travel first, then exactly that many bytes."""
        payload, workers = exchange.payload, self.workers
        assert payload.lengths is not None
        lengths = payload.lengths.to(payload.data.device)
        counts = torch.empty(workers, dtype=torch.int64, device=lengths.device)
        rows = payload.data
        if isinstance(exchange, Gather):
            lengths, rows = lengths.expand(workers).contiguous(), rows.expand(workers, -1)
        dist.all_to_all_single(counts, lengths, group=self.group)
        outgoing, incoming = lengths.tolist(), counts.tolist()
        check_lengths(incoming, None, exchange)
        send = torch.cat([r[:n] for r, n in zip(rows, outgoing, strict=True)])
        receive = send.new_empty(0)
        if self._pairs or self._anything(lengths, counts):
            receive = self._swap(send, outgoing, incoming)()
        width = max(incoming)
        data = torch.stack([F.pad(part, (0, width - part.numel())) for part in torch.split(receive, incoming)])
        return lambda: Payload(data, counts.cpu())

    def _anything(self, outgoing: Tensor, incoming: Tensor) -> bool:
        """Whether any worker has anything to send: an all-to-all of nothing hangs some backends."""
        total = (outgoing.sum() + incoming.sum()).view(1)
        dist.all_reduce(total, group=self.group)
        return bool(total > 0)
