"""Pictures and cells of trainings: quality over rounds, bytes and time, and a controller's levels over epochs.

Accuracy in percent is drawn as error, 100 % less it, on a logarithmic axis, as perplexity is: lower is better, and the
last point, about which codecs differ, has as much room as the first.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from gradwire.laboratory.report.chart import Axis, Chart, Series
from gradwire.planner.training import Run
from gradwire.planner.tta import Row, Utility, is_baseline, slack, soonest

TIMES = ((7200.0, 3600.0, "hours"), (180.0, 60.0, "minutes"), (0.0, 1.0, "seconds"))  # from so many seconds on
CURVES = 8  # beside the baselines: more cannot be told apart


def over_rounds(table: Utility) -> Chart:
    """A curve for each codec; of several seeds, their mean."""
    return _chart(
        table, "rounds", Axis("rounds", unit="count"), lambda row: [float(p.rounds) for p in row.curve.points]
    )


def over_bytes(table: Utility) -> Chart | None:
    """Over what one worker has handed over; None where no record counts it."""
    rows = [r for r in table.rows if r.group.first.outcome.get("payload_bytes")]
    if not rows:
        return None
    axis = Axis("bytes that one worker has handed over", log=True, unit="bytes")
    return _chart(table, "bytes", axis, lambda row: list(row.group.first.outcome["payload_bytes"]), rows)


def over_time(table: Utility) -> Chart:
    """The curves of time to accuracy."""
    rows = [r for r in table.rows if r.curves]
    longest = max(p.seconds for r in rows for p in r.curve.points)
    factor, name = next((f, n) for least, f, n in TIMES if longest >= least)
    axis = Axis(f"{name}, {table.time_label}", log=True)
    return _chart(table, "time", axis, lambda row: [p.seconds / factor for p in row.curve.points], rows)


def _chart(
    table: Utility, over: str, x: Axis, xs: Callable[[Row], Sequence[float]], rows: Sequence[Row] | None = None
) -> Chart:
    known = sorted(table.rows if rows is None else rows, key=lambda r: (not is_baseline(r), soonest(r)))
    shown = known[: CURVES + sum(map(is_baseline, known))]
    label, log, draw = _axis(table)
    return Chart(
        f"{_title(table)}: {label.partition(',')[0]} over {over}",
        x,
        Axis(label, log=log),
        [_series(row, xs(row), draw, log) for row in shown],
        subtitle=setup_words(table),
        notes=_notes(table, len(known) - len(shown)),
    )


def _series(row: Row, xs: Sequence[float], draw: Callable[[float], float], log: bool) -> Series:
    """Points from where both sides can be drawn."""
    ys = [draw(p.quality) for p in row.curve.points]
    kept = [(x, y if y > 0 or not log else None) for x, y in zip(xs, ys, strict=False) if x > 0]
    role = "baseline" if is_baseline(row) else "codec"
    return Series(row.label, [x for x, _ in kept], [y for _, y in kept], role=role, note=row.note)


def _axis(table: Utility) -> tuple[str, bool, Callable[[float], float]]:
    """Label, whether it is logarithmic, and what is drawn of a quality."""
    if table.unit == "%" and table.higher_is_better:
        return f"error, 100 % less {table.metric}", True, lambda quality: 100.0 - quality
    return f"{table.metric}, {table.unit}", not table.higher_is_better, lambda quality: quality


def _notes(table: Utility, left_out: int) -> tuple[str, ...]:
    notes = []
    if any(len(r.group.runs) > 1 for r in table.rows):
        notes.append("Where there are several seeds, the mean over them.")
    if left_out:
        notes.append(f"The {CURVES} that reach the targets soonest; {left_out} more are in the table.")
    return tuple(notes)


def _title(table: Utility) -> str:
    return str(table.setup["task"])


def setup_words(table: Utility) -> str:
    """Data, workers, batch and epochs."""
    setup = table.setup
    told = [str(setup["data"])] if setup.get("data") else []
    told += [f"{setup['workers']} workers"] if setup.get("workers") else []
    told += [f"batch {setup['batch']} a worker"] if setup.get("batch") else []
    told += [f"{setup['epochs']} epochs"] if setup.get("epochs") else []
    return ", ".join([*told, *([str(setup["precision"])] if setup.get("precision") else [])])


# -------------------------------------------------------------------- cells


def quality_cell(row: Row) -> str:
    """Mean, and how far seeds lie from it."""
    low, high = row.spread
    if len(row.group.runs) == 1:
        return f"{row.best:.2f}"
    return f"{row.best:.2f} ± {max(row.best - low, high - row.best):.2f}"


def within(row: Row, table: Utility) -> str:
    """Whether it is as good as the baseline."""
    if row.difference is None:
        return "-"
    return "yes" if row.difference >= -slack(row.best - row.difference, table.unit) - 1e-9 else "no"


def number(value: float | None, digits: int = 3) -> str:
    return "-" if value is None else f"{value:.{digits}g}"


def duration(seconds: float | None) -> str:
    """
    >>> duration(5.0), duration(600.0), duration(7200.0), duration(None)
    ('5 s', '10 min', '2 h', '-')
    """
    if seconds is None:
        return "-"
    factor, name = next((f, n) for least, f, n in TIMES if seconds >= least)
    return f"{seconds / factor:.3g} {({'hours': 'h', 'minutes': 'min', 'seconds': 's'})[name]}"


# -------------------------------------------------------------------- controllers


def levels(run: Run) -> Chart | None:
    """Tensors at each level over epochs."""
    found = run.outcome.get("levels")
    if not found or not any(found):
        return None
    names = list(dict.fromkeys(name for at in found for name in at or {}))
    epochs = [float(e) for e in run.outcome["epochs"]]
    return Chart(
        f"{run.task}: tensors at each level",
        Axis("epochs", unit="count"),
        Axis("tensors", unit="count"),
        [Series(name, epochs, [float((at or {}).get(name, 0)) for at in found]) for name in names],
        subtitle=f"{run.controller}, seed {run.seed}",
    )
