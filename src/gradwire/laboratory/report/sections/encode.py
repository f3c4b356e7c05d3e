"""What codecs cost beside the network."""

from __future__ import annotations

from collections.abc import Sequence

from gradwire.core.records import Record
from gradwire.laboratory.report.load import machine, newest
from gradwire.laboratory.report.page import Choice, Item, Section, Table, Text

HEADINGS = (
    "codec",
    "encode ms",
    "reduce ms",
    "decode ms",
    "all ms",
    "bits an element",
    "times a copy",
    "plain torch / this",
)
KEYS = ("machine", "device", "elements", "memory")
PARAMETERS = ("codec", "elements", "workers", "strategy", "memory", "threads", "device")
INTRO = (
    "Time of one worker on one gradient, fastest first, from the newest record of each. “Times a copy” is all of it "
    "over one copy of the gradient in the same run; the last column is the same codec in plain torch over this one, "
    "which has compiled kernels on a CPU."
)


def section(records: Sequence[Record]) -> Section | None:
    """A table for each machine, device, size and memory."""
    groups: dict[tuple[str, str, int, str], list[Record]] = {}
    for record in newest(records, *PARAMETERS):
        what = record.what
        where = (machine(record), what["device"], what["elements"], str(what.get("memory", "default")))
        groups.setdefault(where, []).append(record)
    if not groups:
        return None
    ordered = sorted(groups.items(), key=lambda pair: (pair[0][:2], -pair[0][2]))  # the largest first
    items = [
        Item((where, device, f"{elements:,}", memory), [Table(HEADINGS, _rows(group))])
        for (where, device, elements, memory), group in ordered
    ]
    gist = f"milliseconds of each codec on one gradient; {len(records)} records"
    return Section("encode", "What encoding costs", [Text([INTRO]), Choice(KEYS, items)], gist=gist)


def _rows(group: Sequence[Record]) -> list[list[str]]:
    return [_row(r) for r in sorted(group, key=lambda r: r.quantiles.p50)]


def _row(record: Record) -> list[str]:
    outcome, total = record.outcome, record.quantiles.p50
    parts = [outcome["seconds"].get(p) for p in ("encode", "reduce", "decode")]
    plain, copy = outcome.get("reference_total_seconds"), outcome["copy_seconds"]
    return [
        record.what["codec"],
        *("-" if p is None else f"{p * 1e3:.3g}" for p in parts),
        f"{total * 1e3:.3g}",
        f"{8 * outcome['payload_bytes'] / record.what['elements']:.3g}",
        f"{total / copy:.1f}" if copy else "-",
        f"{plain / total:.1f}" if plain else "-",
    ]
