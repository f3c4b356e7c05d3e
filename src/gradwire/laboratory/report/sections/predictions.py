"""What the performance model said, against what was measured."""

from __future__ import annotations

from collections.abc import Sequence

from gradwire.core.records import Record, quantile
from gradwire.core.units import format_rate
from gradwire.laboratory.report.chart import Axis, Chart, Series
from gradwire.laboratory.report.load import machine
from gradwire.laboratory.report.page import Block, Choice, Fold, Item, Section, Table, Text
from gradwire.laboratory.report.steps import is_baseline, label

HEADINGS = ("configuration", "settings", "median error", "largest error", "predicted / measured, in the middle")


def section(records: Sequence[Record]) -> Section | None:
    """For each machine and profile: the points beside the diagonal, and errors by configuration."""
    groups: dict[tuple[str, str], list[Record]] = {}
    for record in records:
        groups.setdefault((machine(record), str(record.outcome["profile"])), []).append(record)
    if not groups:
        return None
    items = [Item(key, [_scatter(key, group), _errors(group), *_calibration(group)]) for key, group in groups.items()]
    intro = "An error is how far the predicted step is from the measured one, as a share of the latter."
    shown: list[Block] = [Text([intro]), Choice(("machine", "profile"), items)]
    errors = [abs(float(r.outcome["error"])) for r in records]
    gist = f"{len(records)} settings, off by {100 * quantile(errors, 0.5):.0f} % in the middle"
    return Section("predictions", "Predicted against measured", shown, gist=gist)


def _by_label(group: Sequence[Record]) -> dict[str, list[Record]]:
    """Baselines first."""
    found: dict[str, list[Record]] = {}
    for record in sorted(group, key=lambda r: not is_baseline(r)):
        found.setdefault(label(record), []).append(record)
    return found


def _scatter(key: tuple[str, str], group: Sequence[Record]) -> Chart:
    seconds = [s for r in group for s in (r.outcome["measured_seconds"], r.quantiles.p50)]
    ends = (min(seconds) / 1.1, max(seconds) * 1.1)
    clouds = [
        Series(
            name,
            [r.outcome["measured_seconds"] for r in found],
            [r.quantiles.p50 for r in found],
            points=True,
            names=[_set_up(r) for r in found],
        )
        for name, found in _by_label(group).items()
    ]
    return Chart(
        "Predicted against measured step time",
        Axis("measured", log=True, unit="seconds"),
        Axis("predicted", log=True, unit="seconds"),
        [Series("equal", ends, ends, role="reference"), *clouds],
        subtitle=f"{key[0]}; profile {key[1]}",
        notes=("Above the line: predicted slower than it was.",),
    )


def _set_up(record: Record) -> str:
    what = record.what
    rate = "loopback" if what["bits_per_second"] is None else format_rate(what["bits_per_second"])
    return f"{what['model']}, {what['hosts']} hosts, {rate}"


def _errors(group: Sequence[Record]) -> Table:
    rows = [_row(name, found) for name, found in _by_label(group).items()]
    return Table(HEADINGS, [*rows, _row("all", group)])


def _row(name: str, found: Sequence[Record]) -> list[str]:
    signed = [float(r.outcome["error"]) for r in found]
    sizes = [abs(e) for e in signed]
    return [
        name,
        str(len(found)),
        f"{100 * quantile(sizes, 0.5):.1f} %",
        f"{100 * max(sizes):.1f} %",
        f"{1 + quantile(signed, 0.5):.2f}",
    ]


def _calibration(group: Sequence[Record]) -> list[Fold]:
    """What the model had seen of these machines before it was asked."""
    told = dict.fromkeys(_words(r.outcome["calibrated_on"]) for r in group if r.outcome.get("calibrated_on"))
    return [Fold("What the profile was calibrated on", [Text([f"{'; '.join(told)}."])])] if told else []


def _words(value: object) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{k} {_words(v)}" for k, v in value.items())
    if isinstance(value, list | tuple):
        return ", ".join(map(_words, value))
    return f"{value:.3g}" if isinstance(value, float) else str(value)
