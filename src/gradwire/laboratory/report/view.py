"""A picture as the page's script wants it: ranges, ticks and every text, so that the script formats nothing."""

from __future__ import annotations

from typing import Any

from gradwire.laboratory.report import layout
from gradwire.laboratory.report.chart import Axis, Bars, Chart, HeatMap, Picture, Series
from gradwire.laboratory.report.export import named
from gradwire.laboratory.report.scale import Scale, tick, written


def view(picture: Picture, hues: dict[str, int]) -> dict[str, Any]:
    """Plain values. `hues` numbers the curves' labels, so that they have their colours on the whole page."""
    if isinstance(picture, HeatMap):
        body = _heat(picture, hues)
    else:
        body = _bars(picture) if isinstance(picture, Bars) else _chart(picture, hues)
    return {"title": picture.title, **body}


def _short(value: float | None) -> float | None:
    """Five digits: more cannot be seen."""
    return None if value is None else float(f"{value:.5g}")


def _axis(axis: Axis, side: Scale) -> dict[str, Any]:
    ticks = [[_short(t), tick(t, axis.unit)] for t in side.ticks]
    return {"label": axis.label, "log": side.log, "low": side.low, "high": side.high, "ticks": ticks}


def _chart(chart: Chart, hues: dict[str, int]) -> dict[str, Any]:
    x, y = layout.axes(chart)
    dashes = layout.dashes(chart.series)
    at = sorted({v for s in chart.series if s.role != "reference" or not _cloud(chart) for v in s.xs})
    return {
        "kind": "chart",
        "cloud": _cloud(chart),
        "x": _axis(chart.x, x),
        "y": _axis(chart.y, y),
        "at": [] if _cloud(chart) else [[_short(v), written(v, chart.x.unit)] for v in at],
        "series": [_series(s, chart, hues, dashes) for s in chart.series],
        "marks": [[_short(m.at), m.label] for m in sorted(chart.marks, key=lambda m: m.at)],
    }


def _cloud(chart: Chart) -> bool:
    return any(s.points for s in chart.series)


def _series(series: Series, chart: Chart, hues: dict[str, int], dashes: dict[str, int]) -> dict[str, Any]:
    number = hues.get(series.label, 0) if series.role == "codec" else dashes.get(series.label, 0)
    shown: dict[str, Any] = {
        "label": series.label,
        "role": series.role,
        "hue": number % len(layout.COLOURS),
        "mark": number % len(layout.MARKERS),
        "dash": " ".join(f"{d:g}" for d in layout.DASHES[number % len(layout.DASHES)]),
        "xs": [_short(x) for x in series.xs],
        "ys": [_short(y) for y in series.ys],
        "text": [written(y, chart.y.unit) for y in series.ys],
        "points": series.points,
        "note": series.note,
    }
    if series.points:
        shown["names"] = list(series.names)
        shown["at"] = [written(x, chart.x.unit) for x in series.xs]
    return shown


def _heat(heat: HeatMap, hues: dict[str, int]) -> dict[str, Any]:
    names = layout.whose(heat)
    return {
        "kind": "heat",
        "label": heat.label,
        "x": heat.x.label,
        "y": heat.y.label,
        "xs": [named(x, heat.x) for x in heat.xs],
        "ys": [named(y, heat.y) for y in heat.ys],
        "shades": [[None if s is None else round(s, 3) for s in row] for row in layout.shades(heat)],
        "values": [[written(v, heat.unit) for v in row] for row in heat.values],
        "here": heat.here,
        "steps": [] if names else layout.steps(heat),
        "whose": [[names.index(name) if name else None for name in row] for row in heat.names],
        "names": [
            {
                "label": name,
                "hue": None if name in heat.plain else hues.get(name, 0) % len(layout.COLOURS),
                "percent": round(100 * layout.tint(name, heat)),
            }
            for name in names
        ],
    }


def _bars(bars: Bars) -> dict[str, Any]:
    return {
        "kind": "bars",
        "axis": _axis(bars.axis, layout.bar_scale(bars)),
        "groups": list(bars.groups),
        "roles": list(bars.roles),
        "ends": list(bars.ends),
        "parts": [
            {
                "label": p.label,
                "hue": layout.part_hue(p),
                "values": [_short(v) or 0.0 for v in p.values],
                "text": [written(v, bars.axis.unit) for v in p.values],
            }
            for p in bars.parts
        ],
    }
