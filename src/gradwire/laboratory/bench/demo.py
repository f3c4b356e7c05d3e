"""The demo: one training under plain DDP, DDP with torch's FP16 hook, and several codecs, on hosts with slow links.

The hosts are network namespaces of this machine (see `laboratory.hosts`); where there can be none, workers talk over
loopback. The whole training runs on the last, fastest link; on the others a few steps are timed, for the
learning does not depend on the link.

Every configuration starts from the same weights and sees the same batches. All live in the same processes and take
turns in blocks of steps, so that whatever else the machine does meets all of them alike. A sample is the time of one
step on its slowest rank: forward, backward with the exchange, optimizer. Rendering of data, evaluation and the first
steps stay outside. What the numbers mean is said in `outcome.py`.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook
from torch.nn.parallel import DistributedDataParallel

from gradwire.core import environment
from gradwire.core.baselines import CODEC_OF, HALF, PLAIN
from gradwire.core.codec import codecs
from gradwire.core.errors import ConfigError
from gradwire.core.records import Record
from gradwire.core.units import format_rate, parse_rate
from gradwire.integrations.ddp import Handle, attach
from gradwire.laboratory.bench.launch import Rank, launch
from gradwire.laboratory.bench.outcome import LOOPBACK, Outcome
from gradwire.laboratory.bench.tasks import shapes
from gradwire.laboratory.hosts.network import Network
from gradwire.tracing import trace

KIND = "demo"
RATES = ("200mbit", "1gbit")
SHORT = 30  # steps on all links but the last
CODECS = ("blockint(bits=8)", "efsignsgd", "topk(ratio=0.01)")

PARTS = ("encode", "communicate", "decode")  # what a handle tells the seconds of

TRAIN, TEST = 8192, 2048  # images, over all workers
BATCH = 64  # images a step, over all workers
BLOCK = 10  # steps until the next configuration has its turn
DROPPED = 5  # first steps without a sample: DDP arranges its buckets, memory is touched for the first time
RATE = 0.4  # learning rate at its peak, of plain SGD
VOTE_RATE = 1e-3  # for codecs whose result keeps signs only: each step moves every weight by as much


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What to run."""

    workers: int = 4
    steps: int = 120
    seed: int = 0
    codecs: tuple[str, ...] = CODECS
    rates: tuple[str, ...] = RATES  # of all links, one network after the other; none: loopback

    def __post_init__(self) -> None:
        for rate in self.rates:
            parse_rate(rate)
        if not 2 <= self.workers <= BATCH:
            raise ConfigError(f"demo: `workers` must be from 2, else nothing is sent, to {BATCH}, got {self.workers}")
        if self.steps < 2 * DROPPED:
            raise ConfigError(
                f"demo: `steps` must be at least {2 * DROPPED}, because the first {DROPPED} are not timed, "
                f"got {self.steps}"
            )
        for spec in self.codecs:
            codecs.build(spec)  # a misspelt one is refused here, before any process starts
        if not self.codecs or len(set(self.codecs)) != len(self.codecs):
            named = ", ".join(self.codecs) or "none"
            raise ConfigError(f"demo: name at least one codec, each once; got {named}")

    @property
    def labels(self) -> tuple[str, ...]:
        """All configurations, in order."""
        return (PLAIN, HALF, *self.codecs)

    @property
    def command(self) -> str:
        """The command line that runs this plan."""
        chosen = "" if self.codecs == CODECS else "".join(f' --codec "{c}"' for c in self.codecs)
        links = "".join(f" --rate {r}" for r in self.rates) or " --loopback"
        return f"gradwire demo --workers {self.workers} --steps {self.steps} --seed {self.seed}{links}{chosen}"

    @property
    def stages(self) -> list[tuple[str, int]]:
        """The links, as people call them, and how many steps are made on each."""
        links = [format_rate(parse_rate(r)) for r in self.rates] or [LOOPBACK]
        return [*((link, min(SHORT, self.steps)) for link in links[:-1]), (links[-1], self.steps)]


def run(plan: Plan, *, timeout: float, on_step: Callable[[str, str, int], None] | None = None) -> list[Outcome]:
    """Run all configurations on all links; `on_step(link, label, steps done)` is called as they advance."""
    deadline = time.monotonic() + timeout
    stages: dict[str, tuple[list[list[dict[str, Any]]], dict[str, Any]]] = {}
    with Network(plan.workers, plan.rates[0]) if plan.rates else nullcontext() as network:
        for position, (link, steps) in enumerate(plan.stages):
            measured: dict[str, Any] = {}
            if network is not None:
                for host in range(plan.workers):
                    network.set_rate(host, plan.rates[position])
                measured = network.verify(seconds=0.15, strict=False).describe()  # a busy machine shall have its demo
            heard = _hearing(link, on_step)
            last = position == len(plan.stages) - 1
            hosts = network.hosts if network is not None else None
            left = deadline - time.monotonic()
            ranks = launch(_train_all, plan.workers, (plan, steps, last), left, hosts=hosts, on_message=heard)
            stages[link] = ranks, measured
    return [_merge(index, plan, stages) for index in range(len(plan.labels))]


def _hearing(link: str, on_step: Callable[[str, str, int], None] | None) -> Callable[[int, Any], None] | None:
    return (lambda rank, message: on_step(link, *message)) if on_step else None


def _merge(index: int, plan: Plan, stages: Mapping[str, tuple[list[list[dict[str, Any]]], dict[str, Any]]]) -> Outcome:
    """One outcome from what each rank saw of it on each link."""
    samples = {
        link: tuple(max(times) for times in zip(*(rank[index]["samples"] for rank in ranks), strict=True))
        for link, (ranks, _) in stages.items()
    }
    shares = [rank[index] for rank in list(stages.values())[-1][0]]
    parts = [s["parts"] for s in shares]
    return Outcome(
        label=plan.labels[index],
        samples=samples,
        sent_bytes=max(s["sent_bytes"] for s in shares) if parts[0] else _traced_bytes(plan, plan.labels[index]),
        loss=sum(s["loss_sum"] for s in shares) / sum(s["seen"] for s in shares),
        accuracy=sum(s["right"] for s in shares) / sum(s["seen"] for s in shares),
        parts={name: sum(p[name] for p in parts) / len(parts) for name in parts[0]} if parts[0] else None,
        network={link: measured for link, (_, measured) in stages.items()},
    )


def _traced_bytes(plan: Plan, label: str) -> float:
    """DDP counts nothing by itself; the codecs "none" and "fp16" send what it sends."""
    tensors = [(name, tuple(p.shape)) for name, p in shapes.model(plan.seed).named_parameters()]
    return float(trace(CODEC_OF[label], tensors, workers=plan.workers).sent_bytes)


# -------------------------------------------------------------------- what each rank does


def _train_all(rank: Rank, plan: Plan, steps: int, whole: bool) -> list[dict[str, Any]]:
    """Train all configurations in turns for `steps` steps; returns this rank's share of each outcome."""
    images, labels = shapes.data(TRAIN // rank.workers, _seed(plan, "train", rank.rank))
    order = torch.Generator().manual_seed(_seed(plan, "order", rank.rank))
    batches = torch.randint(len(images), (plan.steps, BATCH // rank.workers), generator=order)
    runs = [_Run(label, plan) for label in plan.labels]
    for start in range(0, steps, BLOCK):
        for run in runs:
            for step in range(start, min(start + BLOCK, steps)):
                run.step(step, images[batches[step]], labels[batches[step]])
            if rank.rank == 0:
                rank.report((run.label, step + 1))
    held_out = shapes.data(TEST // rank.workers, _seed(plan, "test", rank.rank))
    return [run.share(*held_out) if whole else {"samples": run.samples} for run in runs]


def _seed(plan: Plan, purpose: str, rank: int) -> int:
    """A seed of its own for each purpose and rank."""
    return (plan.seed * 3 + ("train", "order", "test").index(purpose)) * BATCH + rank


class _Run:
    """One configuration on one rank."""

    def __init__(self, label: str, plan: Plan) -> None:
        self.label, self.plan = label, plan
        self.model = DistributedDataParallel(shapes.model(plan.seed))
        self.handle: Handle | None = None
        if label == HALF:
            self.model.register_comm_hook(None, fp16_compress_hook)  # torch's own: what compression has to beat
        elif label != PLAIN:
            self.handle = attach(self.model, label, seed=plan.seed)
        self.rate = _rate(label)
        self.optimizer = torch.optim.SGD(self.model.parameters(), self.rate)
        self.samples: list[float] = []
        self.before: dict[str, Any] = {}

    def step(self, step: int, images: Tensor, labels: Tensor) -> None:
        if step == DROPPED and self.handle is not None:
            self.before = self.handle.stats()
        for group in self.optimizer.param_groups:
            group["lr"] = self.rate * schedule(step, self.plan.steps)
        start = time.perf_counter()
        self.optimizer.zero_grad()
        F.cross_entropy(self.model(images), labels).backward()  # type: ignore[no-untyped-call]
        self.optimizer.step()
        if step >= DROPPED:
            self.samples.append(time.perf_counter() - start)

    def share(self, images: Tensor, labels: Tensor) -> dict[str, Any]:
        """What this rank adds to the outcome; plain values only."""
        scores = _scores(self.model.module, images)
        return {
            "samples": self.samples,
            "loss_sum": float(F.cross_entropy(scores, labels, reduction="sum")),
            "right": int((scores.argmax(1) == labels).sum()),
            "seen": len(labels),
            **self._counted(),
        }

    def _counted(self) -> dict[str, Any]:
        if self.handle is None:
            return {"sent_bytes": None, "parts": None}
        after, timed = self.handle.stats(), len(self.samples)
        parts = {p: (after[f"{p}_seconds"] - self.before[f"{p}_seconds"]) / timed for p in PARTS}
        return {"sent_bytes": (after["sent_bytes"] - self.before["sent_bytes"]) / timed, "parts": parts}


def _rate(label: str) -> float:
    """The peak learning rate of a configuration."""
    return RATE if label in CODEC_OF or codecs.build(label).traits.is_mean else VOTE_RATE


def schedule(step: int, steps: int) -> float:
    """Share of the peak learning rate: up over the first tenth, then down along a cosine."""
    warmup = max(1, steps // 10)
    return min(1.0, (step + 1) / warmup) * 0.5 * (1 + math.cos(math.pi * step / steps))


@torch.no_grad()
def _scores(model: nn.Module, images: Tensor) -> Tensor:
    return torch.cat([model(part) for part in torch.split(images, 256)])


# -------------------------------------------------------------------- records


def to_records(plan: Plan, outcomes: Sequence[Outcome]) -> list[Record]:
    """One record a configuration and link; they share their time, which marks them as one run."""
    now = environment.now()
    commit, dirty = environment.commit()
    bits: list[float | None] = [parse_rate(r) for r in plan.rates] or [None]
    backend = "gloo over shaped links" if plan.rates else "gloo over loopback"
    return [
        Record(
            kind=KIND,
            what={
                "configuration": o.label,
                "task": "shapes",
                "workers": plan.workers,
                "bits_per_second": rate,
                "steps": steps,
                "dropped_steps": DROPPED,
                "batch": BATCH,
                "learning_rate": _rate(o.label),
                "seed": plan.seed,
            },
            command=plan.command,
            time=now,
            commit=commit,
            dirty=dirty,
            environment=environment.fingerprint(backend),
            unit="seconds a step, slowest rank",
            quantiles=o.step(link),
            samples=o.samples[link],
            outcome={
                "sent_bytes": o.sent_bytes,
                "loss": o.loss,
                "accuracy": o.accuracy,
                "parts_seconds": o.parts,
                "network": o.network[link],
            },
        )
        for rate, (link, steps) in zip(bits, plan.stages, strict=True)
        for o in outcomes
    ]


def from_records(records: Sequence[Record]) -> list[Outcome]:
    """The outcomes of the last run among the records of one file."""
    mine = [r for r in records if r.kind == KIND]
    if not mine:
        raise ConfigError("demo: no record of a demo among these; make one with: gradwire demo --record FILE")
    mine = [r for r in mine if r.time == mine[-1].time]
    by_label: dict[str, list[Record]] = {}
    for record in mine:
        by_label.setdefault(record.what["configuration"], []).append(record)
    return [
        Outcome(
            label=label,
            samples={_link(r): r.samples for r in found},
            sent_bytes=found[-1].outcome["sent_bytes"],
            loss=found[-1].outcome["loss"],
            accuracy=found[-1].outcome["accuracy"],
            parts=found[-1].outcome["parts_seconds"],
            network={_link(r): r.outcome.get("network", {}) for r in found},
        )
        for label, found in by_label.items()
    ]


def _link(record: Record) -> str:
    bits = record.what.get("bits_per_second")
    return LOOPBACK if bits is None else format_rate(bits)
