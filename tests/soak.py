"""A long training with each of ten codecs: `make soak`. Replicas stay equal, memory stays flat, steps stay as fast.

    python tests/soak.py --record results/soak_<machine>_<date>.jsonl               # two ranks over gloo, two lanes
    python tests/soak.py --device cuda --record results/soak_<gpu>_<date>.jsonl     # one GPU, CUDA graphs

1. On a CPU two processes train together. At every check, a hundred times in all, both must have the same parameters,
   bit for bit.
2. On a GPU one process trains, and its exchange is an echo (`gradwire.laboratory.bench.echo`). Whatever can be captured
   is replayed as CUDA graphs. A twin without graphs trains beside it in the first tenth of the steps, and must have the
   same parameters at every check.
3. Memory (resident, and what torch has allocated on the GPU) is read at every check, and may not grow after the first
   fifth.
4. The time of a step is that between two checks over their steps. Its drift is the median of the last tenth over the
   median of the first. Other programs may share a CPU, so the clock is the processes' own processor time there; the
   wall's is in the record, too.
"""

from __future__ import annotations

import argparse
import gc
import os
import shlex
import statistics
import sys
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

import gradwire
from gradwire.core import records
from gradwire.core.environment import commit, fingerprint, now
from gradwire.core.records import Quantiles, Record, quantile
from gradwire.laboratory.bench.echo import echo
from gradwire.laboratory.bench.launch import Rank, launch

KIND = "soak"
CODECS = (
    "bf16(sum='float32')", "blockint(bits=8)", "dgc(ratio=0.01)", "efsignsgd", "natural", "powersgd(rank=2)", "qsgd",
    "terngrad", "thc", "topk(ratio=0.01)",
)  # fmt: skip
CHECKS = 100
WARM = 20  # steps before the first: kernels are compiled and captured, DDP orders its buckets
GROWN = 8 << 20  # bytes that a process may grow by: allocators keep what they once had
DRIFT = 1.15  # of the processor time or, on a GPU, of the time of a step
BATCH = 16
LIMIT = 7200.0  # seconds for one codec


class Trainer:
    """One replica."""

    def __init__(self, codec: str, device: torch.device, graphs: bool = True) -> None:
        torch.manual_seed(0)
        network = nn.Sequential(nn.Linear(64, 256), nn.Tanh(), nn.Linear(256, 128), nn.Tanh(), nn.Linear(128, 10))
        # buckets of some layers each, so that units take both lanes
        self.model = DistributedDataParallel(network.to(device), bucket_cap_mb=0.1, gradient_as_bucket_view=True)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.01, momentum=0.9)
        self.handle = gradwire.attach(self.model, codec, graphs=graphs)

    def step(self, x: Tensor, y: Tensor) -> None:
        self.optimizer.zero_grad()
        F.cross_entropy(self.model(x), y).backward()
        self.optimizer.step()

    def weights(self) -> Tensor:
        return torch.cat([p.detach().flatten() for p in self.model.parameters()])


def batches(rank: int, device: torch.device) -> Callable[[int], tuple[Tensor, Tensor]]:
    """Some batches, used again and again: what data cost is not of interest here."""
    generator = torch.Generator().manual_seed(rank)
    drawn = [
        (torch.randn(BATCH, 64, generator=generator).to(device), torch.randint(10, (BATCH,), generator=generator))
        for _ in range(64)
    ]
    ready = [(x, y.to(device)) for x, y in drawn]
    return lambda step: ready[step % len(ready)]


def soak(rank: Rank | None, codec: str, steps: int, name: str) -> dict[str, Any]:
    """Train; what was seen at each check."""
    device = torch.device(name)
    here = 0 if rank is None else rank.rank
    one, given = Trainer(codec, device), batches(here, device)
    twin = Trainer(codec, device, graphs=False) if device.type == "cuda" else None
    for step in range(WARM):
        for trainer in filter(None, (one, twin)):
            trainer.step(*given(step))
    seen: dict[str, list[Any]] = {"equal": [], "seconds": [], "processor_seconds": [], "bytes": [], "device_bytes": []}
    for check in range(CHECKS):
        block = range(WARM + check * steps // CHECKS, WARM + (check + 1) * steps // CHECKS)
        if twin is not None and check == CHECKS // 10:
            twin = None
            gc.collect()
        start, busy = _settled(device), time.process_time()
        for step in block:
            one.step(*given(step))
        seen["seconds"].append((_settled(device) - start) / len(block))
        seen["processor_seconds"].append((time.process_time() - busy) / len(block))
        for step in block if twin is not None else ():
            twin.step(*given(step))
        seen["equal"].append(_equal(one, twin))
        seen["bytes"].append(_resident())
        seen["device_bytes"].append(torch.cuda.memory_allocated() if device.type == "cuda" else 0)
    finite = bool(one.weights().isfinite().all())
    return {**seen, "finite": finite, "graphs": one.handle.stats()["graphs"], "steps": one.handle.stats()["steps"]}


def _settled(device: torch.device) -> float:
    if device.type == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()


def _equal(one: Trainer, twin: Trainer | None) -> bool | None:
    """Whether the replicas are the same, bit for bit; None where there is one only."""
    weights = one.weights()
    if twin is not None:
        return torch.equal(weights, twin.weights())
    if weights.is_cuda:
        return None
    found = [torch.empty_like(weights) for _ in range(dist.get_world_size())]
    dist.all_gather(found, weights)
    return all(torch.equal(other, weights) for other in found)


def _resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def on_device(codec: str, steps: int, device: str, workers: int) -> list[dict[str, Any]]:
    """What each process saw."""
    if device == "cuda":
        with echo(workers):
            return [soak(None, codec, steps, device)]
    return launch(soak, workers, (codec, steps, device), LIMIT)


def drift(samples: Sequence[float]) -> float:
    """The median of the last tenth over that of the first."""
    tenth = max(1, len(samples) // 10)
    return statistics.median(samples[-tenth:]) / statistics.median(samples[:tenth])


def outcome(ranks: Sequence[Mapping[str, Any]], device: str) -> dict[str, Any]:
    """What held, over all processes."""
    clock = "seconds" if device == "cuda" else "processor_seconds"
    settled = CHECKS // 5
    compared = [equal for rank in ranks for equal in rank["equal"] if equal is not None]
    samples = ranks[0][clock]
    middle = statistics.median(samples)
    return {
        "steps": ranks[0]["steps"],
        "checks": len(compared),
        "equal": sum(compared),
        "finite": all(rank["finite"] for rank in ranks),
        "drift": max(drift(rank[clock]) for rank in ranks),
        "wall_drift": max(drift(rank["seconds"]) for rank in ranks),
        "noise": (quantile(samples, 0.8) - quantile(samples, 0.2)) / middle,
        "resident_bytes": max(rank["bytes"][-1] for rank in ranks),
        "grown_bytes": max(rank["bytes"][-1] - rank["bytes"][settled] for rank in ranks),
        "device_grown_bytes": max(rank["device_bytes"][-1] - rank["device_bytes"][settled] for rank in ranks),
        "graphs": ranks[0]["graphs"],
    }


def verdict(codec: str, found: Mapping[str, Any]) -> list[str]:
    """What did not hold."""
    checks = {
        "replicas differ": found["equal"] == found["checks"] > 0,
        "parameters are not finite": found["finite"],
        f"a process grew by {found['grown_bytes']:,} bytes": found["grown_bytes"] <= GROWN,
        f"the GPU's memory grew by {found['device_grown_bytes']:,} bytes": found["device_grown_bytes"] <= 0,
        f"steps became {found['drift']:.2f} times as slow": found["drift"] <= max(DRIFT, 1 + found["noise"]),
    }
    return [f"{codec}: {problem}" for problem, held in checks.items() if not held]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=10_000)
    parser.add_argument("--codecs", nargs="+", default=list(CODECS))
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--record", type=Path)
    options = parser.parse_args()
    began, (at, dirty) = now(), commit()
    backend = "an echo on the GPU" if options.device == "cuda" else "gloo over loopback"
    problems = []
    for codec in options.codecs:
        ranks = on_device(codec, options.steps, options.device, options.workers)
        found = outcome(ranks, options.device)
        problems += verdict(codec, found)
        samples = ranks[0]["seconds"]
        told = f"{found['equal']} of {found['checks']} checks equal, drift {found['drift']:.3f}, noise"
        print(f"{codec}: {statistics.median(samples) * 1e3:.2f} ms a step, {told} {found['noise']:.3f}", flush=True)
        what = {"codec": codec, "device": options.device, "workers": options.workers, "steps": options.steps}
        record = Record(
            kind=KIND,
            what=what,
            command=f"python {shlex.join(sys.argv)}",
            time=began,
            commit=at,
            dirty=dirty,
            environment=fingerprint(backend),
            unit="s a step",
            quantiles=Quantiles.of(samples),
            samples=tuple(samples),
            outcome=found,
        )
        if options.record is not None:
            records.append(options.record, [record])
    print(*problems or ["all held"], sep="\n")
    sys.exit(bool(problems))


if __name__ == "__main__":
    warnings.filterwarnings("ignore", message=".*one rank.*")
    main()
