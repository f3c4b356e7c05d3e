"""Measures the links of a lab before anybody relies on them: rate one at a time, rate all at once, latency.

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
    from gradwire.lab.namespace import Namespace

PINGS = 50
CHUNK = 1 << 16
PORT = 29999


@dataclass(frozen=True)
class Verified:
    """What the links do, measured from each host to the next: payload rates, and half a round trip."""

    bits_per_second: tuple[float, ...]  # one flow at a time
    together: tuple[float, ...]  # all flows at once: less, where the machine and not the link is the limit
    latency_seconds: tuple[float, ...]

    def describe(self) -> dict[str, Any]:
        """Ready for JSON, in a record."""
        return {
            "payload_bits_per_second": list(self.bits_per_second),
            "payload_bits_per_second_together": list(self.together),
            "latency_seconds": list(self.latency_seconds),
        }


def measure(hosts: Sequence[Namespace], addresses: Sequence[str], seconds: float) -> Verified:
    """From each host to the next, one after the other, then all together."""
    probes = [
        subprocess.Popen(
            [*host.enter_command, sys.executable, "-I", "-S", __file__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for host in hosts
    ]
    try:
        for probe in probes:
            _answer(probe)
        nexts = [*addresses[1:], addresses[0]]
        alone = []
        for probe, address in zip(probes, nexts, strict=True):
            _order(probe, address, seconds)
            alone.append(_answer(probe))
        for probe, address in zip(probes, nexts, strict=True):
            _order(probe, address, seconds)
        together = [_answer(probe) for probe in probes]
    finally:
        for probe in probes:
            probe.kill()
            probe.communicate()
    return Verified(
        bits_per_second=tuple(a["bits_per_second"] for a in alone),
        together=tuple(t["bits_per_second"] for t in together),
        latency_seconds=tuple(a["latency_seconds"] for a in alone),
    )


def _order(probe: subprocess.Popen[str], address: str, seconds: float) -> None:
    assert probe.stdin is not None
    print(address, seconds, file=probe.stdin, flush=True)


def _answer(probe: subprocess.Popen[str]) -> dict[str, float]:
    assert probe.stdout is not None
    line = probe.stdout.readline()
    if not line:
        raise RuntimeError("lab: a probe ended without an answer; its output above says why")
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


def _send(address: str, seconds: float) -> dict[str, float]:
    with socket.create_connection((address, PORT), timeout=10) as connection:
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
    return {"bits_per_second": rate, "latency_seconds": statistics.median(trips) / 2}


def _main() -> None:
    with socket.create_server(("", PORT), backlog=128) as listening:
        threading.Thread(target=_serve, args=(listening,), daemon=True).start()
        print("{}", flush=True)
        for line in sys.stdin:
            address, seconds = line.split()
            print(json.dumps(_send(address, float(seconds))), flush=True)


if __name__ == "__main__":
    _main()
