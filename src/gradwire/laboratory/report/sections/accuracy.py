"""Quality of trainings: how good each codec gets, at what size, how soon, and what controllers did."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from gradwire.core.baselines import FP16, FP32, MAX_LOSS
from gradwire.core.errors import ConfigError
from gradwire.core.records import Record
from gradwire.laboratory.report import accuracy as pictures
from gradwire.laboratory.report.load import machine
from gradwire.laboratory.report.page import Block, Choice, Item, Section, Table, Text
from gradwire.planner.clock import Measured
from gradwire.planner.seeds import setups
from gradwire.planner.training import Run, readable
from gradwire.planner.tta import COMPARABLE_SHARE, LOSSY_NOTE, Utility, utility

KEYS = ("task", "set-up", "show")
INTRO = (
    "How well models learn with each codec. Best quality is the best of all evaluations on held-out data: its mean "
    "over seeds, and the largest distance of one of them. Differences are to FP16 gradients of the same set-up, and "
    f"positive where the codec is better; within: at most {MAX_LOSS:g} points worse (or {COMPARABLE_SHARE:.0%}, "
    "where quality is not in percent). Bits per element are what a worker hands over. NMSE is the error of the reduced "
    "gradient, against the exact mean of what codecs were given, as a share of its energy."
)
MOST_SWITCHES = 40


def section(records: Sequence[Record]) -> Section | None:
    """A choice of tasks; records of other makes in a plain table."""
    if not records:
        return None
    runs = [Run.of(r) for r in records if readable(r)]
    items = [item for group in setups(runs).values() for item in _items(group)]
    blocks: list[Block] = [Text([INTRO]), Choice(KEYS, items)] if items else []
    others = [r for r in records if not readable(r)]
    gist = f"quality of {len(records)} trainings: best, over rounds, over bytes, to a target"
    return Section("accuracy", "Accuracy", [*blocks, *([_plain_table(others)] if others else [])], gist=gist)


def _items(runs: Sequence[Run]) -> list[Item]:
    """Everything about one set-up."""
    table = _table(runs)
    key = (runs[0].task, pictures.setup_words(table))
    shows: dict[str, list[Block]] = {"best quality": [_qualities(table)], "over rounds": [pictures.over_rounds(table)]}
    by_bytes = pictures.over_bytes(table)
    if by_bytes is not None:
        shows["over bytes"] = [by_bytes]
    if all(r.measured for r in runs):
        shows |= _timed(runs)
    steered = [r for r in runs if r.controller is not None]
    if steered:
        shows["controllers"] = _controllers(steered)
    return [Item((*key, show), blocks) for show, blocks in shows.items()]


def _table(runs: Sequence[Run]) -> Utility:
    """Without time; without FP16, against FP32, or against nothing."""
    there = {r.codec for r in runs if r.controller is None}
    baseline = next((b for b in (FP16, FP32) if b in there), None)
    return utility(runs, None, baseline=baseline or FP16, targets=None if baseline else [runs[0].record.samples[-1]])


def _qualities(table: Utility) -> Table:
    order = sorted(table.rows, key=lambda r: r.best, reverse=table.higher_is_better)
    head = f"best {table.metric}, {table.unit}"
    over = {FP16: "to FP16", FP32: "to FP32"}[table.baseline]
    rows = [
        [
            row.group.first.controller or row.group.first.codec,
            row.group.first.memory,
            pictures.quality_cell(row),
            str(len(row.group.runs)),
            "-" if row.difference is None else f"{row.difference:+.2f}",
            pictures.within(row, table),
            pictures.number(row.bits_per_element),
            pictures.number(row.nmse),
        ]
        for row in order
    ]
    headings = ("codec", "memory", head, "seeds", over, "within", "bits per element", "NMSE")
    return Table(headings, rows, words=2)


def _timed(runs: Sequence[Run]) -> dict[str, list[Block]]:
    """Where the clock was measured, and in one place."""
    try:
        table = utility(runs, Measured.of(runs))
    except ConfigError:  # two places, or no FP16: no time to compare with
        return {}
    return {"time to accuracy": [pictures.over_time(table), _utility(table)]}


def _utility(table: Utility) -> Table:
    heads = [h for t in table.targets for h in (f"to {t:g} {table.unit}", "FP16 / this")]
    rows = []
    for row in table.rows:
        cells = [row.name, str(row.rank), pictures.duration(row.seconds_per_round)]
        for target in table.targets:
            reached = row.to_target[target]
            cells += [pictures.duration(reached.seconds if reached else None), pictures.number(row.speed_up[target])]
        rows.append(cells)
    lossy = [LOSSY_NOTE] if any(row.lossy for row in table.rows) else []
    return Table(("codec", "rank", "a round", *heads), rows, caption="; ".join([table.time_label, *lossy]))


def _controllers(runs: Sequence[Run]) -> list[Block]:
    blocks: list[Block] = []
    for run in runs:
        chart = pictures.levels(run)
        blocks += [chart] if chart is not None else []
        switches = run.outcome.get("switches") or []
        if switches:
            blocks.append(_switches(run, switches))
    return blocks or [Text(["No controller has switched anything."])]


def _switches(run: Run, switches: Sequence[dict[str, object]]) -> Table:
    """Together where tensors switched alike."""
    alike = Counter(tuple(str(s.get(n, "-")) for n in ("epoch", "from", "to", "why")) for s in switches)
    rows = [[epoch, before, after, why, str(n)] for (epoch, before, after, why), n in alike.items()]
    hidden = f"; {len(rows) - MOST_SWITCHES} more lines in the record" if len(rows) > MOST_SWITCHES else ""
    caption = f"Switches of {run.controller}, seed {run.seed}{hidden}"
    return Table(("epoch", "from", "to", "why", "tensors"), rows[:MOST_SWITCHES], caption=caption, words=4)


def _plain_table(records: Sequence[Record]) -> Table:
    """Of records that are not of a training as we know it."""
    names = list(dict.fromkeys(n for r in records for n in r.what))
    rows = [
        [
            machine(r),
            *(str(r.what.get(n, "-")) for n in names[:5]),
            *(f"{q:.4g}" for q in (r.quantiles.p20, r.quantiles.p50, r.quantiles.p80)),
            r.unit,
        ]
        for r in records
    ]
    return Table(("machine", *names[:5], "p20", "p50", "p80", "unit"), rows, words=1 + len(names[:5]))
