"""Train a task by N real ranks under DDP, over loopback or an emulated network: quality, and measured seconds.

1. Every rank is a process (see `launch`) with its own copy of the data; it takes its own share of each step's batches.
2. A round is ``attach(..., mode="after_backward")`` at work. The baselines are what `bench.step` compares with: DDP as
   it comes for "none", DDP with torch's own hook for "fp16". Micro-batches of a larger batch stay on the rank until
   the last one.
3. Rank 0 evaluates. Seconds are those of rounds, from the forward pass to the end of the optimizer's step, on the
   slowest rank; making up batches, evaluations and a few rounds of rehearsal are left out.

Parameters, quality and bytes are those of `bench.virtual`, bit for bit where the ranks' sums round alike (two ranks).
Dropout is the exception: it draws from each process's own generator.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook
from torch.nn.parallel import DistributedDataParallel

from gradwire.core.baselines import FP16, FP32, HALF, PLAIN
from gradwire.core.codec import codecs
from gradwire.core.errors import ConfigError
from gradwire.core.records import Record
from gradwire.core.registry import Check
from gradwire.core.units import format_rate, parse_rate
from gradwire.engine import Engine
from gradwire.integrations.ddp import Handle, attach
from gradwire.laboratory.bench.accuracy import OnProgress, OnStart
from gradwire.laboratory.bench.launch import Rank, launch
from gradwire.laboratory.bench.sweep import LOOPBACK, Group, Measured, Place, Sweep, key
from gradwire.laboratory.bench.tasks import task as find_task
from gradwire.laboratory.bench.tasks.base import Batch, Carry, Data
from gradwire.laboratory.bench.training import History, OnEvaluation, Plan, Training, finite, open_data
from gradwire.planner.training import KIND
from gradwire.tracing import trace

MODE = "after_backward"
REHEARSED = 3  # rounds of a twin before the clock starts: code is compiled, memory touched, connections made
TIMEOUT = 7 * 86400.0  # seconds of a run
PATIENCE = 3600.0  # seconds that ranks wait for rank 0 to evaluate


def baseline(plan: Plan) -> str | None:
    """What stands for the plan in `bench.step`, if it is one of the baselines there."""
    if plan.controller is not None or plan.strategy != "auto" or plan.memory not in ("default", "none"):
        return None
    return {FP32: PLAIN, FP16: HALF}.get(codecs.build(plan.codec or "").spec)


class Trainer(Training):
    """One rank's share of a run. With `own_baselines` the baselines are torch's own, and not `attach`'s."""

    def __init__(self, plan: Plan, data: Data, rank: int, clock: str, *, own_baselines: bool = False) -> None:
        super().__init__(plan, data)
        self.rank, self.clock = rank, clock
        self.exchange = (baseline(plan) if own_baselines else None) or f"gradwire, {MODE}"
        # equal by their seed: nothing to send beforehand
        self.ddp = DistributedDataParallel(self.model, init_sync=False)
        self.handle = None if self.exchange in (PLAIN, HALF) else self._attached()
        # of an idle one there is nothing to tell
        self.engine = Engine(plan.codec, workers=plan.workers) if self.handle is None else self.handle.engine
        if self.exchange == HALF:
            self.ddp.register_comm_hook(None, fp16_compress_hook)
        self._carry: Carry = ()
        self._uncounted = [0, 0]  # bytes, payload and sent, that no training would send
        self._since, self._seconds = 0.0, 0.0  # since the last evaluation, and before it
        torch.manual_seed(plan.seed + 1_000_003 * rank)  # dropout

    def _attached(self) -> Handle:
        plan = self.plan
        return attach(
            self.ddp,
            plan.codec,
            controller=plan.controller,
            memory=plan.memory,
            strategy=plan.strategy,
            mode=MODE,
            tensors=plan.compress,
            seed=plan.seed,
            optimizer=self.optimizer,
            nmse_every=plan.nmse_every,
        )

    def run(self, on_evaluation: OnEvaluation = lambda history: None) -> History:
        """Train to the end; all ranks return the same history."""
        return self._train(on_evaluation, lambda: None)

    def rehearse(self) -> None:
        """A few rounds; whoever makes them is of no use for training any more."""
        batches = self.data.epoch(self.plan.seed, 0, self.plan.workers, self.recipe.batch)
        self._begin_epoch()
        for step in islice(batches, REHEARSED):
            self._step([step], self.recipe.learning_rate)

    def outcome(self) -> dict[str, Any]:
        return {**super().outcome(), "exchange": self.exchange}

    # ---------------------------------------------------------------- one round

    def _begin_epoch(self) -> None:
        self._carry = self.data.carry(self.recipe.batch)

    def _step(self, group: Sequence[Sequence[Batch]], rate_now: float) -> None:
        dist.barrier()  # what ranks did meanwhile is not the round's
        start = time.perf_counter()
        super()._step(group, rate_now)
        self._since += time.perf_counter() - start

    def _reduce(self, group: Sequence[Sequence[Batch]], rate_now: float) -> Tensor:
        if self._measures:
            self._uncount(*self._exact_bytes())
        self.optimizer.zero_grad()
        losses = []
        for number, batches in enumerate(group, start=1):
            with nullcontext() if number == len(group) else self.ddp.no_sync():
                with torch.autocast(self.device.type, torch.bfloat16, enabled=self.plan.autocast):
                    loss, self._carry = self.data.loss(self.ddp, batches[self.rank], self._carry)
                (loss / len(group)).backward()  # type: ignore[no-untyped-call]
            losses.append(loss.detach())
        return torch.stack(losses).mean()

    def _end_epoch(self, rate_now: float, next_rate: float) -> None:
        assert self.handle is not None, "a controller is attached"
        before = self.handle.stats()
        self.handle.end_epoch(rate_now, next_rate)
        after = self.handle.stats()
        self._uncount(*(after[name] - before[name] for name in ("payload_bytes", "sent_bytes")))

    def _uncount(self, payload: int, sent: int) -> None:
        self._uncounted = [self._uncounted[0] + payload, self._uncounted[1] + sent]

    # ---------------------------------------------------------------- evaluation

    def _seen(self) -> dict[str, Any]:
        slowest = torch.tensor(self._since, dtype=torch.float64)
        dist.all_reduce(slowest, dist.ReduceOp.MAX)
        self._seconds, self._since = self._seconds + float(slowest), 0.0
        payload, sent, owed = self._counted()
        mean = torch.tensor([float(self._loss) / self._rounds, owed or 0.0], dtype=torch.float64) / self.plan.workers
        dist.all_reduce(mean)
        return {
            "train_loss": finite(float(mean[0])),
            "nmse_gradient": None,  # the gradient before its memory is on no other rank
            "payload_bytes": payload,
            "sent_bytes": sent,
            "residual_norm": None if owed is None else finite(float(mean[1])),
            "seconds": self._seconds,
        }

    def _counted(self) -> tuple[int, int, float | None]:
        """Bytes so far, payload and sent, and the norm of what this rank owes."""
        if self.handle is None:
            shapes = [(s.name, s.shape) for s in self.layout.segments]
            one = trace(self.plan.codec or "", shapes, workers=self.plan.workers, tensors="all")
            return one.payload_bytes * self._total, one.sent_bytes * self._total, None
        stats = self.handle.stats()
        payload, sent = (stats[n] - u for n, u in zip(("payload_bytes", "sent_bytes"), self._uncounted, strict=True))
        return payload, sent, stats["residual_norm"]

    def _quality(self) -> float:
        """Rank 0's, told to all, so that all stop early at the same time."""
        quality = torch.tensor(super()._quality() if self.rank == 0 else 0.0, dtype=torch.float64)
        dist.broadcast(quality, src=0)
        return float(quality)


def train(rank: Rank, plan: Plan, data_dir: Path | None, clock: str) -> tuple[History, dict[str, Any]]:
    """What each process of a run does; rank 0 reports its history at each evaluation."""
    data = open_data(plan, data_dir)
    Trainer(plan, data, rank.rank, clock, own_baselines=True).rehearse()
    trainer = Trainer(plan, data, rank.rank, clock, own_baselines=True)
    trainer.run(rank.report if rank.rank == 0 else lambda history: None)
    return trainer.history, trainer.outcome()


# -------------------------------------------------------------------- runs on a network


@dataclass(frozen=True, kw_only=True)
class NetworkStudy:
    """As `accuracy.Study`, by real ranks: the records have the network's part in `what` and its measured rates."""

    plans: tuple[Plan, ...]
    command: str
    hosts: int
    rate: str  # of every link, or "loopback"
    data_dir: Path | None = None

    def __post_init__(self) -> None:
        Check("bench accuracy").integer("hosts", self.hosts, 2)
        if self.rate != LOOPBACK:
            parse_rate(self.rate)
        for plan in self.plans:
            if plan.workers % self.hosts or plan.device != "cpu":
                raise ConfigError(
                    f"bench accuracy: {plan.workers} ranks on {plan.device} cannot be placed on {self.hosts} hosts, as "
                    "many on each, with gloo between them; choose --hosts and --workers, and leave --device away"
                )
            if plan.nmse_every:
                raise ConfigError(
                    "bench accuracy: measuring the error sends the whole gradient, which would count as training time; "
                    "leave --nmse-every away on a network, the error is the same on virtual workers"
                )

    def run(
        self,
        path: Path | None = None,
        on_start: OnStart = lambda plan, runs: None,
        on_progress: OnProgress = lambda plan, history: None,
    ) -> Iterator[Record]:
        """Each run's record; see `accuracy.Study.run`."""
        alike: dict[tuple[str, int], list[Plan]] = {}
        for plan in self.plans:
            sent_whole = replace(plan, compress="all") if baseline(plan) == HALF else plan  # as torch's hook does
            alike.setdefault((find_task(plan.task).metric.unit, plan.workers), []).append(sent_whole)
        for (unit, workers), plans in alike.items():
            yield from self._sweep(unit, workers, plans, path, on_start, on_progress)

    def _sweep(
        self,
        unit: str,
        workers: int,
        plans: Sequence[Plan],
        path: Path | None,
        on_start: OnStart,
        on_progress: OnProgress,
    ) -> list[Record]:
        """Runs of one unit and as many ranks."""
        places = {(plan.task, plan.synthetic): plan for plan in plans}
        origins = {place: open_data(plan, self.data_dir).origin for place, plan in places.items()}  # and downloaded
        whats = [plan.what(origins[plan.task, plan.synthetic]) for plan in plans]
        titles = {f"run {number} of {len(plans)}": plan for number, plan in enumerate(plans, start=1)}
        by_what = dict(zip(map(key, whats), plans, strict=True))

        def measure(place: Place, settings: Sequence[Mapping[str, Any]]) -> list[Measured]:
            return [self._measured(place, what, by_what[key(what)], on_progress) for what in settings]

        sweep = Sweep(
            kind=KIND,
            command=self.command,
            unit=unit,
            hosts=(self.hosts,),
            rates=(self.rate,),
            per_host=workers // self.hosts,
            groups=tuple(Group(title, (what,)) for title, what in zip(titles, whats, strict=True)),
            measure=measure,
        )
        return sweep.run(path, lambda title, runs: on_start(titles[title.rpartition(", ")[2]], runs))

    def _measured(self, place: Place, what: Mapping[str, Any], plan: Plan, on_progress: OnProgress) -> Measured:
        hear: Callable[[int, Any], None] = lambda rank, history: on_progress(plan, history)  # noqa: E731
        arguments = plan, self.data_dir, clock(place)
        results = launch(
            train, plan.workers, arguments, TIMEOUT, hosts=place.namespaces, group_timeout=PATIENCE, on_message=hear
        )
        history, outcome = results[0]
        return Measured(what, tuple(history.quality), outcome)


def clock(place: Place) -> str:
    """What the seconds of a run there are.

    >>> clock(Place(4, 1, "200mbit", None, {}))
    'measured: 4 hosts at 200 Mbit/s'
    """
    if place.rate == LOOPBACK:
        return f"measured: {place.workers} ranks over loopback"
    ranks = "" if place.per_host == 1 else f" with {place.per_host} ranks each"
    return f"measured: {place.hosts} hosts{ranks} at {format_rate(parse_rate(place.rate))}"
