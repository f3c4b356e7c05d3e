"""Run one command per rank on the hosts of a network, as torchrun would, and say who wrote what."""

from __future__ import annotations

import math
import os
import selectors
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import IO, TextIO

from gradwire.core.errors import ConfigError, LabFailed
from gradwire.core.registry import Check
from gradwire.core.units import format_rate
from gradwire.laboratory.hosts.namespace import MARK, owner
from gradwire.laboratory.hosts.network import INTERFACE, Network

PORT = 29500
STOP = 5.0  # seconds a rank has to end by itself after it was asked to
DRAIN = 0.5  # seconds of silence after which an ended rank's output counts as complete
TIMED_OUT = 124  # exit code, as of `timeout`
GLANCE = 0.5  # seconds after which to look whether anybody still reads our output
SLOWER = 10  # times


@dataclass(frozen=True)
class Fault:
    """Something that happens to the network while a command runs; written ``cut:2@5``, ``mend:2@8``, ``kill:1@5`` or
    ``slow:3@5`` (to a tenth of its rate): what, to which host (`kill`: rank), after how many seconds.
    """

    kind: str
    target: int
    after: float

    @classmethod
    def parse(cls, text: str) -> Fault:
        try:
            what, _, when = text.partition("@")
            kind, _, target = what.partition(":")
            fault = cls(kind, int(target), float(when))
        except ValueError:
            fault = cls("", 0, 0.0)
        if fault.kind not in ("cut", "mend", "kill", "slow") or fault.target < 0 or not 0 <= fault.after < math.inf:
            raise ConfigError(
                f"lab: a fault is cut:HOST@SECONDS, mend:HOST@SECONDS, slow:HOST@SECONDS or kill:RANK@SECONDS, "
                f"got {text!r}"
            )
        return fault


def environment(network: Network, rank: int, per_host: int) -> dict[str, str]:
    """What torchrun would set for this rank."""
    hosts = len(network.rates)
    return {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank % per_host),
        "GROUP_RANK": str(rank // per_host),
        "WORLD_SIZE": str(hosts * per_host),
        "LOCAL_WORLD_SIZE": str(per_host),
        "MASTER_ADDR": network.addresses[0],
        "MASTER_PORT": str(PORT),
        "GLOO_SOCKET_IFNAME": INTERFACE,
        "NCCL_SOCKET_IFNAME": INTERFACE,
        "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1"),  # all hosts share this machine's cores
        "PYTHONUNBUFFERED": "1",
        MARK: owner(),
    }


def run(
    network: Network,
    command: Sequence[str],
    *,
    per_host: int = 1,
    timeout: float | None = None,
    faults: Sequence[Fault] = (),
    out: TextIO | None = None,
    err: TextIO | None = None,
) -> int:
    """Run `command` once per rank; each line it prints is prefixed by its rank. Returns an exit code.

    At the first rank that fails, at Ctrl-C and when the time is up, all are ended. The code is that of the rank
    that failed first (128 + signal if one ended it), 124 if the time was up, else 0. Faults, failures and the end
    of the time are told on `err`.
    """
    check_request(network, command, per_host, timeout, faults)
    if not network.hosts:
        raise LabFailed("lab: the network is not there; use it inside `with Network(...) as network:`")
    ranks = _Ranks(network, out or sys.stdout, err or sys.stderr)
    try:
        for rank in range(len(network.hosts) * per_host):
            ranks.start(command, rank, per_host)
        return _watch(ranks, timeout, sorted(faults, key=lambda f: f.after))
    finally:
        ranks.stop()


def check_request(
    network: Network, command: Sequence[str], per_host: int, timeout: float | None, faults: Sequence[Fault]
) -> None:
    """Refuse what `run` cannot do; the network need not be built yet."""
    check = Check("lab")
    check.integer("per_host", per_host, 1)
    if not command:
        check.fail("command", "a program and its arguments", command)
    if timeout is not None and not timeout > 0:
        check.fail("timeout", "a number of seconds above 0", timeout)
    for fault in faults:
        targets = len(network.rates) * (per_host if fault.kind == "kill" else 1)
        check.integer(fault.kind, fault.target, 0, targets - 1)


def _watch(ranks: _Ranks, timeout: float | None, faults: list[Fault]) -> int:
    """Return when all ranks have ended, one has failed, or the time is up; meanwhile, let the faults happen."""
    start = time.monotonic()
    while ranks.running:
        now = time.monotonic() - start
        if timeout is not None and now >= timeout:
            silent = ", ".join(str(rank) for rank in sorted(ranks.running))
            ranks.say(f"the time of {timeout:g} s was up; rank {silent} still ran")
            return TIMED_OUT
        while faults and faults[0].after <= now:
            ranks.happen(faults.pop(0))
        next_event = min([now + GLANCE, *(f.after for f in faults[:1]), *([] if timeout is None else [timeout])])
        failed = {rank: code for rank, code in ranks.ended(next_event - now).items() if code}
        if failed:
            # A death explains the failures of the other ranks that came with it.
            rank = min(failed, key=lambda rank: (failed[rank] > 0, rank))
            ranks.say(f"rank {rank} of {len(ranks)} {_ending(failed[rank])}; the others are stopped")
            return failed[rank] if failed[rank] > 0 else 128 - failed[rank]
    return 0


def _ending(code: int) -> str:
    return f"ended with exit code {code}" if code > 0 else f"was ended by {signal.Signals(-code).name}"


class _Ranks:
    """The processes of one command, and the threads that copy what they print."""

    def __init__(self, network: Network, out: TextIO, err: TextIO) -> None:
        self.running: set[int] = set()
        self._network, self._out, self._err = network, out, err
        self._processes: list[subprocess.Popen[str]] = []
        self._readers: list[threading.Thread] = []
        self._ends = selectors.DefaultSelector()
        self._lock = threading.Lock()
        self._last = 0.0  # when a rank has written something
        self._unread: OSError | None = None  # why our output goes nowhere

    def __len__(self) -> int:
        return len(self._processes)

    def start(self, command: Sequence[str], rank: int, per_host: int) -> None:
        try:
            process = self._network.hosts[rank // per_host].start(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                encoding="utf-8",
                errors="replace",
                env={**os.environ, **environment(self._network, rank, per_host)},
                start_new_session=True,
            )
        except OSError as problem:
            raise ConfigError(f"lab: cannot start {command[0]!r}: {problem.strerror}") from problem
        self._processes.append(process)
        self.running.add(rank)
        self._ends.register(os.pidfd_open(process.pid), selectors.EVENT_READ, rank)
        assert process.stdout is not None
        assert process.stderr is not None
        for source, sink in ((process.stdout, self._out), (process.stderr, self._err)):
            self._readers.append(threading.Thread(target=self._copy, args=(source, sink, rank), daemon=True))
            self._readers[-1].start()

    def ended(self, seconds: float) -> dict[int, int]:
        """Wait so long for ranks to end; their codes."""
        codes = self._reap(seconds)
        if self._unread is not None:
            raise self._unread
        return codes

    def _reap(self, seconds: float) -> dict[int, int]:
        codes = {}
        for key, _ in self._ends.select(max(0.0, seconds)):
            self._signal(key.data, signal.SIGKILL)  # what it has left behind; the number is its own until the wait
            codes[key.data] = self._processes[key.data].wait()
            self.running.discard(key.data)
            self._ends.unregister(key.fd)
            os.close(key.fd)
        return codes

    def happen(self, fault: Fault) -> None:
        """Let it happen, and tell."""
        network, target = self._network, fault.target
        if fault.kind == "cut":
            network.cut(target)
            self.say(f"host {target}'s link is cut")
        elif fault.kind == "mend":
            network.mend(target)
            self.say(f"host {target}'s link is mended")
        elif fault.kind == "slow":
            network.set_rate(target, network.rates[target] / SLOWER)
            self.say(f"host {target}'s link is slowed to {format_rate(network.rates[target])}")
        elif target in self.running:
            self._signal(target, signal.SIGKILL)
            self.say(f"rank {target} is killed")

    def say(self, message: str) -> None:
        with self._lock:
            print(f"gradwire lab: {message}", file=self._err, flush=True)

    def stop(self) -> None:
        """End what still runs: asked first, then made to."""
        for number in (signal.SIGTERM, signal.SIGKILL):
            for rank in self.running:
                self._signal(rank, number)
            until = time.monotonic() + STOP
            while self.running and time.monotonic() < until:
                self._reap(until - time.monotonic())
        self._last = time.monotonic()
        while any(r.is_alive() for r in self._readers) and self._copying():
            time.sleep(0.005)
        self._ends.close()

    def _copying(self) -> bool:
        """Whether output is still on its way. (What outlives a rank may hold its pipe open and write nothing.)"""
        return self._lock.locked() or time.monotonic() - self._last < DRAIN

    def _copy(self, source: IO[str], sink: TextIO, rank: int) -> None:
        with source:
            for line in source:
                self._last = time.monotonic()
                try:
                    with self._lock:
                        print(f"[{rank}] {line}", end="" if line.endswith("\n") else "\n", file=sink, flush=True)
                except OSError as problem:
                    self._unread = problem  # and read on, so that the rank is not held up

    def _signal(self, rank: int, number: int) -> None:
        """To the command and all that it has started in its session."""
        with suppress(ProcessLookupError):
            os.killpg(self._processes[rank].pid, number)
