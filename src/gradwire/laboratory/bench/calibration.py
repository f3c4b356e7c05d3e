"""What `gradwire calibrate` measures, before `perf` makes a profile of it.

- On emulated hosts: training steps of the models with the codecs, and single gradients, at one place.
- On the ranks of a process group that exists (torchrun), or over loopback: the same steps, and the link between the
  ranks, measured by exchanges.
- On one device alone: steps without exchange, and encode passes.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

from gradwire.collectives.c10d import ProcessGroupDriver
from gradwire.collectives.link import Link, measuring
from gradwire.core import environment
from gradwire.core.records import Quantiles, Record
from gradwire.laboratory.bench import collective, step
from gradwire.laboratory.bench.launch import Rank, launch
from gradwire.laboratory.bench.sweep import LOOPBACK, Sweep

MODES = ("overlap", "after_backward")
PAIRS = (
    ("none", "all_reduce"),
    ("signsgd", "all_gather"),
    ("blockint(bits=8)", "all_gather"),
    ("blockint(bits=8)", "scatter_reduce_gather"),
    ("powersgd(rank=4)", "auto"),
)
SIZES = (1 << 12, 1 << 18, 1 << 20)
REPEATS = 8
TIMEOUT = 1800.0


@dataclass(frozen=True)
class Plan:
    """What is measured: models with codecs, and beside them single gradients."""

    models: tuple[str, ...]
    batches: tuple[int, ...]
    codecs: tuple[str, ...]
    seconds: float

    def sweeps(self, hosts: int, rate: str) -> tuple[Sweep, Sweep]:
        """Steps, and single gradients."""
        where: dict[str, Any] = {"hosts": (hosts,), "rates": (rate,)}
        steps = step.sweep(
            codecs=self.codecs,
            modes=MODES,
            model_names=self.models,
            batches=self.batches,
            seconds=self.seconds,
            **where,
        )
        return steps, collective.sweep(pairs=PAIRS, sizes=SIZES, repeats=REPEATS, **where)


def on_hosts(plan: Plan, hosts: int, rate: str) -> list[Record]:
    """On emulated hosts."""
    return [record for sweep in plan.sweeps(hosts, rate) for record in sweep.run()]


def on_loopback(plan: Plan, workers: int) -> list[Record]:
    """By so many processes of this machine, with no network between them."""
    shares = launch(_measure, workers, (plan,), TIMEOUT)
    return _records(plan, shares, f"gloo over {LOOPBACK}")


def on_group(plan: Plan) -> list[Record] | None:
    """On the ranks of the default process group; records on rank 0, None on the others."""
    share = _measure(None, plan)
    gathered: list[Any] | None = [None] * dist.get_world_size() if dist.get_rank() == 0 else None
    dist.gather_object(share, gathered)
    dist.barrier()  # nobody leaves while another still talks to it
    return None if gathered is None else _records(plan, gathered, f"{dist.get_backend()} between ranks")


@contextmanager
def process_group(backend: str) -> Iterator[None]:
    """The group that torchrun has prepared, for a while."""
    dist.init_process_group(backend)
    try:
        yield
    finally:
        dist.destroy_process_group()


def link_of_group(device: str) -> Link:
    """Latency and bandwidth between the ranks of the default process group."""
    world = dist.group.WORLD
    assert world is not None
    place = torch.device(device, int(os.environ.get("LOCAL_RANK", "0"))) if device == "cuda" else torch.device(device)
    return ProcessGroupDriver(world).run(measuring(dist.get_world_size(), place))


Share = tuple[Link, list[list[dict[str, Any]]]]  # of one rank: the link, and each group's settings


def _groups(plan: Plan) -> list[tuple[Sweep, tuple[Mapping[str, Any], ...]]]:
    sweeps = plan.sweeps(2, LOOPBACK)
    return [(sweep, (*group.baselines, *group.settings)) for sweep in sweeps for group in sweep.groups]


def _measure(rank: Rank | None, plan: Plan) -> Share:
    link = link_of_group("cpu")
    run = {step.KIND: step.train_all, collective.KIND: collective.reduce_all}
    return link, [run[sweep.kind](rank, settings) for sweep, settings in _groups(plan)]


def _records(plan: Plan, shares: Sequence[Share], backend: str) -> list[Record]:
    link, workers = shares[0][0], len(shares)
    commit, dirty = environment.commit()
    records = []
    for at, (sweep, settings) in enumerate(_groups(plan)):
        ranks, now = [groups[at] for _, groups in shares], environment.now()
        steps = sweep.kind == step.KIND
        for found in step.merged(settings, ranks, workers) if steps else collective.merged(settings, ranks):
            what = {"hosts": workers, "ranks_per_host": 1, "bits_per_second": link.bits_per_second}
            records.append(
                Record(
                    kind=sweep.kind,
                    what=what | dict(found.setting),
                    command="gradwire calibrate",
                    time=now,
                    commit=commit,
                    dirty=dirty,
                    environment=environment.fingerprint(backend),
                    unit=sweep.unit,
                    quantiles=Quantiles.of(found.samples),
                    samples=found.samples,
                    outcome={**found.outcome, "link_latency_seconds": link.latency_seconds},
                )
            )
    return records
