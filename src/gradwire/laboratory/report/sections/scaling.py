"""How steps and speed-ups change with the rate of links and the number of hosts."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from gradwire.core.baselines import HALF, NOTHING
from gradwire.core.records import Record
from gradwire.laboratory.report.chart import Axis, Chart, HeatMap, Series
from gradwire.laboratory.report.page import Block, Choice, Item, Section, Text
from gradwire.laboratory.report.steps import Run, is_baseline, label, main_sweep, runs

KEYS = ("machine", "model", "over", "at", "show")
INTRO = (
    "Each point is a run of its own. A speed-up is formed within its run, from FP16 DDP's step and the codec's; curves "
    "of step times put runs side by side that were made one after the other."
)


def section(records: Sequence[Record]) -> Section | None:
    """Curves over the rate, and over hosts; only where there are at least two points."""
    found = [r for r in main_sweep(runs(records)) if r.set_up.bits_per_second is not None]
    items = [*_items(found, "rate"), *_items(found, "hosts")]
    if not items:
        return None
    shown: list[Block] = [Text([INTRO]), Choice(KEYS, items, start=_start(items))]
    return Section("scaling", "Scaling", shown, gist="speed-ups and times over the links' rate and the number of hosts")


def _start(items: Sequence[Item]) -> int:
    """The first machine's last speed-up over rates: the largest number of hosts."""
    wanted = (items[0].values[0], "rate", "speed-up")
    fitting = [i for i, item in enumerate(items) if (item.values[0], item.values[2], item.values[4]) == wanted]
    return fitting[-1] if fitting else 0


def _items(found: Sequence[Run], over: str) -> list[Item]:
    """One group of runs for each curve's sheet: all that agree in everything but `over`."""
    groups: dict[tuple[str, str, str], list[Run]] = {}
    for run in found:
        groups.setdefault((run.set_up.machine, run.set_up.model, _fixed(run, over, found)), []).append(run)
    items = []
    for (where, model, fixed), group in groups.items():
        if len({_at(run, over) for run in group}) > 1:
            values = (where, model, over, fixed)
            items += [Item((*values, show), [draw(group, over)]) for show, draw in SHOWS.items()]
    return items


def _fixed(run: Run, over: str, found: Sequence[Run]) -> str:
    """What is the same for all points of a sheet, as far as it is not the same for all sheets."""
    s = run.set_up
    told = [s.place if over == "rate" else s.rate]
    if over == "hosts" and s.ranks_per_host > 1:
        told.append(f"{s.ranks_per_host} ranks on each")
    if any(other.set_up.batch != s.batch for other in found if other.set_up.model == s.model):
        told.append(f"batch {s.batch}")
    return ", ".join(told)


def _at(run: Run, over: str) -> float:
    return float(run.set_up.bits_per_second or 0) if over == "rate" else float(run.set_up.hosts)


def _axis(over: str) -> Axis:
    if over == "rate":
        return Axis("rate of each host's link", log=True, unit="rate")
    return Axis("hosts", log=True, unit="count")


def _title(group: Sequence[Run], over: str) -> str:
    s = group[0].set_up
    return f"{s.model}, batch {s.batch} a rank, {s.place if over == 'rate' else s.rate}"


def _lines(group: Sequence[Run], over: str, value: Callable[[Run, Record], float | None]) -> list[Series]:
    """A curve for each configuration, in the order of their first records."""
    found: dict[str, dict[float, float | None]] = {}
    roles: dict[str, str] = {}
    for run in sorted(group, key=lambda run: _at(run, over)):
        for record in run.records:
            found.setdefault(label(record), {})[_at(run, over)] = value(run, record)
            baseline = "reference" if record.what["configuration"] == NOTHING else "baseline"
            roles[label(record)] = baseline if is_baseline(record) else "codec"
    return [Series(name, list(at), list(at.values()), role=roles[name]) for name, at in found.items()]


def _times(group: Sequence[Run], over: str) -> Chart:
    return Chart(
        f"Step time over the {over}: {_title(group, over)}",
        _axis(over),
        Axis("step, median", log=True, unit="seconds"),
        _lines(group, over, lambda run, record: record.quantiles.p50),
        subtitle=group[0].set_up.machine,
    )


def _ratios(group: Sequence[Run], over: str) -> list[Series]:
    """Against FP16 DDP; without the step that exchanges nothing, which would press all others together."""
    found = _lines(group, over, lambda run, record: run.against(record, HALF))
    return [s for s in found if s.label != NOTHING and any(y is not None for y in s.ys)]


def _speed_ups(group: Sequence[Run], over: str) -> Chart:
    return Chart(
        f"Speed-up over the {over}: {_title(group, over)}",
        _axis(over),
        Axis("times as fast as FP16 DDP", log=True, unit="ratio"),
        _ratios(group, over),
        subtitle=group[0].set_up.machine,
        notes=("Above 1: faster than FP16 DDP in the same run.",),
    )


def _map(group: Sequence[Run], over: str) -> HeatMap:
    shown = [s for s in _ratios(group, over) if s.label != HALF]
    columns = sorted({x for s in shown for x in s.xs})
    rows = [dict(zip(s.xs, s.ys, strict=True)) for s in shown]
    return HeatMap(
        f"All codecs over the {over}: {_title(group, over)}",
        _axis(over),
        Axis("configuration"),
        columns,
        [s.label for s in shown],
        [[row.get(x) for x in columns] for row in rows],
        "times as fast as FP16 DDP",
        subtitle=group[0].set_up.machine,
        notes=("Blue: faster than FP16 DDP in the same run; orange: slower.",),
    )


SHOWS: dict[str, Callable[[Sequence[Run], str], Chart | HeatMap]] = {
    "speed-up": _speed_ups,
    "speed-up, as a map": _map,
    "step time": _times,
}
