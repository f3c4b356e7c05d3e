"""Hosts, links and the switch between them.

Every host has one interface, `eth0`, into a switch (a bridge in a namespace of its own). Both ends of that link have a
token bucket: what a host sends and what it receives are limited apart, as on a full-duplex cable. A direct cable
between two hosts (link "0-1") is a second interface pair with a route, for hosts that stand in one "node".

Bursts are small, a fifth of a millisecond, so that short messages feel the rate too; packets the kernel builds are kept
that small as well (`gso_max_size`), which costs processor time in proportion to the rate. Queues hold 50 ms at least,
so that several senders to one receiver wait instead of losing packets. Routes ask for the congestion control CUBIC, the
usual one, whatever this machine's default is (BBR starts slowly on short flows). No latency is added to the kernel's.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from gradwire.core.errors import ConfigError, LabFailed
from gradwire.core.registry import Check
from gradwire.core.units import BITS_PER_BYTE, format_rate, parse_rate
from gradwire.lab.namespace import Keeper, Namespace, missing
from gradwire.lab.probe import Verified, measure

INTERFACE = "eth0"
SUBNET = "10.99.0.0/24"  # inside the namespaces; nothing outside can see or reach it
CONGESTION = "cubic"
MOST_HOSTS = 64
FRAME = 1514  # bytes of a full Ethernet frame
HEADERS = 256  # room for the headers of a packet beside what it carries
BURST_SECONDS = 200e-6
QUEUE_SECONDS = 0.05
QUEUE_BYTES = 4 << 20  # at least: several senders may have a window open to one receiver


class Network:
    """`hosts` hosts, each on a link of `rate` to one switch. Use it in a `with` statement.

    Args:
        hosts: number of hosts.
        rate: of every link, both ways, such as ``"1gbit"`` or bits a second.
        links: rates that differ: ``{"3": "100mbit"}`` is host 3's link, ``{"0-1": "10gbit"}`` a cable between two.
    """

    def __init__(self, hosts: int, rate: str | float = "1gbit", links: Mapping[str, str | float] | None = None) -> None:
        Check("lab").integer("hosts", hosts, 2, MOST_HOSTS)
        self.rate = parse_rate(rate)
        self.rates = [self.rate] * hosts
        self.cables: dict[tuple[int, int], float] = {}
        for name, value in (links or {}).items():
            ends = _ends(name, hosts)
            if len(ends) == 1:
                self.rates[ends[0]] = parse_rate(value)
            else:
                self.cables[ends[0], ends[1]] = parse_rate(value)
        self.hosts: list[Namespace] = []
        self._switch: Namespace | None = None
        self._open = ExitStack()

    def __enter__(self) -> Network:
        problem = missing()
        if problem:
            raise LabFailed(problem)
        try:
            self._build()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Remove everything, and end all that runs on the hosts."""
        self._open.close()
        self.hosts, self._switch = [], None

    @property
    def addresses(self) -> list[str]:
        """Of the hosts, in order."""
        return [f"{SUBNET.removesuffix('0/24')}{host + 1}" for host in range(len(self.rates))]

    def describe(self) -> dict[str, Any]:
        """What was asked for, ready for JSON."""
        odd = {str(h): r for h, r in enumerate(self.rates) if r != self.rate}
        cables = {f"{a}-{b}": r for (a, b), r in self.cables.items()}
        return {"hosts": len(self.rates), "bits_per_second": self.rate, "links": odd | cables}

    def verify(self, *, seconds: float = 0.25) -> Verified:
        """Measure every link; raises if one does not hold what was asked for."""
        verified = measure(self.hosts, self.addresses, seconds)
        for host, reached in enumerate(verified.bits_per_second):
            # The flow ran from this host to the next, over the cable between them or over both their links.
            to = (host + 1) % len(self.rates)
            wanted = self.cables.get((min(host, to), max(host, to)), min(self.rates[host], self.rates[to]))
            if not 0.85 * wanted <= reached <= 1.02 * wanted:
                raise LabFailed(
                    f"lab: from host {host} to host {to} {format_rate(wanted)} were asked for and "
                    f"{format_rate(reached)} measured. This machine may be too slow or too busy for it: "
                    "ask for a lower rate, or try again."
                )
        return verified

    # ---------------------------------------------------------------- what can go wrong on a network

    def cut(self, host: int) -> None:
        """Pull the host's cable: nothing arrives any more, and nobody is told."""
        self._at_switch("ip", [f"link set p{self._known(host)} down"])

    def mend(self, host: int) -> None:
        """Put it back in."""
        self._at_switch("ip", [f"link set p{self._known(host)} up"])

    def set_rate(self, host: int, rate: str | float) -> None:
        """Change the rate of the host's link."""
        self.rates[self._known(host)] = parse_rate(rate)
        self.hosts[host].batch("tc", [_shape("replace", INTERFACE, self.rates[host])])
        self._at_switch("tc", [_shape("replace", f"p{host}", self.rates[host])])

    def _known(self, host: int) -> int:
        Check("lab").integer("host", host, 0, len(self.rates) - 1)
        return host

    # ---------------------------------------------------------------- how it is built

    def _build(self) -> None:
        keepers = [Keeper() for _ in range(1 + len(self.rates))]
        for keeper in keepers:
            self._open.callback(keeper.close)
        for keeper in keepers:
            self._open.callback(keeper.release)  # callbacks run from the last to the first: all, then wait for all
        for keeper in keepers:
            keeper.ready()
        self._switch, *self.hosts = (k.namespace for k in keepers)
        ports = range(len(self.hosts))
        self._at_switch(
            "ip",
            [
                "link add name switch type bridge",
                "link set switch up",
                *(_pair(f"p{h}", INTERFACE, self.hosts[h], self.rates[h]) for h in ports),
                *(f"link set p{h} master switch up" for h in ports),
            ],
        )
        self._at_switch("tc", [_shape("add", f"p{h}", self.rates[h]) for h in ports])
        for (a, b), rate in self.cables.items():
            self.hosts[a].batch("ip", [_pair(f"to{b}", f"to{a}", self.hosts[b], rate)])
        for host, namespace in enumerate(self.hosts):
            self._set_up(host, namespace)

    def _set_up(self, host: int, namespace: Namespace) -> None:
        address = self.addresses[host]
        commands = [
            "link set lo up",
            f"link set {INTERFACE} addrgenmode none",
            f"addr add {address}/24 dev {INTERFACE}",
            f"link set {INTERFACE} up",
            f"route replace {SUBNET} dev {INTERFACE} src {address} congctl {CONGESTION}",
        ]
        shapes = [_shape("add", INTERFACE, self.rates[host])]
        for (a, b), rate in self.cables.items():
            if host in (a, b):
                other = b if host == a else a
                commands += [
                    f"link set to{other} addrgenmode none",
                    f"link set to{other} up",
                    f"route add {self.addresses[other]}/32 dev to{other} src {address} congctl {CONGESTION}",
                ]
                shapes.append(_shape("add", f"to{other}", rate))
        namespace.batch("ip", commands)
        namespace.batch("tc", shapes)

    def _at_switch(self, program: str, lines: Iterable[str]) -> None:
        if self._switch is None:
            raise LabFailed("lab: the network is not there; use it inside `with Network(...) as network:`")
        self._switch.batch(program, lines)


def _ends(name: str, hosts: int) -> tuple[int, ...]:
    """Host 3 of "3", hosts 0 and 1 of "0-1"."""
    parts = str(name).split("-")
    if len(parts) > 2 or not all(p.isdigit() and int(p) < hosts for p in parts) or len(set(parts)) != len(parts):
        raise ConfigError(
            f"lab: a link is named by a host, as in 3=100mbit, or by two for a cable between them, as in 0-1=10gbit; "
            f"hosts are 0 to {hosts - 1}; got {name!r}"
        )
    return tuple(sorted(int(p) for p in parts))


def burst_bytes(rate: float) -> int:
    """What may pass at once: two frames at least, one packet of the largest size at most."""
    return int(min(max(2 * FRAME, rate / BITS_PER_BYTE * BURST_SECONDS), 65536))


def _pair(here: str, there: str, namespace: Namespace, rate: float) -> str:
    """An interface here and its other end on a host; neither builds packets above the burst."""
    most = f"gso_max_size {burst_bytes(rate)}"
    return f"link add name {here} {most} type veth peer name {there} {most} netns {namespace.keeper}"


def _shape(verb: str, interface: str, rate: float) -> str:
    queue = max(QUEUE_BYTES, int(rate / BITS_PER_BYTE * QUEUE_SECONDS))
    burst = burst_bytes(rate) + HEADERS
    return f"qdisc {verb} dev {interface} root tbf rate {int(rate)}bit burst {burst} limit {queue}"


def interface_bytes() -> tuple[int, int]:
    """Bytes that the calling thread's host has sent and received so far, over all interfaces but loopback."""
    sent = received = 0
    for line in Path("/proc/thread-self/net/dev").read_text(encoding="ascii").splitlines()[2:]:
        name, _, numbers = line.partition(":")
        if name.strip() != "lo":
            fields = numbers.split()
            received, sent = received + int(fields[0]), sent + int(fields[8])
    return sent, received
