"""A whole training iteration under DDP on one device: with each codec, beside no hook and torch's own hooks.

1. All configurations live in the same process and take turns, so that whatever else happens meets all alike.
2. A sample is the time of a turn, some iterations in a row, the device idle before the first and waited for after the
   last, over their number: the host may run ahead, as it does in training.
3. Gradients are views of DDP's buckets, as tuned jobs have them: else the host copies them tensor by tensor.
4. The exchange is an echo, see `bench.echo`: the process believes to be one of `workers`, and what a codec adds to
   the iteration is its own work. Or it is gloo's: `workers` processes that share the device, bytes through the host.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.distributed as dist

from gradwire.core import environment
from gradwire.core.baselines import BASELINES, NOTHING, PLAIN
from gradwire.core.errors import ConfigError
from gradwire.core.intervals import ratio
from gradwire.core.records import Quantiles, Record
from gradwire.core.registry import Check
from gradwire.engine import Engine
from gradwire.laboratory.bench import compute, step
from gradwire.laboratory.bench.echo import echo
from gradwire.laboratory.bench.gpu_work import busy_seconds, seen
from gradwire.laboratory.bench.launch import Rank, launch

KIND = "iteration"
ECHO, GLOO = "echo", "gloo"
TURN = 4  # iterations until the next configuration has its turn
WARM = 5  # turns that do not count: DDP orders its buckets, kernels are compiled and captured
TIMEOUT = 1800.0
OVER = {"no_exchange": NOTHING, "ddp": PLAIN}  # what a configuration's time is divided by, by field of its record


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What to measure: a model, how it is trained, and the codecs behind its backward pass."""

    model: str
    batch: int
    codecs: tuple[str, ...] = step.CODECS
    exchange: str = ECHO
    workers: int = 4
    precision: str = "fp32"
    device: str = "cpu"
    turns: int = 10

    def __post_init__(self) -> None:
        check = Check("bench iteration")
        for name in ("batch", "turns"):
            check.integer(name, getattr(self, name), 1)
        check.integer("workers", self.workers, 2)
        check.one_of("exchange", self.exchange, (ECHO, GLOO))
        check.one_of("precision", self.precision, compute.PRECISIONS)
        step.check_model(self.model)
        for codec in self.codecs:
            Engine(codec, workers=self.workers)  # refused now, not in the middle
        if self.device not in ("cpu", "cuda") or (self.device == "cuda" and not torch.cuda.is_available()):
            raise ConfigError(f"bench iteration: there is no device {self.device!r} here; use cpu")

    @property
    def command(self) -> str:
        """The command line that makes the same measurement."""
        codecs = "" if self.codecs == step.CODECS else "".join(f' --codec "{c}"' for c in self.codecs)
        return (
            f"gradwire bench iteration --model {self.model} --batch {self.batch}{codecs} --exchange {self.exchange} "
            f"--workers {self.workers} --precision {self.precision} --device {self.device} --turns {self.turns}"
        )

    @property
    def configurations(self) -> tuple[str, ...]:
        """Baselines, then codecs."""
        return (*BASELINES, *self.codecs)


@dataclass(frozen=True)
class Measured:
    """One configuration: seconds of an iteration, one a turn; and how its units were launched, where there are any."""

    configuration: str
    samples: tuple[float, ...]
    graphs: dict[str, Any] | None = None
    busy: float | None = None  # seconds of an iteration in which a GPU was at work


def measure(plan: Plan, on_turn: Callable[[], None] = lambda: None) -> list[Measured]:
    """All configurations of a plan; of several processes, the slowest counts.

    Args:
        plan: what to measure.
        on_turn: called when all configurations have had a turn: `rounds(plan)` times.
    """
    if plan.exchange == ECHO:
        with echo(plan.workers):
            return train(None, plan, on_turn)
    seen_by = lambda rank, _: on_turn() if rank == 0 else None  # noqa: E731
    ranks: list[list[Measured]] = launch(train, plan.workers, (plan,), TIMEOUT, on_message=seen_by)
    return [
        replace(one, samples=tuple(map(max, zip(*(o.samples for o in (one, *others)), strict=True))))
        for one, *others in zip(*ranks, strict=True)
    ]


def rounds(plan: Plan) -> int:
    """How many turns each configuration has, those that do not count included."""
    return WARM + plan.turns


def train(rank: Rank | None, plan: Plan, on_turn: Callable[[], None] = lambda: None) -> list[Measured]:
    """What one process does and sees, over the default process group."""
    with compute.arithmetic(plan.precision):
        runs = [_Run(name, plan) for name in plan.configurations]
        for _ in range(rounds(plan)):
            for run in runs:
                run.turn()
            on_turn() if rank is None else rank.report("turn")
        return [Measured(run.name, tuple(run.samples[WARM:]), run.graphs, run.busy()) for run in runs]


class _Run:
    """One configuration in one process."""

    def __init__(self, name: str, plan: Plan) -> None:
        self.name, self.plan = name, plan
        module = step.build(plan.model, plan.device)
        self.inputs = step.example(plan.model, module, plan.batch, plan.device)
        setting = {"configuration": name, "strategy": "auto", "mode": "overlap"}
        # torch's PowerSGD hook hangs on gloo with more buckets than one
        bucket = step.ONE_BUCKET if plan.exchange == GLOO else None
        self.model, self.handle = step.prepare(module, setting, bucket, gradient_as_bucket_view=True)
        self.optimizer = torch.optim.SGD(module.parameters(), step.RATE)
        self.samples: list[float] = []

    def turn(self) -> None:
        """Some iterations in a row."""
        dist.barrier()
        self._wait()
        start = time.perf_counter()
        for _ in range(TURN):
            self.optimizer.zero_grad()
            with compute.autocast(self.plan.device, self.plan.precision):
                loss = step.loss_of(self.model(*self.inputs))
            loss.backward()  # type: ignore[no-untyped-call]
            self.optimizer.step()
        self._wait()
        self.samples.append((time.perf_counter() - start) / TURN)

    def busy(self) -> float | None:
        """Seconds of an iteration in which the GPU was at work, seen in one more turn."""
        if self.plan.device != "cuda":
            return None
        return busy_seconds(seen(self.turn)) / TURN

    def _wait(self) -> None:
        if self.plan.device == "cuda":
            torch.cuda.synchronize()

    @property
    def graphs(self) -> dict[str, Any] | None:
        return None if self.handle is None else self.handle.stats()["graphs"]


# -------------------------------------------------------------------- records


def to_records(plan: Plan, measured: Sequence[Measured]) -> list[Record]:
    """One record a configuration."""
    now = environment.now()
    commit, dirty = environment.commit()
    common = {"model": plan.model, "batch": plan.batch, "exchange": plan.exchange, "workers": plan.workers}
    common |= {"precision": plan.precision, "device": plan.device}
    samples = {m.configuration: m.samples for m in measured}
    return [
        Record(
            kind=KIND,
            what={"configuration": m.configuration, **common},
            command=plan.command,
            time=now,
            commit=commit,
            dirty=dirty,
            environment=environment.fingerprint("none" if plan.exchange == ECHO else "gloo over loopback"),
            unit=f"seconds an iteration, {TURN} in a row",
            quantiles=Quantiles.of(m.samples),
            samples=m.samples,
            outcome={
                **{f"over_{key}": ratio(m.samples, samples[base]).middle for key, base in OVER.items()},
                "graphs": m.graphs,
                "busy_seconds": m.busy,
            },
        )
        for m in measured
    ]
