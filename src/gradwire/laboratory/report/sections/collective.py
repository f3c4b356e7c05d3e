"""One gradient over the network: time, bytes and memory by number of hosts."""

from __future__ import annotations

from collections.abc import Sequence

from gradwire.core.baselines import DDP
from gradwire.core.records import Record
from gradwire.core.units import format_bytes, format_rate
from gradwire.laboratory.report.chart import Axis, Chart, Series
from gradwire.laboratory.report.load import machine, newest
from gradwire.laboratory.report.page import Block, Choice, Item, Section, Table, Text

KEYS = ("machine", "gradient", "rate", "ranks on each host")
PARAMETERS = ("codec", "strategy", "elements", "hosts", "ranks_per_host", "bits_per_second")
HEADINGS = ("codec", "strategy", "hosts", "ms (p20-p80)", "left one host", "memory at the peak")


def section(records: Sequence[Record]) -> Section | None:
    """For each machine, size and rate: a table, and curves where several numbers of hosts were measured."""
    groups: dict[tuple[str, str, str, str], list[Record]] = {}
    for record in newest(records, *PARAMETERS):
        what = record.what
        rate = "loopback" if what["bits_per_second"] is None else format_rate(what["bits_per_second"])
        key = (machine(record), f"{format_bytes(4 * what['elements'])} FP32", rate, str(what["ranks_per_host"]))
        groups.setdefault(key, []).append(record)
    if not groups:
        return None
    items = [Item(key, _blocks(key, group)) for key, group in groups.items()]
    intro = (
        "One gradient, exchanged again and again, without a model. Bytes are those that the host's interface counts."
    )
    gist = f"time and bytes of one exchange, by hosts; {len(records)} records"
    return Section("collective", "One gradient", [Text([intro]), Choice(KEYS, items)], gist=gist)


def _blocks(key: tuple[str, str, str, str], group: Sequence[Record]) -> list[Block]:
    ordered = sorted(group, key=lambda r: (r.what["codec"], r.what["strategy"], r.what["hosts"]))
    table = Table(HEADINGS, [_row(r) for r in ordered], words=2)
    several = len({r.what["hosts"] for r in group}) > 1
    return [_curves(key, ordered), table] if several else [table]


def _curves(key: tuple[str, str, str, str], ordered: Sequence[Record]) -> Chart:
    found: dict[tuple[str, str], list[Record]] = {}
    for record in ordered:
        found.setdefault((record.what["codec"], record.what["strategy"]), []).append(record)
    series = [
        Series(
            f"{codec}, {strategy}",
            [r.what["hosts"] for r in records],
            [r.quantiles.p50 for r in records],
            role="baseline" if codec in DDP else "codec",
        )
        for (codec, strategy), records in found.items()
    ]
    where, size, rate, ranks = key
    return Chart(
        f"One gradient of {size} at {rate}" + ("" if ranks == "1" else f", {ranks} ranks on each host"),
        Axis("hosts", log=True, unit="count"),
        Axis("time, median", log=True, unit="seconds"),
        series,
        subtitle=where,
    )


def _row(record: Record) -> list[str]:
    what, q, outcome = record.what, record.quantiles, record.outcome
    return [
        what["codec"],
        what["strategy"],
        str(what["hosts"]),
        f"{q.p50 * 1e3:.1f} ({q.p20 * 1e3:.1f}-{q.p80 * 1e3:.1f})",
        format_bytes(outcome["interface_bytes"]) if outcome["interface_bytes"] is not None else "-",
        format_bytes(outcome["peak_bytes"]) if outcome["peak_bytes"] is not None else "-",
    ]
