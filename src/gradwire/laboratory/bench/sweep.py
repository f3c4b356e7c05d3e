"""A sweep: one experiment in many settings on many networks, into a record file, and on from where it stopped.

Settings that share a network and a situation (a model and a batch, say) form a group; a group is measured in
one launch, beside its baselines, so that ratios within it come from one run. Records are written when a group is done.
Started again with the same file, a sweep runs what is missing at this commit: an interruption costs one group.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gradwire.core import environment, records
from gradwire.core.records import Quantiles, Record
from gradwire.core.registry import Check
from gradwire.core.units import format_rate, parse_rate
from gradwire.laboratory.hosts.namespace import Namespace
from gradwire.laboratory.hosts.network import Network

LOOPBACK = "loopback"


@dataclass(frozen=True)
class Place:
    """Where a group runs: a network, its measured rates, and how many ranks each host has."""

    hosts: int
    per_host: int
    rate: str  # as asked for, or "loopback"
    namespaces: tuple[Namespace, ...] | None  # None: loopback
    measured: Mapping[str, Any]
    network: Network | None = None  # to change rates while a group runs; None: loopback

    @property
    def workers(self) -> int:
        return self.hosts * self.per_host

    @property
    def backend(self) -> str:
        return "gloo over loopback" if self.namespaces is None else "gloo over shaped links"

    def describe(self) -> dict[str, Any]:
        """The place's part of a record's `what`."""
        bits = None if self.rate == LOOPBACK else parse_rate(self.rate)
        return {"hosts": self.hosts, "ranks_per_host": self.per_host, "bits_per_second": bits}


@dataclass(frozen=True)
class Group:
    """What is measured in one launch. Settings are the `what` of records, less the place; baselines run with any."""

    title: str
    settings: tuple[Mapping[str, Any], ...]
    baselines: tuple[Mapping[str, Any], ...] = ()

    def missing(self, place: Place, done: set[str]) -> tuple[Mapping[str, Any], ...]:
        """What is still to be measured there: nothing, or the missing settings with all baselines."""
        left = tuple(s for s in self.settings if key(place.describe() | dict(s)) not in done)
        fresh = any(key(place.describe() | dict(b)) not in done for b in self.baselines)
        return (*self.baselines, *left) if left or fresh else ()


@dataclass(frozen=True)
class Measured:
    """What one setting showed at one place."""

    setting: Mapping[str, Any]
    samples: tuple[float, ...]
    outcome: Mapping[str, Any]


Measure = Callable[[Place, Sequence[Mapping[str, Any]]], list[Measured]]


@dataclass(frozen=True, kw_only=True)
class Sweep:
    """Which experiment, where, and what."""

    kind: str
    command: str
    unit: str
    hosts: tuple[int, ...]
    rates: tuple[str, ...]
    per_host: int
    groups: tuple[Group, ...]
    measure: Measure

    def __post_init__(self) -> None:
        check = Check(f"bench {self.kind}")
        check.integer("gpus-per-host", self.per_host, 1)
        for hosts in self.hosts:
            check.integer("hosts", hosts, 2)
            for rate in self.rates:
                if rate != LOOPBACK:
                    Network(hosts, rate)  # refused now, not in the middle

    @property
    def total(self) -> int:
        """Groups, over all places."""
        return len(self.hosts) * len(self.rates) * len(self.groups)

    def run(
        self, path: Path | None = None, on_group: Callable[[str, bool], None] = lambda title, run: None
    ) -> list[Record]:
        """Measure what is missing in `path` and append it there; returns all records of this sweep, old ones too.

        `on_group` is told of each group before it runs (True) or is skipped (False).
        """
        commit, _ = environment.commit()
        old = [r for r in records.load(path) if self._is_mine(r, commit)] if path is not None and path.exists() else []
        done = {key(r.what) for r in old}
        found = []
        for hosts in self.hosts:
            for rate in self.rates:
                found += self._at(hosts, rate, done, path, on_group)
        wanted = {
            key(_place_of(hosts, rate, self.per_host) | dict(s))
            for hosts in self.hosts
            for rate in self.rates
            for group in self.groups
            for s in (*group.baselines, *group.settings)
        }
        return [r for r in (*old, *found) if key(r.what) in wanted]

    def _is_mine(self, record: Record, commit: str) -> bool:
        return record.kind == self.kind and record.commit == commit

    def _at(
        self, hosts: int, rate: str, done: set[str], path: Path | None, on_group: Callable[[str, bool], None]
    ) -> list[Record]:
        """All groups on one network, which is built only if there is something to do."""
        unbuilt = Place(hosts, self.per_host, rate, None, {})
        todo = [(group, group.missing(unbuilt, done)) for group in self.groups]
        where = f"{hosts} hosts, {rate if rate == LOOPBACK else format_rate(parse_rate(rate))}"
        for group, missing in todo:
            if not missing:
                on_group(f"{where}, {group.title}", False)
        if not any(missing for _, missing in todo):
            return []
        found = []
        with _place(hosts, self.per_host, rate) as place:
            for group, missing in todo:
                if missing:
                    on_group(f"{where}, {group.title}", True)
                    fresh = self._records(place, self.measure(place, missing))
                    if path is not None:
                        records.append(path, fresh)
                    found += fresh
        return found

    def _records(self, place: Place, measured: Sequence[Measured]) -> list[Record]:
        now = environment.now()
        commit, dirty = environment.commit()
        return [
            Record(
                kind=self.kind,
                what=place.describe() | dict(m.setting),
                command=self.command,
                time=now,
                commit=commit,
                dirty=dirty,
                environment=environment.fingerprint(place.backend),
                unit=self.unit,
                quantiles=Quantiles.of(m.samples),
                samples=m.samples,
                outcome={**m.outcome, "network": dict(place.measured)},
            )
            for m in measured
        ]


def key(what: Mapping[str, Any]) -> str:
    """Equal for equal parameters."""
    return json.dumps(what, sort_keys=True)


def _place_of(hosts: int, rate: str, per_host: int) -> dict[str, Any]:
    return Place(hosts, per_host, rate, None, {}).describe()


@contextmanager
def _place(hosts: int, per_host: int, rate: str) -> Iterator[Place]:
    if rate == LOOPBACK:
        yield Place(hosts, per_host, rate, None, {})
        return
    with Network(hosts, rate) as network:
        measured = network.verify(seconds=0.15).describe()
        yield Place(hosts, per_host, rate, tuple(network.hosts), measured, network)
