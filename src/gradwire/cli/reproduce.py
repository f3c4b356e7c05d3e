"""`gradwire reproduce`: the published study again, beside the formula, our model and our records."""

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

from gradwire.cli.output import AsJson, emit

if TYPE_CHECKING:
    from gradwire.core.records import Record
    from gradwire.laboratory.reproduce.exhibit import Cell, Exhibit


def reproduce(
    id: Annotated[
        str | None,
        typer.Argument(metavar="ID", help="A table, a figure, or claims; without it, all ids.", show_default=False),
    ] = None,
    records: Annotated[
        list[Path] | None,
        typer.Option(
            "--records",
            metavar="FILE",
            help="A .jsonl file of measurements to set beside; may be repeated.",
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
    """Set a table, a figure or the claims of the published study beside the formula, our model and our records.

    The study: Agarwal et al., On the Utility of Gradient Compression in Distributed Training Systems, MLSys 2022. Its
    bars and curves are not in the text that we have: paper values are those of prose, tables and captions.

    \b
    Examples:
      gradwire reproduce
      gradwire reproduce claims --records results/collective_xeon_2026-11-15.jsonl
      gradwire reproduce fig19 --plot fig19.svg
    """
    from gradwire.laboratory.reproduce.catalogue import EXHIBITS, build
    from gradwire.laboratory.reproduce.study import Study

    if id is None:
        listed = [{"id": name, "what": what} for name, (what, _) in EXHIBITS.items()]
        emit(listed, as_json, lambda: _listing(listed))
        return
    exhibit = build(id, Study(records=_load(records or [])))
    if csv is not None:
        _write_csv(exhibit, csv)
    if plot is not None:
        _draw(exhibit, plot)
    emit(as_dict(exhibit), as_json, lambda: _page(exhibit))


def _load(paths: list[Path]) -> list[Record]:
    from gradwire.core import records
    from gradwire.core.errors import ConfigError

    found: list[Record] = []
    for path in paths:
        try:
            found += records.load(path)
        except OSError as problem:
            raise ConfigError(
                f"reproduce: `--records` {str(path)!r} cannot be read ({problem.strerror}); name a file that is there"
            ) from problem
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
    table.add_column("id", no_wrap=True)
    table.add_column("what")
    for one in listed:
        table.add_row(Text(one["id"]), Text(one["what"]))
    return table


def _page(exhibit: Exhibit) -> RenderableType:
    """The table, and what to know of it."""
    shown = [exhibit.columns.index(c) for c in exhibit.brief or exhibit.columns]
    table = Table(box=SIMPLE_HEAD, title=exhibit.title, title_justify="left")
    for position in shown:
        numeric = all(row[position] is None or isinstance(row[position], float | int) for row in exhibit.rows)
        heading = exhibit.columns[position].replace(", ", ",\n")
        table.add_column(heading, justify="right" if numeric else "left", no_wrap=heading == "id")
    for row in exhibit.rows:
        table.add_row(*(Text(_written(row[position])) for position in shown))
    hidden = len(exhibit.columns) - len(shown)
    more = (f"{hidden} more columns with --json or --csv.",) if hidden else ()
    return Group(table, *(Text(f"- {note}") for note in (*exhibit.details, *exhibit.notes, *more)))


def _written(cell: Cell) -> str:
    if cell is None:
        return "-"
    if isinstance(cell, str):
        return cell
    if isinstance(cell, int) or abs(cell) >= 1000:
        return f"{cell:,.0f}"
    return f"{cell:.1f}" if abs(cell) >= 100 else f"{cell:.3g}"
