"""A user's own trainings: what each sent and took, and how that went on from step to step."""

from __future__ import annotations

from collections.abc import Sequence

from gradwire.core.records import Record
from gradwire.core.training_records import pooled, trainings
from gradwire.core.units import format_bytes, format_milliseconds, format_rate
from gradwire.laboratory.report.chart import Axis, Chart, Series
from gradwire.laboratory.report.load import machine
from gradwire.laboratory.report.page import Block, Choice, Item, Section, Table, Text

HEADINGS = (
    "training",
    "codec",
    "ranks",
    "network",
    "steps seen",
    "ms a step (p20-p80)",
    "sent a step",
    "plain DDP / this, bytes",
    "hidden, ms",
    "exposed, ms",
)
INTRO = (
    "Written by handle.watch(record=...). A step is the time between the beginnings of two, on rank 0. Exposed is the "
    "part of the exchange for which the backward pass waits. Two trainings are two runs: what lies between them may be "
    "more than the codec.",
)


def section(records: Sequence[Record]) -> Section | None:
    """A line for each training, then its steps."""
    found = trainings(records)
    if not found:
        return None
    table = Table(HEADINGS, [_row(pooled(lines)) for lines in found], words=4)
    items = [Item((_name(lines[0]), lines[0].time), [_chart(lines)]) for lines in found if len(lines) > 1]
    shown: list[Block] = [Choice(("training", "begun"), items)] if items else []
    gist = f"steps, bytes and exchange of {', '.join(dict.fromkeys(_name(lines[0]) for lines in found))}"
    return Section("trainings", "Your trainings", [Text(INTRO), table, *shown], gist=gist)


def sentences(records: Sequence[Record]) -> list[str]:
    """One for each training, for the verdict."""
    return [_sentence(pooled(lines)) for lines in trainings(records)]


def _sentence(record: Record) -> str:
    outcome, q = record.outcome, record.quantiles
    waits = outcome["exposed_seconds"]
    told = "" if waits is None else f", of which it waits {format_milliseconds(waits)} for the exchange"
    ratio = _ratio(record)
    less = "" if ratio is None else f", {ratio:.3g} times less than plain DDP would"
    return (
        f"Your training of {_name(record)} sends {format_bytes(outcome['sent_bytes'])} a step{less}; a step takes "
        f"{format_milliseconds(q.p50)}{told}. Whether that pays, only a run without the codec could tell."
    )


def _name(record: Record) -> str:
    return f"{record.what['model']}, {record.what['workers']} ranks, {record.what['configuration']}"


def _ratio(record: Record) -> float | None:
    sent, plain = record.outcome["sent_bytes"], record.outcome["plain_bytes"]
    return plain / sent if sent else None


def _row(record: Record) -> list[str]:
    what, outcome, q, ratio = record.what, record.outcome, record.quantiles, _ratio(record)
    rate = what.get("bits_per_second")
    return [
        str(what["model"]),
        str(what["configuration"]),
        str(what["workers"]),
        "not told" if rate is None else format_rate(rate),
        f"{len(record.samples):,}",
        f"{q.p50 * 1e3:.1f} ({q.p20 * 1e3:.1f}-{q.p80 * 1e3:.1f})",
        format_bytes(outcome["sent_bytes"]),
        "-" if ratio is None else f"{ratio:.3g}",
        *(
            "-" if outcome[name] is None else f"{outcome[name] * 1e3:.1f}"
            for name in ("hidden_seconds", "exposed_seconds")
        ),
    ]


def _chart(lines: Sequence[Record]) -> Chart:
    steps = [float(r.outcome["step"]) for r in lines]
    curves = [Series("step", steps, [r.quantiles.p50 for r in lines], role="baseline")]
    curves += [
        Series(name, steps, [r.outcome[f"{name}_seconds"] for r in lines])
        for name in ("hidden", "exposed")
        if any(r.outcome[f"{name}_seconds"] is not None for r in lines)
    ]
    return Chart(
        f"Seconds of a step: {_name(lines[0])}",
        Axis("step"),
        Axis("seconds", unit="seconds"),
        curves,
        subtitle=machine(lines[0]),
        notes=("hidden, exposed: of the exchange, behind the backward pass and after it.",),
    )
