"""docs/faults.md: what came of an hour of faults, of long trainings and of planted bugs, and what checksums cost."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable
from pathlib import Path

from gradwire.core.records import Record, load

Source = Callable[[Path, Record], str]
NAMES = {
    "kill": "a rank is killed",
    "fail": "a rank fails, and its process lives on",
    "stop": "a rank is stopped for less than the time-out",
    "stop_for_long": "a rank is stopped for longer",
    "slow": "a link is slowed 5 to 100 times",
    "cut": "a link is cut for less than the time-out",
    "cut_for_long": "a link is cut for longer",
    "tear": "all ranks are killed, and a checkpoint is torn",
}
THEMES = {
    "codecs": "codecs and kernels: what is sent, what comes out, what is claimed",
    "state": "state of good, skipped and abandoned steps",
    "units": "units: loss scale, learning rate, what an owner repays",
    "dtypes": "types of numbers, at the casts",
    "places": "which elements: off by one, or in another order",
    "graphs": "CUDA graphs: stale keys, scales and memories",
    "exchanges": "lanes, strategies, bytes, ranks that stop",
    "checkpoints": "checkpoints: saved, refused, resumed",
    "controllers": "controllers",
    "planner": "the planner's model",
    "traps": "[traps](traps.md): what is done about each is taken out",
}


def block(root: Path, source: Source) -> str:
    """The newest hour of faults, then all soaks, machine by machine."""
    hours, soaks = (sorted((root / "results").glob(f"{kind}_*.jsonl")) for kind in ("faults", "soak"))
    parts = [_hour(path, source) for path in hours[-1:]]
    return "\n".join([*parts, *(_soak(path, source) for path in soaks)])


def _hour(path: Path, source: Source) -> str:
    record = load(path)[-1]
    what, out = record.what, record.outcome
    rows = [
        f"| {NAMES[kind]} | {count} | {_seconds(out['ends'].get(kind, ()))} |\n"
        for kind, count in sorted(out["faults"].items())
    ]
    return (
        f"**{what['seconds'] / 60:.0f} minutes**, {what['workers']} hosts at {what['rate']}, `{what['codec']}`, a "
        f"time-out of {out['timeout']:.0f} s: {sum(out['faults'].values())} faults, {out['restarts']} restarts, "
        f"{out['steps']:,} steps. {out['resumed_bit_for_bit']} of {out['resumed']} times the training resumed "
        f"bit for bit, {out['checkpoints_as_undisturbed']} of {out['checkpoints']} checkpoints have the digest of the "
        f"undisturbed run, {out['refused_checkpoints']} torn ones were refused; hangs: {out['hangs']}. Of the "
        f"gradients at most {out['most_lost']:.0e} was neither applied nor owed, which is rounding. Ranks ended "
        f"with {_ends(out['said'])}; an `Asked` is the planted failure, a `RuntimeError` one of an "
        "exchange of torch's own.\n\n"
        "| fault | times | seconds until the last rank said why it ended |\n|---|---|---|\n"
        f"{''.join(rows)}\n{source(path, record)}"
    )


def _ends(said: dict[str, int]) -> str:
    """Names of errors, each with what the record says of it, and how often."""
    named = ((*kind.partition(" "), count) for kind, count in said.items())
    return ", ".join(f"`{name}`{space}{told} {count} times" for name, space, told, count in named)


def _seconds(ends: tuple[float, ...]) -> str:
    return f"{min(ends):.1f} to {max(ends):.1f}" if ends else "-"


def _soak(path: Path, source: Source) -> str:
    records = load(path)
    rows = [
        f"| `{r.what['codec']}` | {r.outcome['steps']:,} | {r.outcome['equal']} of {r.outcome['checks']} | "
        f"{(r.outcome['grown_bytes'] + r.outcome['device_grown_bytes']) / 1e6:+.1f} | {r.outcome['drift']:.3f} | "
        f"{r.outcome['noise']:.3f} |\n"
        for r in records
    ]
    return (
        "| codec | steps | checks with equal replicas | MB grown after the first fifth | drift: last tenth / first "
        "| noise (p80 - p20) / p50 |\n|---|---|---|---|---|---|\n"
        f"{''.join(rows)}\n{source(path, records[-1])}"
    )


def planted(root: Path, source: Source) -> str:
    """The newest campaign of planted bugs."""
    paths = sorted((root / "results").glob("mutants_*.jsonl"))
    if not paths:
        return "No campaign is recorded.\n"
    every = load(paths[-1])
    records = [r for r in every if r.time == every[-1].time]
    planted, survivors = (
        sum(r.outcome["mutants"] for r in records),
        [s for r in records for s in r.outcome["survivors"]],
    )
    rows = [
        f"| {THEMES[r.what['theme']]} | {r.outcome['mutants']} | {len(r.outcome['caught_by'])} | "
        f"{r.quantiles.p50:.0f} |\n"
        for r in records
    ]
    left = f" These survived: {'; '.join(survivors)}." if survivors else ""
    return (
        f"**{planted} bugs**, {planted - len(survivors)} of them caught, in {records[-1].outcome['seconds'] / 60:.0f} "
        f"minutes, {records[-1].what['jobs']} at a time.{left}\n\n"
        "| bugs in | planted | caught | seconds for one, in the median |\n|---|---|---|---|\n"
        f"{''.join(rows)}\n{source(paths[-1], records[-1])}"
    )


def checksums(root: Path, source: Source) -> str:
    """Steps with checksums beside the same ones without, which were made in turns, from the newest record."""
    path = sorted((root / "results").glob("checksums_*.jsonl"))[-1]
    records = load(path)
    steps = {_set_up(record): record for record in records}
    rows = [
        f"| `{codec}` | {f'{rate / 1e6:.0f} Mbit/s' if rate else 'loopback'} | "
        f"{1000 * steps[rate, codec, False].quantiles.p50:.0f} | {_more(steps[rate, codec, False], record)} |\n"
        for (rate, codec, checked), record in steps.items()
        if checked
    ]
    return (
        "| codec | links | ms a step without | ms more with checksums |\n|---|---|---|---|\n"
        f"{''.join(rows)}\n{source(path, records[-1])}"
    )


def _set_up(record: Record) -> tuple[float | None, str, bool]:
    what = record.what
    return what["bits_per_second"], what["configuration"], what.get("checksum", False)


def _more(without: Record, checked: Record) -> str:
    """The median difference of the pairs, and its interval: two standard deviations of a rank, 95 %."""
    pairs = sorted(1000 * (b - a) for a, b in zip(without.samples, checked.samples, strict=True))
    middle, around = len(pairs) / 2, math.sqrt(len(pairs))
    low, high = pairs[math.floor(middle - around)], pairs[math.ceil(middle + around) - 1]
    return f"{statistics.median(pairs):.1f} ({low:.1f} to {high:.1f})"
