"""Start one process per rank on this machine, collect what each returns, and never leave one behind.

    results = launch(train, workers=2, arguments=(0.1,), timeout=120)    # [train(rank 0, 0.1), train(rank 1, 0.1)]

1. Every rank is a process of its own with one torch thread, forked from a server that has imported torch and nothing
   else, so that a start takes no seconds. The ranks join a gloo group over the loopback interface, or over an emulated
   network, and find each other through a file in a private folder, so no port has to be free.
2. Messages, the result, or the text of an exception come back through one pipe a rank.
3. At the first failure, at Ctrl-C and when the time is up, all ranks are ended. A rank whose parent died ends itself.
"""

from __future__ import annotations

import datetime
import multiprocessing
import os
import pickle
import signal
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from multiprocessing import connection, resource_tracker
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import FileStore

from gradwire.core.errors import ConfigError, LaunchFailed
from gradwire.laboratory.hosts.namespace import Namespace
from gradwire.laboratory.hosts.network import INTERFACE

GROUP_TIMEOUT = 60.0  # seconds a collective may wait for a peer
GRACE = 1.0  # seconds in which a death may explain the failures of the other ranks
STOP = 5.0  # seconds a rank has to end by itself after it was asked to
GLANCE = 0.5  # seconds of one wait: Python notices a Ctrl-C that came just before a wait when that wait is over


@dataclass(frozen=True)
class Rank:
    """What a launched function is told about its place, and its line to the parent."""

    rank: int
    workers: int
    _pipe: connection.Connection = field(repr=False)

    def report(self, message: object) -> None:
        """Hand a message to the parent while the work goes on."""
        self._send("message", message)

    def _send(self, kind: str, value: object) -> None:
        # Pickled here: the pipe's own pickler passes tensors as shared memory, which ends with this process.
        self._pipe.send_bytes(pickle.dumps((kind, value)))


def launch(
    function: Callable[..., Any],
    workers: int,
    arguments: Sequence[Any] = (),
    timeout: float = 600.0,
    *,
    hosts: Sequence[Namespace] | None = None,
    group_timeout: float = GROUP_TIMEOUT,
    on_message: Callable[[int, Any], None] | None = None,
) -> list[Any]:
    """Run ``function(rank, *arguments)`` in `workers` processes; returns their results in order of rank.

    Args:
        function: importable by name; gets a `Rank` first. The default process group is ready when it is called.
        workers: number of ranks.
        arguments: passed on; they must pickle, as must the results.
        timeout: seconds for everything, start-up included.
        hosts: of an emulated network, on which the ranks are placed in order, as many on each; else they share this
            machine's loopback.
        group_timeout: seconds a collective may wait for a peer.
        on_message: called in this process with (rank, message) for each ``Rank.report(message)``.
    """
    if isinstance(workers, bool) or not isinstance(workers, int) or workers < 1:
        raise ConfigError(f"launch: `workers` must be a whole number of at least 1, got {workers!r}")
    if hosts is not None and (not hosts or workers % len(hosts)):
        raise ConfigError(f"launch: {workers} ranks cannot be placed on {len(hosts)} hosts, as many on each")
    places = [None if hosts is None else hosts[r * len(hosts) // workers] for r in range(workers)]
    deadline = time.monotonic() + timeout
    with tempfile.TemporaryDirectory(prefix="gradwire-") as folder:
        started: list[_Child] = []
        try:
            _start(started, function, places, arguments, _Meeting(folder, group_timeout))
            _collect(started, deadline, timeout, on_message or (lambda rank, message: None))
        finally:
            _stop(started)
    return [child.result for child in started]


@dataclass(frozen=True)
class _Meeting:
    """How the ranks find each other, and how long they wait."""

    folder: str
    timeout: float


# -------------------------------------------------------------------- the parent's side


@dataclass(frozen=True)
class _Failure:
    """What ended a rank: when (on the clock all processes share), in one line, and the traceback."""

    when: float
    line: str
    details: str


@dataclass
class _Child:
    process: ForkServerProcess
    pipe: connection.Connection
    done: bool = False
    result: Any = None
    failure: _Failure | None = None

    def read(self, on_message: Callable[[Any], None]) -> None:
        """Take what lies in the pipe: a message, or the last word, be it a result, a failure or silence."""
        try:
            kind, value = pickle.loads(self.pipe.recv_bytes())
        except EOFError:
            self.process.join(STOP)
            line = f"ended with exit code {self.process.exitcode} and without a word; its output may say why"
            kind, value = "failure", _Failure(0.0, line, "")  # a death comes before what it does to the peers
        if kind == "message":
            on_message(value)
            return
        self.done = True
        if kind == "result":
            self.result = value
        else:
            self.failure = value


def _start(
    started: list[_Child],
    function: Callable[..., Any],
    places: Sequence[Namespace | None],
    arguments: Sequence[Any],
    meeting: _Meeting,
) -> None:
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__, "torch._dynamo"])  # DDP imports the latter, in a second or two
    with _without_interrupts():
        for rank, place in enumerate(places):
            receive, send = context.Pipe(duplex=False)
            process = context.Process(
                target=_main,
                args=(function, rank, len(places), place, arguments, meeting, send),
                name=f"rank {rank}",
                daemon=True,
            )
            process.start()
            send.close()  # else the pipe would not end with the child
            started.append(_Child(process, receive))


@contextmanager
def _without_interrupts() -> Iterator[None]:
    """Server and ranks inherit a blocked Ctrl-C: the parent alone answers it, by ending them."""
    resource_tracker.ensure_running()  # started here, because it would unblock the signal
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _collect(children: list[_Child], deadline: float, timeout: float, on_message: Callable[[int, Any], None]) -> None:
    """Read all pipes until every child has given its result; raise at the first failure."""
    while waiting := [c for c in children if not c.done]:
        if not _read(children, deadline, on_message):
            silent = ", ".join(str(children.index(c)) for c in waiting)
            raise LaunchFailed(
                f"the time of {timeout:g} s was up before rank {silent} of {len(children)} had finished; all were "
                "stopped. Allow more time, or do less."
            )
        if any(c.failure for c in children):
            raise _explain(children)


def _read(children: list[_Child], deadline: float, on_message: Callable[[int, Any], None]) -> bool:
    """Wait until a child has something to say and take it; False if none had."""
    by_pipe = {c.pipe: (rank, c) for rank, c in enumerate(children) if not c.done}
    while True:
        left = max(0.0, deadline - time.monotonic())
        ready = [by_pipe[pipe] for pipe in connection.wait(list(by_pipe), min(left, GLANCE)) if pipe in by_pipe]
        if ready or not left:
            break
    for rank, child in ready:
        child.read(partial(on_message, rank))
    return bool(ready)


def _explain(children: list[_Child]) -> LaunchFailed:
    """The earliest failure, which explains the others. A death is noticed late, hence the grace."""
    until = time.monotonic() + GRACE
    while not all(c.done for c in children) and _read(children, until, lambda rank, message: None):
        pass
    failures = [(c.failure.when, rank, c.failure) for rank, c in enumerate(children) if c.failure]
    _, rank, failure = min(failures, key=lambda f: f[:2])
    return LaunchFailed(f"rank {rank} of {len(children)} {failure.line}", rank=rank, details=failure.details)


def _stop(children: list[_Child]) -> None:
    """End what still runs: those that have finished leave by themselves, the others are told, then made to."""
    for child in children:
        if not child.done or child.failure:
            child.process.terminate()
    until = time.monotonic() + STOP
    for child in children:
        child.process.join(max(0.0, until - time.monotonic()))
        if child.process.is_alive():
            child.process.kill()
            child.process.join()
        child.pipe.close()


# -------------------------------------------------------------------- the children's side


def _main(
    function: Callable[..., Any],
    rank: int,
    workers: int,
    place: Namespace | None,
    arguments: Sequence[Any],
    meeting: _Meeting,
    pipe: connection.Connection,
) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # for a server that somebody else has started
    threading.Thread(target=_end_with_parent, daemon=True).start()
    here = Rank(rank, workers, pipe)
    try:
        torch.set_num_threads(1)
        _join(rank, workers, place, meeting)
        here._send("result", function(here, *arguments))
    except Exception as problem:
        lines = str(problem).strip().splitlines()
        summary = f"raised {type(problem).__name__}: {lines[0] if lines else '(no message)'}"
        # Sent before this rank leaves its group: what the peers raise because of it is later.
        here._send("failure", _Failure(time.monotonic(), summary, traceback.format_exc()))
        pipe.close()
        os._exit(1)  # no clean-up: a peer may wait for this rank in the middle of a collective
    pipe.close()
    dist.destroy_process_group()


def _join(rank: int, workers: int, place: Namespace | None, meeting: _Meeting) -> None:
    if place is not None:
        place.join()
        os.environ["GLOO_SOCKET_IFNAME"] = INTERFACE
    elif sys.platform == "linux":
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")  # else the host's name must resolve
    # A rank that has nothing to exchange must not be gone while others still connect to each other.
    os.environ.setdefault("TORCH_DIST_INIT_BARRIER", "1")
    dist.init_process_group(
        "gloo",
        store=FileStore(str(Path(meeting.folder) / "ranks"), workers),
        rank=rank,
        world_size=workers,
        timeout=datetime.timedelta(seconds=meeting.timeout),
    )


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        connection.wait([parent.sentinel])
        os._exit(1)
