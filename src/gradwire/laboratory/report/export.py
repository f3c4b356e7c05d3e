"""A picture's numbers without the picture: as a table for people, as CSV, as JSON."""

from __future__ import annotations

import csv
import dataclasses
import io
import json
from collections.abc import Sequence
from typing import Any

from gradwire.laboratory.report.chart import Axis, Bars, Chart, HeatMap, Picture
from gradwire.laboratory.report.scale import BASE_UNITS, written


def kind_of(picture: Picture) -> str:
    """The name of the kind of picture."""
    return {Chart: "chart", HeatMap: "heat map", Bars: "bars"}[type(picture)]


# -------------------------------------------------------------------- tables for people


def table(picture: Picture) -> tuple[list[str], list[list[str]]]:
    """Headings and lines, values as they are written for people."""
    if isinstance(picture, HeatMap):
        return _heat_table(picture)
    return _bars_table(picture) if isinstance(picture, Bars) else _chart_table(picture)


def _chart_table(chart: Chart) -> tuple[list[str], list[list[str]]]:
    """One line an x and one column a curve; points, where each is a thing of its own, have a line each."""
    if any(s.points for s in chart.series):
        lines = [
            [s.label, name, written(x, chart.x.unit), written(y, chart.y.unit)]
            for s in chart.series
            if s.role != "reference"
            for x, y, name in zip(s.xs, s.ys, s.names or [""] * len(s.xs), strict=True)
        ]
        return ["series", "point", chart.x.label, chart.y.label], lines
    found = [dict(zip(s.xs, s.ys, strict=True)) for s in chart.series]
    xs = sorted({x for s in chart.series for x in s.xs})
    lines = [[written(x, chart.x.unit), *(written(ys.get(x), chart.y.unit) for ys in found)] for x in xs]
    return [chart.x.label, *(s.label for s in chart.series)], lines


def _heat_table(heat: HeatMap) -> tuple[list[str], list[list[str]]]:
    lines = []
    for row, y in enumerate(heat.ys):
        cells = [written(v, heat.unit) for v in heat.values[row]]
        if heat.names:
            cells = [f"{c} {t}".strip() for c, t in zip(cells, heat.names[row], strict=True)]
        lines.append([named(y, heat.y), *cells])
    return [heat.y.label, *(named(x, heat.x) for x in heat.xs)], lines


def _bars_table(bars: Bars) -> tuple[list[str], list[list[str]]]:
    ends = [[end] for end in bars.ends] or [[]] * len(bars.groups)
    lines = [
        [group, *(written(p.values[i], bars.axis.unit) for p in bars.parts), *ends[i]]
        for i, group in enumerate(bars.groups)
    ]
    return ["", *(p.label for p in bars.parts), *([bars.axis.label] if bars.ends else [])], lines


def named(value: float | str, axis: Axis) -> str:
    """A column or line of a heat map."""
    return value if isinstance(value, str) else written(value, axis.unit)


# -------------------------------------------------------------------- files for programs


def csv_text(pictures: Sequence[Picture]) -> str:
    """One line a value, in base units, with a heading; pictures of other kinds add columns."""
    lines = [line for picture in pictures for line in _lines(picture)]
    columns = list(dict.fromkeys(name for line in lines for name in line))
    text = io.StringIO()
    writer = csv.DictWriter(text, columns, restval="", lineterminator="\n")
    writer.writeheader()
    writer.writerows(lines)
    return text.getvalue()


def _lines(picture: Picture) -> list[dict[str, Any]]:
    if isinstance(picture, HeatMap):
        x, y, value = _columns(_column(picture.x), _column(picture.y), _column(Axis(picture.label, unit=picture.unit)))
        return [
            {"chart": picture.title, x: at_x, y: at_y, value: picture.values[row][column]}
            | ({"name": picture.names[row][column]} if picture.names else {})
            for row, at_y in enumerate(picture.ys)
            for column, at_x in enumerate(picture.xs)
        ]
    if isinstance(picture, Bars):
        group, part, value = _columns("bar", "part", _column(picture.axis))
        return [
            {"chart": picture.title, group: name, part: p.label, value: p.values[i]}
            for i, name in enumerate(picture.groups)
            for p in picture.parts
        ]
    series, x, y = _columns("series", _column(picture.x), _column(picture.y))
    return [
        {"chart": picture.title, series: s.label, x: at, y: value} | ({"point": s.names[i]} if s.names else {})
        for s in picture.series
        for i, (at, value) in enumerate(zip(s.xs, s.ys, strict=True))
    ]


def _column(axis: Axis) -> str:
    return f"{axis.label} ({BASE_UNITS[axis.unit]})" if axis.unit in BASE_UNITS else axis.label


def _columns(*names: str) -> list[str]:
    """The same names; those that are there already are told apart by a number."""
    taken: list[str] = ["chart", "point"]
    for name in names:
        number, free = 2, name
        while free in taken:
            number, free = number + 1, f"{name} {number}"
        taken.append(free)
    return taken[2:]


def json_text(pictures: Sequence[Picture]) -> str:
    """The descriptions themselves, as a list."""
    described = [{"kind": kind_of(p), **dataclasses.asdict(p)} for p in pictures]
    return json.dumps(described, indent=2, ensure_ascii=False, allow_nan=False) + "\n"
