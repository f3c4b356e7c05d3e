"""Hosts, links and the switch between them.

Every host has one interface, `eth0`, into a switch (a bridge in a namespace of its own). Both ends of that link have a
token bucket: what a host sends and what it receives are limited apart, as on a full-duplex cable. A direct cable
between two hosts (link "0-1") is a second interface pair with a route, for hosts that stand in one "node".

Packets that the kernel builds are kept to a fifth of a millisecond of the rate (`gso_max_size`), which costs processor
time in proportion to the rate, and bursts to two packets, so that short messages feel the rate too. Queues hold 50 ms
at least, so that several senders to one receiver wait instead of losing packets. Routes ask for the congestion control
CUBIC, the usual one, whatever this machine's default is (BBR starts slowly on short flows). No latency is added to the
kernel's own.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from gradwire.core.errors import ConfigError, LabFailed
from gradwire.core.registry import Check
from gradwire.core.units import BITS_PER_BYTE, format_rate, parse_rate
from gradwire.laboratory.hosts.namespace import Keeper, Namespace, missing
from gradwire.laboratory.hosts.probe import Flow, Probes, Sent, Verified

INTERFACE = "eth0"
SUBNET = "10.99.0.0/24"  # inside the namespaces; nothing outside can see or reach it
CONGESTION = "cubic"
MOST_HOSTS = 64
FRAME = 1514  # bytes of a full Ethernet frame
HEADERS = 256  # room for the headers of a packet beside what it carries
PACKET_SECONDS = 200e-6
QUEUE_SECONDS = 0.05
QUEUE_BYTES = 4 << 20  # at least: several senders may have a window open to one receiver
LEAST, MOST = 0.85, 1.02  # of the rate asked for, that verification wants to see as payload
ATTEMPTS = 4
SLOWEST, FASTEST = 1e5, 1e11  # bit/s: below, a frame takes longer than probes wait; above, queues do not fit


class Network:
    """`hosts` hosts, each on a link of `rate` to one switch. Use it in a `with` statement.

    Args:
        hosts: number of hosts.
        rate: of every link, both ways, such as ``"1gbit"`` or bits a second.
        links: rates that differ: ``{"3": "100mbit"}`` is host 3's link, ``{"0-1": "10gbit"}`` a cable between two.
    """

    def __init__(self, hosts: int, rate: str | float = "1gbit", links: Mapping[str, str | float] | None = None) -> None:
        Check("lab").integer("hosts", hosts, 2, MOST_HOSTS)
        self.rate = _rate(rate)
        self.rates = [self.rate] * hosts
        self.cables: dict[tuple[int, int], float] = {}
        for name, value in (links or {}).items():
            ends = _ends(name, hosts)
            if len(ends) == 1:
                self.rates[ends[0]] = _rate(value)
            else:
                self.cables[ends[0], ends[1]] = _rate(value)
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
        """The links as they are now, ready for JSON."""
        odd = {str(h): r for h, r in enumerate(self.rates) if r != self.rate}
        cables = {f"{a}-{b}": r for (a, b), r in self.cables.items()}
        return {"hosts": len(self.rates), "bits_per_second": self.rate, "links": odd | cables}

    def verify(self, *, seconds: float = 0.25, strict: bool = True) -> Verified:
        """Measure every link both ways; raises if one does not hold what was asked for, unless `strict` is False."""
        flows, hosts = self._flows(), range(len(self.rates))
        with Probes(self.hosts, self.addresses) as probes:
            alone = [self._steady(probes, flow, seconds, strict) for flow in flows]
            together = probes.send([(host, (host + 1) % len(hosts)) for host in hosts], seconds)
        return Verified(
            flows=tuple(flows),
            asked=tuple(self._asked(flow) for flow in flows),
            bits_per_second=tuple(sent.bits_per_second for sent in alone),
            latency_seconds=tuple(sent.latency_seconds for sent in alone),
            together=tuple(sent.bits_per_second for sent in together),
        )

    def _flows(self) -> list[Flow]:
        """Enough to load every link both ways: from and to each host, with a partner as fast if there is one."""
        flows = []
        for host in range(len(self.rates)):
            flows += [(host, partner) for partner in self._partners(host)[:1]]
        for host, rate in enumerate(self.rates):
            if not any(to == host and self.rates[source] >= rate for source, to in flows):
                flows += [(partner, host) for partner in self._partners(host)[:1]]
        both_ways = [flow for a, b in self.cables for flow in ((a, b), (b, a))]
        return list(dict.fromkeys(flows + both_ways))

    def _partners(self, host: int) -> list[int]:
        """The hosts that are reached through the switch: first those whose link is as fast, the next one leading."""
        count, rate = len(self.rates), self.rates[host]
        others = [(host + s) % count for s in range(1, count)]
        reached = [other for other in others if (min(host, other), max(host, other)) not in self.cables]
        return sorted(reached, key=lambda other: -min(self.rates[other], rate))

    def _asked(self, flow: Flow) -> float:
        """The rate of the cable between the two, or else of the slower of their links."""
        source, to = flow
        return self.cables.get((min(flow), max(flow)), min(self.rates[source], self.rates[to]))

    def _steady(self, probes: Probes, flow: Flow, seconds: float, strict: bool) -> Sent:
        """One flow by itself; again, and for longer, if the machine was busy with something else."""
        asked, tried = self._asked(flow), []
        for attempt in range(ATTEMPTS):
            [sent] = probes.send([flow], seconds * 2**attempt)
            tried.append(sent)
            if LEAST * asked <= sent.bits_per_second <= MOST * asked:
                return sent
        if not strict:
            return min(tried, key=lambda s: abs(s.bits_per_second - asked))
        raise LabFailed(
            f"lab: from host {flow[0]} to host {flow[1]} {format_rate(asked)} were asked for and "
            f"{format_rate(sent.bits_per_second)} measured. This machine may be too slow or too busy for it: "
            "ask for a lower rate, or try again."
        )

    # ---------------------------------------------------------------- what can go wrong on a network

    def cut(self, host: int) -> None:
        """Unplug the host from the switch: nothing arrives any more, and nobody is told. Direct cables stay."""
        self._at_switch("ip", [f"link set p{self._known(host)} down"])

    def mend(self, host: int) -> None:
        """Put it back in."""
        self._at_switch("ip", [f"link set p{self._known(host)} up"])

    def set_rate(self, host: int, rate: str | float) -> None:
        """Change the rate of the host's link."""
        self.rates[self._known(host)] = parse_rate(rate)
        self.hosts[host].batch("ip", [f"link set {INTERFACE} gso_max_size {packet_bytes(self.rates[host])}"])
        self.hosts[host].batch("tc", [_shape("replace", INTERFACE, self.rates[host])])
        self._at_switch("tc", [_shape("replace", f"p{host}", self.rates[host])])

    def _known(self, host: int) -> int:
        Check("lab").integer("host", host, 0, len(self.rates) - 1)
        return host

    # ---------------------------------------------------------------- how it is built

    def _build(self) -> None:
        keepers = []
        for _ in range(1 + len(self.rates)):
            keepers.append(Keeper())
            self._open.callback(keepers[-1].close)
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
                "link set switch addrgenmode none up",
                *(_pair(f"p{h}", INTERFACE, self.hosts[h], self.rates[h]) for h in ports),
                *(f"link set p{h} master switch addrgenmode none up" for h in ports),
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


def _rate(rate: str | float) -> float:
    """Bits a second that the kernel's token bucket can hold to."""
    found = parse_rate(rate)
    if not SLOWEST <= found <= FASTEST:
        raise ConfigError(
            f"lab: a link is shaped to a rate from {format_rate(SLOWEST)} to {format_rate(FASTEST)}, got {rate!r}; "
            "ask for one in between"
        )
    return found


def _ends(name: str, hosts: int) -> tuple[int, ...]:
    """Host 3 of "3", hosts 0 and 1 of "0-1"."""
    parts = str(name).split("-")
    if len(parts) > 2 or not all(p.isdigit() and int(p) < hosts for p in parts) or len(set(parts)) != len(parts):
        raise ConfigError(
            f"lab: a link is named by a host, as in 3=100mbit, or by two for a cable between them, as in 0-1=10gbit; "
            f"hosts are 0 to {hosts - 1}; got {name!r}"
        )
    return tuple(sorted(int(p) for p in parts))


def packet_bytes(rate: float) -> int:
    """The largest packet: two frames at least, what the kernel can build at most."""
    return int(min(max(2 * FRAME, rate / BITS_PER_BYTE * PACKET_SECONDS), 65536))


def _pair(here: str, there: str, namespace: Namespace, rate: float) -> str:
    """An interface here and its other end on a host."""
    most = f"gso_max_size {packet_bytes(rate)}"
    return f"link add name {here} {most} type veth peer name {there} {most} netns {namespace.keeper}"


def _shape(verb: str, interface: str, rate: float) -> str:
    queue = max(QUEUE_BYTES, int(rate / BITS_PER_BYTE * QUEUE_SECONDS))
    burst = 2 * packet_bytes(rate) + HEADERS  # with one packet's worth, a timer that is late would lose tokens
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
