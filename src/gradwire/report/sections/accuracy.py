"""Quality of training, as the records tell it: parameters, quantiles, and whatever plain values came with them."""

from __future__ import annotations

from collections.abc import Sequence

from gradwire.core.records import Record
from gradwire.report.load import machine
from gradwire.report.page import Choice, Item, Section, Table, Text


def section(records: Sequence[Record]) -> Section | None:
    """A table for each machine and unit."""
    groups: dict[tuple[str, str], list[Record]] = {}
    for record in records:
        groups.setdefault((machine(record), record.unit), []).append(record)
    if not groups:
        return None
    items = [Item(key, [_table(group)]) for key, group in groups.items()]
    intro = (
        "How well models learn; p20, p50 and p80 are in the unit named. Settings that all records share are left out."
    )
    return Section("accuracy", "Accuracy", [Text([intro]), Choice(("machine", "unit"), items)])


def _table(group: Sequence[Record]) -> Table:
    names = [n for n in dict.fromkeys(n for r in group for n in r.what) if _differs(n, group)]
    found = [
        n for n in dict.fromkeys(n for r in group for n in r.outcome) if any(_plain(r.outcome.get(n)) for r in group)
    ]
    rows = [
        [
            *(_written(r.what.get(n)) for n in names),
            *(f"{q:.4g}" for q in (r.quantiles.p20, r.quantiles.p50, r.quantiles.p80)),
            *(_written(r.outcome.get(n)) for n in found),
        ]
        for r in group
    ]
    return Table([*names, "p20", "p50", "p80", *found], rows, words=min(6, max(1, len(names))))


def _differs(name: str, group: Sequence[Record]) -> bool:
    return len(group) == 1 or len({str(r.what.get(name)) for r in group}) > 1


def _plain(value: object) -> bool:
    return isinstance(value, str | int | float | bool)


def _written(value: object) -> str:
    if value is None or isinstance(value, dict | list):
        return "-"
    return f"{value:.4g}" if isinstance(value, float) else str(value)
