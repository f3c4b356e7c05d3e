"""`gradwire reproduce`: the claims of four papers, and the tables and figures of one, beside our records and model."""

from __future__ import annotations

import csv as csv_module
import dataclasses
import io
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from gradwire.cli.output import AsJson, check_output, check_plot, emit

if TYPE_CHECKING:
    from gradwire.laboratory.reproduce.evidence import Evidence
    from gradwire.laboratory.reproduce.exhibit import Cell, Exhibit

RESULTS = Path("results")
MEASURED = "measured"  # the column of our records
NOT_MEASURED = (
    "No records were read, so nothing is measured: run this in a clone of the repository, where they are in results/, "
    "or name files with --records."
)


def reproduce(
    id: Annotated[
        str | None,
        typer.Argument(
            metavar="ID",
            help="A claim, a paper, `claims`, a table, a figure; without it, all ids.",
            show_default=False,
        ),
    ] = None,
    records: Annotated[
        list[Path] | None,
        typer.Option(
            "--records",
            metavar="FILE",
            help="A .jsonl file of measurements, or a folder; may be repeated. Else results/, if it is there.",
            show_default=False,
        ),
    ] = None,
    csv: Annotated[
        Path | None, typer.Option("--csv", metavar="FILE", help="Write all columns to this file.", show_default=False)
    ] = None,
    plot: Annotated[
        Path | None,
        typer.Option("--plot", metavar="FILE", help="Draw the curves: .png, .svg, .html or .csv.", show_default=False),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Say what becomes of a published claim, and set tables and figures beside formula, model and records.

    Four papers: grace, throughput (Beyond Throughput and Compression Ratios), accordion, utility (On the Utility of
    Gradient Compression). A verdict is reproduced, contradicted, not reproduced (our set-up differs, and how), or open.
    Tables and figures are those of the last one; its bars and curves are not in the text that we have, so its values
    are those of prose, tables and captions.

    \b
    Examples:
      gradwire reproduce
      gradwire reproduce G-above
      gradwire reproduce accordion --records results
      gradwire reproduce fig19 --plot fig19.svg
    """
    from gradwire.laboratory.reproduce import catalogue

    if id is None:
        listed = catalogue.listed()
        emit(listed, as_json, lambda: _listing(listed))
        return
    check_plot("reproduce", plot)
    check_output("reproduce", "--csv", csv)
    evidence = _load(records)
    exhibit = catalogue.build(id, evidence)
    if csv is not None:
        _write_csv(exhibit, csv)
    if plot is not None:
        _draw(exhibit, plot)
    emit(as_dict(exhibit), as_json, lambda: _page(exhibit, bool(evidence.records or evidence.study.records)))


def _load(paths: list[Path] | None) -> Evidence:
    """Of files and folders; without any, of the folder `results`."""
    from gradwire.core.errors import ConfigError
    from gradwire.core.records import MAKE, files
    from gradwire.laboratory.reproduce.evidence import checked, gathered

    wanted = [RESULTS] if paths is None and RESULTS.is_dir() else paths or []
    found = gathered(f for path in wanted for f in (checked(path) if path.is_dir() else files("reproduce", path)))
    if paths and not found.records and not found.study.records:
        raise ConfigError(
            f"reproduce: `--records` {', '.join(map(str, paths))}: there is no record that a claim is checked against; "
            f"leave it out, or {MAKE}"
        )
    return found


def as_dict(exhibit: Exhibit) -> dict[str, Any]:
    """Ready for JSON: a row is a dictionary by column."""
    return {
        "id": exhibit.id,
        "title": exhibit.title,
        "columns": list(exhibit.columns),
        "rows": [dict(zip(exhibit.columns, row, strict=True)) for row in exhibit.rows],
        "notes": list(exhibit.notes),
        "pictures": [dataclasses.asdict(p) for p in exhibit.pictures],
    }


def _write_csv(exhibit: Exhibit, path: Path) -> None:
    from gradwire.laboratory.report.chart import save

    text = io.StringIO()
    writer = csv_module.writer(text, lineterminator="\n")
    writer.writerow(exhibit.columns)
    writer.writerows(["" if cell is None else cell for cell in row] for row in exhibit.rows)
    save(path, text.getvalue().encode())


def _draw(exhibit: Exhibit, path: Path) -> None:
    from gradwire.core.errors import ConfigError
    from gradwire.laboratory.report.chart import Axis, Chart, Series, write

    if not exhibit.pictures:
        raise ConfigError(f"reproduce: {exhibit.id} has no curves to draw; write its rows with --csv instead")
    last = exhibit.pictures[-1]
    charts = [
        Chart(
            p.title,
            x=Axis(p.x.label, log=p.x.log, unit=p.x.unit),
            y=Axis(p.y.label, log=p.y.log, unit=p.y.unit),
            series=tuple(Series(c.label, c.xs, c.ys, role=c.role) for c in p.curves),
            notes=exhibit.notes if p is last else (),
        )
        for p in exhibit.pictures
    ]
    write(charts, path, title=exhibit.title)


def _listing(listed: list[dict[str, str]]) -> RenderableType:
    table = Table(box=SIMPLE_HEAD)
    for heading in ("id", "paper", "what"):
        table.add_column(heading, no_wrap=heading != "what")
    for one in listed:
        table.add_row(*(Text(one[name]) for name in ("id", "paper", "what")))
    return table


def _page(exhibit: Exhibit, read: bool) -> RenderableType:
    """The table, and what to know of it; `read`: there were records."""
    asked = [exhibit.columns.index(c) for c in exhibit.brief or exhibit.columns]
    shown = [i for i in asked if any(row[i] is not None for row in exhibit.rows)]
    table = Table(box=SIMPLE_HEAD)
    for position in shown:
        numeric = all(row[position] is None or isinstance(row[position], float | int) for row in exhibit.rows)
        heading = exhibit.columns[position].replace(", ", ",\n")
        table.add_column(heading, justify="right" if numeric else "left", no_wrap=heading == "id")
    for row in exhibit.rows:
        table.add_row(*(Text(_written(row[position])) for position in shown))
    empty = [exhibit.columns[i] for i in asked if i not in shown]
    hidden = len(exhibit.columns) - len(asked)
    more = [f"Without a value here, so not shown: {', '.join(empty)}."] if empty else []
    more += [NOT_MEASURED] if MEASURED in empty and not read else []
    more += [f"{hidden} more columns with --json or --csv."] if hidden else []
    return Group(
        Text(exhibit.title, "bold"),
        "",
        table,
        *(Text(f"- {note}") for note in (*exhibit.details, *exhibit.notes, *more)),
    )


def _written(cell: Cell) -> str:
    if cell is None:
        return "-"
    if isinstance(cell, str):
        return cell
    if isinstance(cell, int) or abs(cell) >= 1000:
        return f"{cell:,.0f}"
    return f"{cell:.1f}" if abs(cell) >= 100 else f"{cell:.3g}"
