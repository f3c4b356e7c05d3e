"""Measures flows between the hosts of a lab: payload a second, and latency.

One small program runs on each host (this file, as a script of the standard library alone) and takes orders on its
standard input: send to that address for so long. Rates are of payload: headers take 4 to 5 % of an Ethernet link.
"""

from __future__ import annotations

import json
import socket
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gradwire.laboratory.hosts.namespace import Namespace

PINGS = 50
CHUNK = 1 << 16
PORT = 29999
PATIENCE = 20.0  # seconds a probe waits for an answer from its peer

Flow = tuple[int, int]  # from one host to another


@dataclass(frozen=True)
class Verified:
    """What the links do: payload rates, and half a round trip."""

    flows: tuple[Flow, ...]
    asked: tuple[float, ...]  # bits a second of the links that each flow takes
    bits_per_second: tuple[float, ...]  # of each flow, one at a time
    latency_seconds: tuple[float, ...]  # of each flow
    together: tuple[float, ...]  # from each host to the next, all at once: less, where the machine is the limit

    def describe(self) -> dict[str, Any]:
        """Ready for JSON, in a record."""
        return {
            "flows": [list(flow) for flow in self.flows],
            "asked_bits_per_second": list(self.asked),
            "payload_bits_per_second": list(self.bits_per_second),
            "payload_bits_per_second_together": list(self.together),
            "latency_seconds": list(self.latency_seconds),
        }


@dataclass(frozen=True)
class Sent:
    """What one flow has shown."""

    bits_per_second: float
    latency_seconds: float


class Probes:
    """A probe on every host, for as long as the `with` statement lasts."""

    def __init__(self, hosts: Sequence[Namespace], addresses: Sequence[str]) -> None:
        self._hosts, self._addresses = hosts, addresses
        self._probes: list[subprocess.Popen[str]] = []

    def __enter__(self) -> Probes:
        try:
            for host in self._hosts:
                command = [sys.executable, "-I", "-S", __file__]
                pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
                self._probes.append(host.start(command, **pipes, start_new_session=True))  # Ctrl-C is not for them
            for probe in self._probes:
                _answer(probe)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for probe in self._probes:
            probe.kill()
        for probe in self._probes:
            probe.communicate()

    def send(self, flows: Sequence[Flow], seconds: float) -> list[Sent]:
        """Let all these flows run at once, for so long."""
        for source, to in flows:
            pipe = self._probes[source].stdin
            assert pipe is not None
            print(self._addresses[to], seconds, file=pipe, flush=True)
        return [Sent(*_answer(self._probes[source])) for source, _ in flows]


def _answer(probe: subprocess.Popen[str]) -> list[float]:
    assert probe.stdout is not None
    line = probe.stdout.readline()
    if not line:
        from gradwire.core.errors import LabFailed  # not on top: on a host this file is a script by itself

        raise LabFailed("lab: a probe ended without an answer, so a link carries nothing; its output may say why")
    return json.loads(line)  # type: ignore[no-any-return]


# -------------------------------------------------------------------- what runs on each host


def _serve(listening: socket.socket) -> None:
    while True:
        connection, _ = listening.accept()
        threading.Thread(target=_receive, args=(connection,), daemon=True).start()


def _receive(connection: socket.socket) -> None:
    """Echo single bytes until one says that the flow begins; then count for the sender."""
    buffer = bytearray(1 << 20)
    with connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        while connection.recv(1) == b"p":
            connection.sendall(b"p")
        arrived = [(time.perf_counter(), 0)]
        while size := connection.recv_into(buffer):
            arrived.append((time.perf_counter(), size))
        connection.sendall(json.dumps(_rate(arrived)).encode())


def _rate(arrived: list[tuple[float, int]]) -> float:
    """Bits a second between the first quarter and the end: the window has opened by then."""
    begin, end = arrived[0][0], arrived[-1][0]
    skipped = [a for a in arrived if a[0] >= begin + (end - begin) / 4]
    if len(skipped) < 2:
        return 0.0
    return 8 * sum(size for _, size in skipped[1:]) / (skipped[-1][0] - skipped[0][0])


def _send(address: str, seconds: float) -> tuple[float, float]:
    """Payload in bits a second, and latency in seconds."""
    with socket.create_connection((address, PORT), timeout=PATIENCE) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        trips = []
        for _ in range(PINGS):
            start = time.perf_counter()
            connection.sendall(b"p")
            connection.recv(1)
            trips.append(time.perf_counter() - start)
        data, until = b"x" * CHUNK, time.perf_counter() + seconds * 4 / 3
        while time.perf_counter() < until:
            connection.sendall(data)
        connection.shutdown(socket.SHUT_WR)
        rate = json.loads(connection.makefile().read())
    return rate, statistics.median(trips) / 2


def _main() -> None:
    with socket.create_server(("", PORT), backlog=128) as listening:
        threading.Thread(target=_serve, args=(listening,), daemon=True).start()
        print("[]", flush=True)
        for line in sys.stdin:
            address, seconds = line.split()
            print(json.dumps(_send(address, float(seconds))), flush=True)


if __name__ == "__main__":
    _main()
