"""Rank processes for tests: a pool of gloo workers that lives as long as the pytest session.

Importing torch costs seconds, so the workers are forked from a server that has done it (tests/conftest.py), and are
used again and again. Every run gets a process group of its own: the pool keeps one store on a free port, and each run
a prefix in it. Two pytest processes thus never meet. A rank that fails ends, and if one fails, dies or hangs, the next
run starts anew.

    pool.run(3, job, "topk")         # -> [job(0, "topk"), job(1, "topk"), job(2, "topk")], each in its own process
    pool.outcomes(3, job, "topk")    # the same, with a Failure in the place of each rank that did not return
"""

from __future__ import annotations

import functools
import importlib
import multiprocessing
import os
import pickle
import time
import traceback
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from multiprocessing.connection import Connection, wait
from typing import Any

import torch
import torch.distributed as dist

HOST = "127.0.0.1"


@dataclass(frozen=True)
class Failure:
    """How a rank ended without a result."""

    kind: str  # the exception's type, or Died, or Hung
    message: str
    trace: str = ""
    seconds: float = 0.0  # since the run began


@dataclass(frozen=True)
class Job:
    """What one rank is asked to do."""

    path: str  # module:function
    args: tuple[Any, ...]
    rank: int
    world: int
    port: int
    prefix: str
    timeout: float


class Pool:
    """Up to `size` ranks."""

    def __init__(self, size: int = 4) -> None:
        self._size = size
        self._context = multiprocessing.get_context("forkserver")
        self._store = dist.TCPStore(HOST, 0, is_master=True, wait_for_workers=False)
        self._workers: list[tuple[Any, Connection]] = []
        self._runs = 0

    def run(self, world: int, function: Callable[..., Any], *args: Any, **limits: float) -> list[Any]:
        """What `function(rank, *args)` returns on each rank; fails the test if any rank fails."""
        outcomes = self.outcomes(world, function, *args, **limits)
        failures = [(rank, o) for rank, o in enumerate(outcomes) if isinstance(o, Failure)]
        if failures:  # the others' failures are most often a consequence of the first
            rank, first = min(failures, key=lambda f: f[1].seconds)
            raise AssertionError(f"rank {rank} of {world}: {first.kind}: {first.message}\n{first.trace}")
        return outcomes

    def outcomes(
        self, world: int, function: Callable[..., Any], *args: Any, timeout: float = 60.0, deadline: float = 200.0
    ) -> list[Any]:
        """What each rank returned, or the Failure it ended with; `timeout` is that of the process group."""
        self._start()
        self._runs += 1
        path = f"{function.__module__}:{function.__qualname__}"
        for rank, (_, pipe) in enumerate(self._workers[:world]):
            job = Job(path, args, rank, world, self._store.port, f"run{self._runs}", timeout)
            pipe.send_bytes(pickle.dumps(job))
        outcomes = self._collect(world, deadline)
        if any(isinstance(o, Failure) for o in outcomes):
            self.stop()
        return outcomes

    def stop(self) -> None:
        """End all processes; the next run starts new ones."""
        for process, pipe in self._workers:
            process.kill()
            process.join()
            pipe.close()
        self._workers = []

    def _start(self) -> None:
        while len(self._workers) < self._size:
            mine, theirs = self._context.Pipe()
            process = self._context.Process(target=_serve, args=(theirs,), daemon=True)
            process.start()
            theirs.close()
            self._workers.append((process, mine))

    def _collect(self, world: int, deadline: float) -> list[Any]:
        start = time.monotonic()
        pipes = {pipe: rank for rank, (_, pipe) in enumerate(self._workers[:world])}
        outcomes: list[Any] = [Failure("Hung", f"no result after {deadline} s", seconds=deadline)] * world
        while pipes and (ready := wait(list(pipes), max(0.0, start + deadline - time.monotonic()))):
            for pipe in ready:
                rank = pipes.pop(pipe)
                outcomes[rank] = self._receive(rank, pipe, time.monotonic() - start)
        return outcomes

    def _receive(self, rank: int, pipe: Any, seconds: float) -> Any:
        try:
            result, problem = pickle.loads(pipe.recv_bytes())
        except (EOFError, ConnectionResetError):
            process = self._workers[rank][0]
            process.join()
            return Failure("Died", f"exit code {process.exitcode}", seconds=seconds)
        return result if problem is None else Failure(*problem, seconds=seconds)


def _serve(pipe: Connection) -> None:
    """A worker's life: jobs come in, results go out. A job that fails is the last, as it would be in a real run."""
    torch.set_num_threads(1)
    os.environ["TORCH_DIST_INIT_BARRIER"] = "1"  # nobody is done, and gone, while others still connect to each other
    while True:
        try:
            job = pickle.loads(pipe.recv_bytes())
        except EOFError:
            return
        try:
            answer = pickle.dumps((_carry_out(job), None))
        except BaseException as problem:
            pipe.send_bytes(pickle.dumps((None, (type(problem).__name__, str(problem), traceback.format_exc()))))
            return
        pipe.send_bytes(answer)


@functools.cache
def _store(port: int) -> dist.TCPStore:
    return dist.TCPStore(HOST, port, is_master=False)


def _carry_out(job: Job) -> Any:
    module, _, name = job.path.partition(":")
    function = getattr(importlib.import_module(module), name)
    dist.init_process_group(
        "gloo",
        store=dist.PrefixStore(job.prefix, _store(job.port)),
        rank=job.rank,
        world_size=job.world,
        timeout=timedelta(seconds=job.timeout),
    )
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            return function(job.rank, *job.args)
    finally:
        dist.destroy_process_group()
        _forget_meshes()


def _forget_meshes() -> None:
    """Torch takes a mesh of the next run for the same one of this run, whose process groups are gone."""
    from torch.distributed.tensor import _redistribute, debug

    debug._clear_sharding_prop_cache()
    _redistribute.clear_redistribute_planner_cache()
    _redistribute._gen_transform_infos.cache_clear()
