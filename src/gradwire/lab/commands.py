"""Run one command per rank on the hosts of a network, as torchrun would, and say who wrote what."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import IO, TextIO

from gradwire.core.errors import ConfigError, LabFailed
from gradwire.core.registry import Check
from gradwire.lab.network import INTERFACE, Network

PORT = 29500
STOP = 5.0  # seconds a rank has to end by itself after it was asked to
TIMED_OUT = 124  # exit code, as of `timeout`
POLL = 0.05  # seconds


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
        if fault.kind not in ("cut", "mend", "kill", "slow") or fault.target < 0 or fault.after < 0:
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
        "GRADWIRE_LAB": str(os.getpid()),
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
    that failed first (128 + signal if one ended it), 124 if the time was up, else 0.
    """
    Check("lab").integer("per_host", per_host, 1)
    ranks = len(network.hosts) * per_host
    for fault in faults:
        Check("lab").integer(fault.kind, fault.target, 0, (ranks if fault.kind == "kill" else len(network.hosts)) - 1)
    out, err = out or sys.stdout, err or sys.stderr
    processes: list[subprocess.Popen[str]] = []
    readers: list[threading.Thread] = []
    lock = threading.Lock()
    start = time.monotonic()
    waiting = sorted(faults, key=lambda f: f.after)
    try:
        for rank in range(ranks):
            process = _start(network, command, rank, per_host)
            processes.append(process)
            assert process.stdout is not None
            assert process.stderr is not None
            for source, sink in ((process.stdout, out), (process.stderr, err)):
                readers.append(threading.Thread(target=_copy, args=(source, sink, rank, lock), daemon=True))
                readers[-1].start()
        while True:
            codes = [p.poll() for p in processes]
            failed = next((c for c in codes if c), None)
            if failed is not None:
                with lock:
                    print(f"gradwire lab: rank {codes.index(failed)} of {ranks} {_ending(failed)}", file=err)
                return failed if failed > 0 else 128 - failed
            if None not in codes:
                return 0
            now = time.monotonic() - start
            while waiting and waiting[0].after <= now:
                _happen(waiting.pop(0), network, processes)
            if timeout is not None and now > timeout:
                silent = ", ".join(str(r) for r, c in enumerate(codes) if c is None)
                with lock:
                    print(f"gradwire lab: the time of {timeout:g} s was up; rank {silent} still ran", file=err)
                return TIMED_OUT
            time.sleep(POLL)
    finally:
        _stop(processes)
        for reader in readers:
            reader.join(STOP)


def _start(network: Network, command: Sequence[str], rank: int, per_host: int) -> subprocess.Popen[str]:
    host = network.hosts[rank // per_host]
    try:
        return subprocess.Popen(
            [*host.enter_command, *command],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            env={**os.environ, "PYTHONUNBUFFERED": "1", **environment(network, rank, per_host)},
            start_new_session=True,
        )
    except OSError as problem:
        raise LabFailed(f"lab: cannot start {command[0]!r}: {problem}") from problem


def _copy(source: IO[str], sink: TextIO, rank: int, lock: threading.Lock) -> None:
    for line in source:
        with lock:
            print(f"[{rank}] {line}", end="" if line.endswith("\n") else "\n", file=sink, flush=True)


def _happen(fault: Fault, network: Network, processes: Sequence[subprocess.Popen[str]]) -> None:
    actions: dict[str, Callable[[int], None]] = {
        "cut": network.cut,
        "mend": network.mend,
        "slow": lambda host: network.set_rate(host, network.rates[host] / 10),
        "kill": lambda rank: _signal(processes[rank], signal.SIGKILL),
    }
    actions[fault.kind](fault.target)


def _ending(code: int) -> str:
    return f"ended with exit code {code}" if code > 0 else f"was ended by {signal.Signals(-code).name}"


def _signal(process: subprocess.Popen[str], number: int) -> None:
    """To the command and all that it has started in its session."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, number)


def _stop(processes: Sequence[subprocess.Popen[str]]) -> None:
    for process in processes:
        if process.poll() is None:
            _signal(process, signal.SIGTERM)
    until = time.monotonic() + STOP
    for process in processes:
        try:
            process.wait(max(0.0, until - time.monotonic()))
        except subprocess.TimeoutExpired:
            _signal(process, signal.SIGKILL)
            process.wait()
