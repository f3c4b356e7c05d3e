"""`gradwire whatif`: predictions while one or two quantities change."""

from __future__ import annotations

import csv as csv_module
import dataclasses
import io
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from gradwire.cli import setup as options
from gradwire.cli.output import AsJson, CsvFile, PlotFile, check_output, check_plot, emit

if TYPE_CHECKING:
    from gradwire.planner.sweeps import Curve, Sweep

MOST_ROWS, MOST_COLUMNS = 15, 7  # of a table; files and JSON have every point
LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"


def whatif(
    sweep: Annotated[
        list[str],
        typer.Option(
            "--sweep",
            metavar="QUANTITY=RANGE",
            help="As in bandwidth=1gbit:30gbit, bandwidth=1gbit:30gbit:20 (points) or gpus=8,16,32; once or twice.",
            show_default=False,
        ),
    ],
    model: options.Model,
    batch: Annotated[int | None, options.BATCH] = None,
    gpus: Annotated[int | None, options.GPUS] = None,
    bandwidth: Annotated[str | None, options.BANDWIDTH] = None,
    codec: Annotated[
        list[str] | None,
        typer.Option(
            "--codec", metavar="CODEC", help='A codec, such as "powersgd(rank=4)"; may be repeated.', show_default=False
        ),
    ] = None,
    gpus_per_node: Annotated[int | None, options.GPUS_PER_NODE] = None,
    hardware: options.Hardware = "h200",
    latency: options.Latency = None,
    mode: options.Mode = "overlap",
    strategy: options.Strategy = "auto",
    accumulate: options.Accumulate = 1,
    backward: options.Backward = None,
    sums: options.Sums = None,
    switch: options.Switch = None,
    metric: Annotated[
        str, typer.Option("--metric", metavar="NAME", help="step: the whole step; sync: backward and exchange.")
    ] = "step",
    plot: PlotFile = None,
    csv: CsvFile = None,
    as_json: AsJson = False,
) -> None:
    """Predict step times while one or two quantities change, and where codecs and DDP are even.

    Quantities: bandwidth, latency, gpus, gpus_per_node, batch, compute_speed, encode_speed (times the profile's) and
    ratio (payloads so many times smaller). FP32 and FP16 DDP are always there. One quantity gives curves of time and
    of speed-up; two give a map for each codec, and one of the fastest choice.

    \b
    Examples:
      gradwire whatif --sweep bandwidth=1gbit:30gbit --model resnet101 --batch 64 --gpus 64 \\
          --codec "powersgd(rank=4)" --plot curves.html
      gradwire whatif --sweep bandwidth=1gbit:100gbit --sweep gpus=8:256 --model bert-base --batch 16 \\
          --codec "powersgd(rank=4)" --codec signsgd --plot maps.png
    """
    from gradwire import planner
    from gradwire.core.registry import Check
    from gradwire.planner.sweeps import METRICS

    Check("whatif").one_of("metric", metric, tuple(METRICS))
    check_plot("whatif", plot)
    check_output("whatif", "--csv", csv)
    setup = options.keywords(
        model=model,
        batch=batch,
        gpus=gpus,
        gpus_per_node=gpus_per_node,
        bandwidth=bandwidth,
        hardware=hardware,
        latency=latency,
        mode=mode,
        strategy=strategy,
        accumulate=accumulate,
        backward=backward,
        sums=sums,
        switch=switch,
    )
    found = planner.whatif(sweep=_asked(sweep), codecs=codec or (), **setup)
    files = [*_draw(found, plot, metric), *_write(found, csv, metric)]
    emit(_result(found, metric, files), as_json, lambda: _page(found, metric, files))


def _asked(texts: Sequence[str]) -> dict[str, str]:
    from gradwire.core.errors import ConfigError
    from gradwire.planner.sweeps import parse

    asked: dict[str, str] = {}
    for text in texts:
        name, rest = parse(text)
        if name in asked:
            raise ConfigError(f"whatif: {name} is swept twice; give one --sweep {name}=... with all values")
        asked[name] = rest
    return asked


def _draw(found: Sweep, path: Path | None, metric: str) -> list[str]:
    if path is None:
        return []
    from gradwire.laboratory.report.chart import write
    from gradwire.laboratory.report.sweep import pictures, title

    return [str(write(pictures(found, metric), path, title=title(found)))]


def _write(found: Sweep, path: Path | None, metric: str) -> list[str]:
    if path is None:
        return []
    from gradwire.laboratory.report.chart import save

    rows = found.rows(metric)
    text = io.StringIO()
    writer = csv_module.DictWriter(text, fieldnames=list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return [str(save(path, text.getvalue().encode()))]


def _result(found: Sweep, metric: str, files: Sequence[str]) -> dict[str, Any]:
    names = ("codec", "baseline", "at", "faster_below")
    return {
        "setup": dict(found.setup),
        "hardware": found.first.hardware,
        "metric": metric,
        "swept": {q.name: values for q, values in zip(found.quantities, found.values, strict=True)},
        "rows": found.rows(metric),
        "crossovers": [{name: getattr(c, name) for name in names} for c in found.crossovers],
        "sentences": found.sentences(),
        "quality": found.quality(),
        "notes": list(found.notes),
        "inputs_of": {name: getattr(found.first, name) for name in ("codec", "batch", "gpus", "gpus_per_node")},
        "inputs": [dataclasses.asdict(one) for one in found.first.inputs],
        "files": list(files),
    }


# -------------------------------------------------------------------- for people


def _page(found: Sweep, metric: str, files: Sequence[str]) -> RenderableType:
    from gradwire.planner.sweeps import METRICS

    told = f"{found.setting}: {METRICS[metric]}, predicted with profile {found.first.hardware}"
    shown = [_curves(found, metric)] if len(found.quantities) == 1 else _maps(found, metric)
    lines = [*found.sentences(), *found.quality(), *found.notes, *(f"wrote {name}" for name in files)]
    return Group(Text(told), *(part for table in shown for part in ("", table)), *map(Text, ("", *lines)))


def _thinned(count: int, most: int) -> list[int]:
    """Which of so many are shown: the first, the last, and some evenly between."""
    if count <= most:
        return list(range(count))
    apart = -(-(count - 1) // (most - 1))
    return sorted({*range(0, count, apart), count - 1})


def _table(*, title: str | None = None, caption: str | None) -> Table:
    table = Table(box=SIMPLE_HEAD, padding=(0, 0, 0, 1), show_edge=False, title=title, caption=caption)
    table.title_justify = table.caption_justify = "left"
    return table


def _curves(found: Sweep, metric: str) -> RenderableType:
    """A row a point: ms, and behind codecs how many times as fast as the faster baseline they are."""
    (swept,), (xs,) = found.quantities, found.values
    shown = _thinned(len(xs), MOST_ROWS)
    hidden = f"; {len(shown)} of {len(xs)} points, all with --csv or --json" if len(shown) < len(xs) else ""
    faster = "; 2x: twice as fast as the faster of FP32 and FP16 DDP" if found.codecs else ""
    table = _table(caption=f"ms{faster}{hidden}")
    table.add_column(swept.name.replace("_", " "), justify="right", no_wrap=True)
    for curve in found.curves:
        table.add_column(curve.label.replace("(", "\n(", 1), justify="right", overflow="fold")
    columns = [_cells(found, curve, metric) for curve in found.curves]
    for position in shown:
        table.add_row(Text(swept.cell(xs[position])), *(Text(column[position]) for column in columns))
    return table


def _cells(found: Sweep, curve: Curve, metric: str) -> list[str]:
    from gradwire.core.units import format_milliseconds

    times = ["-" if s is None else format_milliseconds(s).removesuffix(" ms") for s in curve.seconds(metric)]
    if curve not in found.codecs:
        return times
    ratios = found.speedup(curve, None, metric)
    return [t if r is None else f"{t} {_ratio(r)}x" for t, r in zip(times, ratios, strict=True)]


def _ratio(value: float) -> str:
    return f"{value:.2f}" if value < 10 else f"{value:.1f}"


def _maps(found: Sweep, metric: str) -> list[RenderableType]:
    """A grid for each codec, and one of letters: who is fastest."""
    from gradwire.core.baselines import FP16, FP32
    from gradwire.planner.ranking import LABELS

    over = FP16 if found.curve(FP16) else FP32
    grids = []
    for curve in found.codecs:
        cells = ["-" if r is None else _ratio(r) for r in found.speedup(curve, over, metric)]
        grids.append(_grid(found, f"{curve.label}: times as fast as {LABELS[over]}", cells))
    letters = {c.codec: LETTERS[i % len(LETTERS)] for i, c in enumerate(found.curves)}
    legend = ", ".join(f"{letters[c.codec]} {c.label}" for c in found.curves)
    grids.append(_grid(found, f"the fastest choice ({legend})", [letters[w.codec] if w else "-" for w in found.best()]))
    return grids


def _grid(found: Sweep, title: str, cells: Sequence[str]) -> RenderableType:
    across, down = found.quantities
    xs, ys = found.values
    columns, rows = _thinned(len(xs), MOST_COLUMNS), _thinned(len(ys), MOST_ROWS)
    hidden = len(columns) * len(rows) < len(cells)
    caption = f"{len(columns) * len(rows)} of {len(cells)} points, all with --csv or --json" if hidden else None
    table = _table(title=title, caption=caption)
    table.add_column(f"\n{down.name.replace('_', ' ')}", justify="right", no_wrap=True)
    for i in columns:
        table.add_column(across.cell(xs[i]).replace(" ", "\n", 1), justify="right", no_wrap=True)
    for j in rows:
        table.add_row(Text(down.cell(ys[j])), *(Text(cells[i * len(ys) + j]) for i in columns))
    return table
