"""The training that `faults.py` disturbs: started by torchrun, it continues from the newest checkpoint that is whole.

Each rank moves to its emulated host, if there is one, before it meets the others. It writes one line of JSON for each
thing that happened to the file `log` of its folder, so that whoever disturbs it can see what came of it.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import shutil
import signal
import sys
import time
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

import gradwire
from gradwire import checkpoint
from gradwire.laboratory.hosts.namespace import Namespace
from gradwire.laboratory.hosts.network import INTERFACE

EVERY = 20  # steps between two checkpoints
KEPT = 2  # checkpoints: if the newest is not whole, there is the one before
PORT = 29600  # and one more for each start: the last one's connections may linger
MANIFEST = "manifest.json"


class Job:
    """One rank's training, and the sums that show whether gradient was lost."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options, self.folder = options, Path(options.folder)
        self.rank, self.workers = dist.get_rank(), dist.get_world_size()
        torch.manual_seed(options.seed)
        network = nn.Sequential(nn.Linear(32, 128), nn.Tanh(), nn.Linear(128, 64), nn.Tanh(), nn.Linear(64, 10))
        self.model = DistributedDataParallel(network, bucket_cap_mb=0.02)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.02, momentum=0.9)
        self.handle = gradwire.attach(self.model, options.codec, tensors="all", seed=options.seed)
        self.named = dict(self.model.module.named_parameters())
        # in float64: this rank's gradients before the exchange, and what came out of it
        self.given = {name: torch.zeros(p.shape, dtype=torch.float64) for name, p in self.named.items()}
        self.applied = {name: torch.zeros(p.shape, dtype=torch.float64) for name, p in self.named.items()}
        for name, parameter in self.named.items():
            parameter.register_hook(lambda gradient, name=name: self.count(name, gradient))

    def count(self, name: str, gradient: Tensor) -> None:
        self.given[name] += gradient.double()

    def step(self, number: int) -> None:
        generator = torch.Generator().manual_seed((self.options.seed + number) * 100 + self.rank)
        x = torch.randn(8, 32, generator=generator)
        y = torch.randint(10, (8,), generator=generator)
        self.optimizer.zero_grad()
        F.cross_entropy(self.model(x), y).backward()
        for name, parameter in self.named.items():
            assert parameter.grad is not None
            self.applied[name] += parameter.grad.double()
        self.optimizer.step()

    def lost(self) -> float:
        """The share of all gradients that was neither applied nor is owed: what all ranks got, gave and keep."""
        worst = 0.0
        for name, parameter in self.named.items():
            owed = checkpoint.owed(self.handle.engine, name, tuple(parameter.shape)).double()
            kept = self.given[name] - owed
            dist.all_reduce(kept)
            difference = (kept / self.workers - self.applied[name]).abs().max()
            worst = max(worst, float(difference / self.given[name].abs().max().clamp_min(1e-30)))
        return worst

    # ---------------------------------------------------------------- checkpoints

    def save(self, number: int) -> str:
        """Into a folder that gets its name when all of it is there; the digest of all that was saved."""
        draft = self.folder / f"draft_{number}"
        draft.mkdir(parents=True, exist_ok=True)
        own = {"compression": self.handle.state_dict(), "given": self.given}
        torch.save(own, draft / f"rank_{self.rank}.pt")
        if self.rank == 0:
            common = {"step": number, "model": self.model.module.state_dict(), "applied": self.applied}
            torch.save(common | {"optimizer": self.optimizer.state_dict()}, draft / "model.pt")
        dist.barrier()
        if self.rank == 0:
            contents = self.digests()
            files = {path.name: _sha256(path) for path in sorted(draft.glob("*.pt"))}
            (draft / MANIFEST).write_text(json.dumps({"files": files, "contents": contents}))
            final = self.folder / f"step_{number}"
            shutil.rmtree(final, ignore_errors=True)  # one that was refused
            draft.rename(final)
            older = sorted(self.folder.glob("step_*"), key=_number)[:-KEPT]
            for path in (*older, *self.folder.glob("draft_*")):
                shutil.rmtree(path)
            return contents
        return self.digests()

    def digests(self) -> str:
        """Of parameters, optimizer, memories and sums of all ranks: the same on all."""
        mine = _Digest()
        mine.add([self.model.module.state_dict(), self.optimizer.state_dict(), self.applied, self.given])
        state = self.handle.state_dict()
        del state["plan"]  # the units of the last step, which a resumed run has not had yet
        mine.add(state)
        found: list[Any] = [None] * self.workers
        dist.all_gather_object(found, mine.hexdigest())
        return hashlib.sha256("".join(found).encode()).hexdigest()[:16]

    def load(self) -> int:
        """Continue from the newest checkpoint that is whole; how many steps are done."""
        for path in sorted(self.folder.glob("step_*"), key=_number, reverse=True):
            problem = _cut_short(path)
            if problem is not None:
                self.tell(event="refused", step=_number(path), why=problem)
                continue
            common = torch.load(path / "model.pt", weights_only=True)
            own = torch.load(path / f"rank_{self.rank}.pt", weights_only=True)
            self.model.module.load_state_dict(common["model"])
            self.optimizer.load_state_dict(common["optimizer"])
            self.handle.load_state_dict(own["compression"])
            self.given, self.applied = own["given"], common["applied"]
            wanted, found = json.loads((path / MANIFEST).read_text())["contents"], self.digests()
            self.tell(event="resumed", step=common["step"], same=wanted == found)
            return int(common["step"])
        self.tell(event="began", step=0)
        return 0

    def tell(self, **what: Any) -> None:
        if self.rank == 0:
            tell(self.options, **what)


def tell(options: argparse.Namespace, **what: Any) -> None:
    line = json.dumps({"time": time.time(), "attempt": attempt(), **what}) + "\n"
    descriptor = os.open(Path(options.folder) / "log", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(descriptor, line.encode())  # at once: a rank may be killed at any moment
    os.close(descriptor)


def attempt() -> int:
    return int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))


class _Digest:
    """Of nested state, bit for bit."""

    def __init__(self) -> None:
        self._hash = hashlib.sha256()
        self.hexdigest = self._hash.hexdigest

    def add(self, value: Any) -> None:
        if isinstance(value, Tensor):
            self._hash.update(f"{value.dtype}{tuple(value.shape)}".encode())
            self._hash.update(value.detach().contiguous().view(torch.uint8).numpy().tobytes() if value.numel() else b"")
        elif isinstance(value, Mapping):
            for key in sorted(value, key=str):
                self._hash.update(str(key).encode())
                self.add(value[key])
        elif isinstance(value, list | tuple):
            for item in value:
                self.add(item)
        else:
            self._hash.update(repr(value).encode())


def _sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _number(path: Path) -> int:
    return int(path.name.rpartition("_")[2])


def _cut_short(path: Path) -> str | None:
    """What is wrong with a checkpoint; None if it is whole."""
    try:
        files = json.loads((path / MANIFEST).read_text())["files"]
    except (OSError, ValueError, KeyError) as problem:
        return f"{MANIFEST}: {type(problem).__name__}"
    for name, wanted in files.items():
        if not (path / name).exists() or _sha256(path / name) != wanted:
            return f"{name} is not what was written"
    return None


class Asked(Exception):
    """A failure on demand."""


def _fail(number: int, _: object) -> None:
    raise Asked("this rank was asked to fail")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", required=True)
    parser.add_argument("--codec", default="topk(ratio=0.05)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--steps", type=int, required=True, help="the last, unless a file `enough` appears")
    parser.add_argument("--pause", type=float, default=0.0, help="seconds of sleep after a step")
    parser.add_argument("--timeout", type=float, default=10.0, help="of the process group, in seconds")
    parser.add_argument("--keepers", default="", help="processes that hold the hosts' namespaces")
    options = parser.parse_args()
    torch.set_num_threads(1)
    rank, workers = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    (Path(options.folder) / f"process_{rank}").write_text(str(os.getpid()))
    address = "127.0.0.1"
    if options.keepers:
        keepers = [int(keeper) for keeper in options.keepers.split(",")]
        Namespace(keepers[rank]).join()
        os.environ["GLOO_SOCKET_IFNAME"], address = INTERFACE, "10.99.0.1"
    limit = timedelta(seconds=options.timeout)
    signal.signal(signal.SIGUSR1, _fail)
    try:
        store = dist.TCPStore(address, PORT + attempt() % 1000, workers, rank == 0, timeout=limit)
        dist.init_process_group("gloo", store=store, rank=rank, world_size=workers, timeout=limit)
        with gradwire.shared_fate():
            train(Job(options), options)
    except Asked as problem:
        tell(options, event="failed", rank=rank, kind=type(problem).__name__, said=str(problem))
        time.sleep(10 * options.timeout)  # the process lives on: only what was told can end the others in time
        os._exit(1)
    except Exception as problem:
        lines = str(problem).splitlines() or [""]
        tell(options, event="failed", rank=rank, kind=type(problem).__name__, said=lines[0][:300])
        print(f"rank {rank}: {type(problem).__name__}: {lines[0]}", file=sys.stderr, flush=True)
        os._exit(1)
    dist.destroy_process_group()


def train(job: Job, options: argparse.Namespace) -> None:
    number = job.load()
    while number < options.steps:
        job.step(number)
        number += 1
        if number % EVERY == 0:
            lost = job.lost()
            job.tell(event="saved", step=number, digest=job.save(number), lost=lost)
            enough = torch.tensor([float((job.folder / "enough").exists())])
            dist.broadcast(enough, 0)  # what rank 0 sees, for all
            if enough:
                break
        time.sleep(options.pause)
    job.tell(event="ended", step=number)


if __name__ == "__main__":
    main()
