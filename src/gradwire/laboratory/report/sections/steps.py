"""Step times against the baselines, one set-up at a time, and where they go."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from gradwire.core.baselines import HALF, NOTHING, PLAIN
from gradwire.core.records import Record
from gradwire.core.units import format_bytes, format_milliseconds
from gradwire.laboratory.report.chart import Axis, Bars, HeatMap, Part
from gradwire.laboratory.report.page import Block, Choice, Item, Section, Table, Text
from gradwire.laboratory.report.steps import Run, SetUp, is_baseline, label, main_sweep, runs

IN_STEP = ("forward", "backward", "wait", "optimizer")
IN_THREAD = {"encode": 5, "communicate": 2, "decode": 6}  # with the numbers of their colours
HEADINGS = ("", "ms a step (p20-p80)", "fp32 DDP / this", "fp16 DDP / this", "sent a step", "left the host")
KEYS = ("machine", "model", "hosts", "rate", "batch a rank", "run")
STEP_NOTES = (
    "wait: what the exchange adds to the backward pass, whose own time is that of a step without exchange. apart: what "
    "the slowest rank, whose step this is, takes longer than ranks do on average. ×: FP16 DDP's step over this one's.",
)
THREAD_NOTES = (
    "Seconds of the thread that compresses. It runs beside the backward pass, so these do not add up to the step; "
    "communicate includes waiting for others.",
)


def section(records: Sequence[Record]) -> Section | None:
    """A map of the fastest codecs, then bars and numbers of every run."""
    found = [run for run in runs(records) if len(run.records) > 1]
    if not found:
        return None
    several = Counter(run.set_up for run in found)
    items = [Item(_values(run, several[run.set_up] > 1), _blocks(run)) for run in found]
    shown = Choice(KEYS, items, start=_start(found))
    blocks = [*_maps(main_sweep(found)), Text(["Every run, one at a time:"]), shown]
    gist = f"maps of the fastest codec, and every step's parts, in {len(found)} runs"
    return Section("steps", "Step times", blocks, gist=gist)


def _values(run: Run, several: bool) -> tuple[str, ...]:
    s = run.set_up
    told = f"{len(run.ours)} codecs, {run.time[:10]} {run.time[11:16]}" if several else "-"
    return (s.machine, s.model, s.place, s.rate, str(s.batch), told)


def _start(found: Sequence[Run]) -> int:
    """The set-up shown first: of those with most codecs and hosts, the middle one."""
    most = max((len(r.ours), r.set_up.hosts) for r in found)
    fitting = [i for i, r in enumerate(found) if (len(r.ours), r.set_up.hosts) == most]
    return fitting[len(fitting) // 2]


# -------------------------------------------------------------------- the fastest codec of each set-up


def _maps(counted: Sequence[Run]) -> list[Block]:
    maps = [_map(where, [r for r in counted if r.set_up.machine == where]) for where in _machines(counted)]
    return [m for m in maps if m is not None]


def _machines(found: Sequence[Run]) -> list[str]:
    return list(dict.fromkeys(run.set_up.machine for run in found))


def _map(where: str, found: Sequence[Run]) -> HeatMap | None:
    best = {(_line(run.set_up), run.set_up.rate): run.best for run in found if run.best}
    if not best:
        return None
    rates = sorted({r.set_up for r in found}, key=lambda s: s.bits_per_second or float("inf"))
    columns = list(dict.fromkeys(s.rate for s in rates))
    lines = list(dict.fromkeys(line for line, _ in best))
    cells = [[best.get((line, rate)) for rate in columns] for line in lines]
    return HeatMap(
        "The fastest codec of each set-up",
        Axis("rate of each host's link"),
        Axis("model and hosts"),
        columns,
        lines,
        [[cell[1] if cell else None for cell in row] for row in cells],
        "times as fast as DDP",
        names=[[label(cell[0]) if cell else "" for cell in row] for row in cells],
        subtitle=where,
        notes=("Against the faster of FP32 and FP16 DDP, in the same run. Hollow: DDP is faster.",),
    )


def _line(set_up: SetUp) -> str:
    return f"{set_up.model}, {set_up.place}"


# -------------------------------------------------------------------- one run


def _blocks(run: Run) -> list[Block]:
    ordered = sorted(run.records, key=lambda r: r.quantiles.p50)
    counted = [r for r in ordered if r.outcome["parts_seconds"].get("encode") is not None]
    blocks: list[Block] = [_step_bars(run, ordered)]
    if counted:
        blocks.append(_thread_bars(run, counted))
    return [*blocks, Table(HEADINGS, [_row(run, r) for r in ordered])]


def _role(record: Record) -> str:
    if record.what["configuration"] == NOTHING:
        return "reference"
    return "baseline" if is_baseline(record) else "codec"


def _step_bars(run: Run, ordered: Sequence[Record]) -> Bars:
    parts = [Part(p, [r.outcome["parts_seconds"].get(p) for r in ordered]) for p in IN_STEP]
    known = [sum(p.values[i] or 0.0 for p in parts) for i in range(len(ordered))]
    apart = [max(0.0, r.quantiles.p50 - seconds) for r, seconds in zip(ordered, known, strict=True)]
    return Bars(
        f"Step time: {run.set_up}",
        Axis("step, median", unit="seconds"),
        [label(r) for r in ordered],
        [*parts, Part("apart", apart)],
        roles=[_role(r) for r in ordered],
        ends=[_end(run, r) for r in ordered],
        subtitle=run.set_up.machine,
        notes=STEP_NOTES,
    )


def _end(run: Run, record: Record) -> str:
    ratio = run.against(record, HALF)
    return format_milliseconds(record.quantiles.p50) + ("" if ratio is None else f" · {ratio:.2f}×")


def _thread_bars(run: Run, counted: Sequence[Record]) -> Bars:
    return Bars(
        f"Encode, communicate, decode: {run.set_up}",
        Axis("seconds of a step in the compressing thread", unit="seconds"),
        [label(r) for r in counted],
        [Part(p, [r.outcome["parts_seconds"].get(p) for r in counted], hue) for p, hue in IN_THREAD.items()],
        ends=[format_milliseconds(sum(r.outcome["parts_seconds"].get(p) or 0.0 for p in IN_THREAD)) for r in counted],
        subtitle=run.set_up.machine,
        notes=THREAD_NOTES,
    )


def _row(run: Run, record: Record) -> list[str]:
    q, outcome = record.quantiles, record.outcome
    ratios = [run.against(record, b) for b in (PLAIN, HALF)]
    return [
        label(record),
        f"{q.p50 * 1e3:.1f} ({q.p20 * 1e3:.1f}-{q.p80 * 1e3:.1f})",
        *("-" if ratio is None else f"{ratio:.2f}" for ratio in ratios),
        "-" if outcome["sent_bytes"] is None else format_bytes(outcome["sent_bytes"]),
        "-" if outcome["interface_bytes"] is None else format_bytes(outcome["interface_bytes"]),
    ]
