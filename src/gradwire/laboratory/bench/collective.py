"""How long it takes to reduce one gradient over the hosts of a network, by codec and strategy.

No training: a gradient of random numbers is there, and its mean (or vote) shall be everywhere. All settings of one size
take turns in the same processes. A sample is the slowest rank's time from a common start to the result. Bytes are
counted twice: by us where they are handed to the backend, and by the interface, where headers and acknowledgements
come on top. The mean is written over the gradient, as in a bucket of DDP. Memory is what the process needed at its peak
beyond what it held before.
"""

from __future__ import annotations

import ctypes
import hashlib
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from gradwire.collectives.c10d import Clock
from gradwire.collectives.channel import Lane, lanes_over
from gradwire.collectives.meter import Meter
from gradwire.core.layout import Layout
from gradwire.core.random import Random
from gradwire.core.registry import Check
from gradwire.engine import Engine
from gradwire.kernels.random import normal
from gradwire.laboratory.bench.launch import Rank, launch
from gradwire.laboratory.bench.sweep import Group, Measured, Place, Sweep
from gradwire.laboratory.hosts.network import interface_bytes

KIND = "collective"
PAIRS = (
    ("none", "all_reduce"),
    ("fp16", "all_reduce"),
    ("signsgd", "all_gather"),
    ("signsgd", "scatter_reduce_gather"),
    ("blockint(bits=4)", "all_gather"),
    ("blockint(bits=4)", "scatter_reduce_gather"),
)
SIZES = (1 << 18, 1 << 20, 1 << 23)
REPEATS = 10
WARM = 2  # first passes without a sample
TIMEOUT = 600.0
WIDTH = 1024  # the gradient is a matrix of so many columns


def sweep(
    *,
    pairs: Sequence[tuple[str, str]] = PAIRS,
    sizes: Sequence[int] = SIZES,
    hosts: Sequence[int] = (4,),
    rates: Sequence[str] = ("1gbit",),
    per_host: int = 1,
    repeats: int = REPEATS,
) -> Sweep:
    """All codecs and strategies in `pairs`, at all sizes (elements), on all networks."""
    check = Check("bench collective")
    check.integer("repeats", repeats, 1)
    for size in sizes:
        check.integer("size", size, 1)
    for codec, strategy in pairs:
        Engine(codec, strategy=strategy, workers=min(hosts) * per_host)  # refused now, not in the middle
    groups = tuple(
        Group(f"{size:,} elements", tuple({"codec": c, "strategy": s, **common} for c, s in pairs))
        for size in sizes
        for common in ({"elements": size, "repeats": repeats},)
    )
    listed = "" if tuple(pairs) == PAIRS else "".join(f' --pair "{c} {s}"' for c, s in pairs)
    return Sweep(
        kind=KIND,
        command=(
            f"gradwire bench collective{listed} {' '.join(f'--size {s}' for s in sizes)} "
            f"{' '.join(f'--hosts {h}' for h in hosts)} {' '.join(f'--rate {r}' for r in rates)} "
            f"--gpus-per-host {per_host} --repeats {repeats}"
        ),
        unit="seconds, slowest rank",
        hosts=tuple(hosts),
        rates=tuple(rates),
        per_host=per_host,
        groups=groups,
        measure=_measure,
    )


def _measure(place: Place, settings: Sequence[Mapping[str, Any]]) -> list[Measured]:
    return merged(settings, launch(reduce_all, place.workers, (tuple(settings),), TIMEOUT, hosts=place.namespaces))


def merged(settings: Sequence[Mapping[str, Any]], ranks: Sequence[Sequence[dict[str, Any]]]) -> list[Measured]:
    """What all ranks' shares of all settings say together."""
    return [_merge(setting, shares) for setting, *shares in zip(settings, *ranks, strict=True)]


def _merge(setting: Mapping[str, Any], shares: Sequence[dict[str, Any]]) -> Measured:
    samples = tuple(max(times) for times in zip(*(s["samples"] for s in shares), strict=True))
    return Measured(
        setting,
        samples,
        {
            "parts_seconds": {p: sum(s["parts"][p] for s in shares) / len(shares) for p in shares[0]["parts"]},
            "exchanges": shares[0]["exchanges"],
            "sent_bytes": max(s["sent_bytes"] for s in shares),
            "interface_bytes": max(s["interface_bytes"] for s in shares),
            "peak_bytes": max(s["peak_bytes"] for s in shares),
            "replicas_agree": len({s["digest"] for s in shares}) == 1,
            "digest": shares[0]["digest"],
        },
    )


# -------------------------------------------------------------------- what each rank does


def reduce_all(rank: Rank | None, settings: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Reduce in turns over the default group; returns this rank's share of each setting."""
    world = dist.group.WORLD
    assert world is not None
    lane = lanes_over(world, torch.device("cpu"))[0]
    runs = [_Run(setting, lane) for setting in settings]
    passes = max(s["repeats"] for s in settings) + WARM
    for turn in range(passes):
        for run in runs:
            run.reduce(sample=turn >= WARM)
    return [run.share() for run in runs]


class _Run:
    """One setting on one rank."""

    def __init__(self, setting: Mapping[str, Any], lane: Lane) -> None:
        rank, workers = dist.get_rank(), dist.get_world_size()
        elements: int = setting["elements"]
        rows, width = -(-elements // WIDTH), min(elements, WIDTH)
        self.layout = Layout.of([("matrix", (rows, width))])
        self.x = normal(Random(ranks=(rank,)).private("bench"), (1, self.layout.numel), torch.device("cpu"))
        options = {"strategy": setting["strategy"], "tensors": "all", "ranks": (rank,), "workers": workers}
        self.bucket = torch.empty_like(self.x)  # reduced in place, as a bucket of DDP is
        self.engine = Engine(setting["codec"], **options)
        self.driver = lane.driver(self.engine.teams)
        if self.engine.measured:
            self.driver.run(self.engine.measure(self.x.device))
        self.samples: list[float] = []
        self.interface: list[int] = []
        self.peak = 0
        self.first: Tensor | None = None

    def reduce(self, sample: bool) -> None:
        if sample and not self.samples:
            self.driver.meter, self.driver.clock = Meter(), Clock()
        self.bucket.copy_(self.x)
        before = 0 if sample else reset_peak()  # memory is watched in the passes that are not timed: fresh pages cost
        dist.barrier()
        sent, start = interface_bytes()[0], time.perf_counter()
        with torch.no_grad():
            result = self.driver.run(self.engine.reduce(self.bucket, self.layout, self.bucket, scratch=True))
        seconds = time.perf_counter() - start
        self.engine.finish_step([result])
        if self.first is None:
            self.first = result.out.clone()
        if not sample:
            self.peak = max(self.peak, peak() - before)
        dist.barrier()  # what is still in a queue belongs to this pass; the barrier's own bytes are few
        if sample:
            self.samples.append(seconds)
            self.interface.append(interface_bytes()[0] - sent)

    def share(self) -> dict[str, Any]:
        """What this rank adds to the record; plain values only."""
        assert self.first is not None
        passes, clock = len(self.samples), self.driver.clock
        parts = {"encode": clock.encode, "communicate": clock.communicate, "decode": clock.decode}
        return {
            "samples": self.samples,
            "parts": {name: seconds / passes for name, seconds in parts.items()},
            "exchanges": self.driver.meter.exchanges / passes,
            "sent_bytes": self.driver.meter.sent_bytes / passes,
            "interface_bytes": sum(self.interface) / passes,
            "peak_bytes": self.peak,
            "digest": hashlib.blake2b(self.first.numpy().tobytes(), digest_size=8).hexdigest(),
        }


def reset_peak() -> int:
    """Start to watch this process's memory anew; returns the bytes it holds now, freed ones left out."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:  # glibc
        trim(0)
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
    return _status("VmRSS")


def peak() -> int:
    """The most bytes this process has held since `reset_peak`."""
    return _status("VmHWM")


def _status(name: str) -> int:
    for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) * 1024
    return 0
