"""The demo's last run on each machine: times on each link, bytes, loss and accuracy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gradwire.core.baselines import HALF, PLAIN
from gradwire.core.records import Record
from gradwire.core.units import format_bytes, format_rate
from gradwire.laboratory.report.load import machine
from gradwire.laboratory.report.page import Block, Choice, Item, Section, Table, Text

BASELINES = (PLAIN, HALF, "fp16")  # the last: our own codec, which older records have in the place of torch's hook
HEADINGS = ("", "ms a step (p20-p80)", "fp32 / this", "fp16 / this", "sent a step", "loss", "held-out accuracy")


@dataclass(frozen=True)
class Link:
    """One run on one link."""

    machine: str
    link: str
    records: tuple[Record, ...]

    @property
    def ddp(self) -> Record:
        """The faster of the baselines."""
        return min((r for r in self.records if r.what["configuration"] in BASELINES), key=_seconds)

    @property
    def best(self) -> tuple[Record, float]:
        """The fastest codec, and how many times as fast as DDP."""
        fastest = min((r for r in self.records if r.what["configuration"] not in BASELINES), key=_seconds)
        return fastest, _seconds(self.ddp) / _seconds(fastest)


def _seconds(record: Record) -> float:
    return record.quantiles.p50


def links(records: Sequence[Record]) -> list[Link]:
    """The last run of each machine, link by link; runs without a baseline or without a codec show nothing."""
    last: dict[str, str] = {}
    for record in records:
        last[machine(record)] = max(last.get(machine(record), ""), record.time)
    found: dict[tuple[str, str], list[Record]] = {}
    for record in records:
        where, bits = machine(record), record.what.get("bits_per_second")
        if record.time == last[where]:
            found.setdefault((where, "loopback" if bits is None else format_rate(bits)), []).append(record)
    made = [Link(where, link, tuple(rs)) for (where, link), rs in found.items()]
    return [m for m in made if 0 < sum(r.what["configuration"] in BASELINES for r in m.records) < len(m.records)]


def section(records: Sequence[Record]) -> Section | None:
    """A table for each machine and link."""
    found = links(records)
    if not found:
        return None
    what = found[0].records[0].what
    intro = (
        f"`gradwire demo`: {what['workers']} workers learn the task “{what['task']}”; the last run of each machine. "
        "Loss and accuracy are of one short run with one seed, so a point or two say little."
    )
    items = [Item((link.machine, link.link), [_table(link)]) for link in found]
    shown: list[Block] = [Text([intro]), Choice(("machine", "link"), items)]
    return Section("demo", "Demo", shown, gist="the last `gradwire demo` of each machine")


def _table(link: Link) -> Table:
    times = {r.what["configuration"]: _seconds(r) for r in link.records}
    return Table(HEADINGS, [_row(r, times) for r in link.records])


def _row(record: Record, times: dict[str, float]) -> list[str]:
    q, outcome = record.quantiles, record.outcome
    return [
        record.what["configuration"],
        f"{q.p50 * 1e3:.1f} ({q.p20 * 1e3:.0f}-{q.p80 * 1e3:.0f})",
        *(f"{t / q.p50:.2f}" if t else "-" for t in (times.get(PLAIN), times.get(HALF, times.get("fp16")))),
        format_bytes(outcome["sent_bytes"]),
        f"{outcome['loss']:.3f}",
        f"{100 * outcome['accuracy']:.1f} %",
    ]
