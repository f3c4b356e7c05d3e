"""What all drawings of a picture share: ranges, colours, line styles, the order of things."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from gradwire.laboratory.report.chart import Bars, Chart, HeatMap, Part, Picture, Series, Value
from gradwire.laboratory.report.scale import Scale, scale, written

# Told apart also by people who see no red or no green; on white, and on the dark page. Markers tell the rest apart.
COLOURS = (
    "#0072b2", "#d55e00", "#008f68", "#b8529a", "#b07700", "#3a9fd8", "#882255", "#7a7a1f", "#4b3aa8", "#2f8f86",
    "#8c5a2b", "#5a9e2f",
)  # fmt: skip
DARK_COLOURS = (
    "#4fb0e8", "#ff8a3d", "#3fcf9f", "#e58fc8", "#e8b03a", "#8fd0f5", "#e0709f", "#c9c95a", "#a99bff", "#6fd6cb",
    "#cf9a66", "#a2d86e",
)  # fmt: skip
PART_COLOURS = ("#8fb8de", "#3d7ab5", "#d55e00", "#7a8794", "#c9ced4", "#008f68", "#b8529a")  # of stacked bars
DARK_PARTS = ("#8fc1ee", "#4a86bd", "#ff8a3d", "#8d99a6", "#4a525b", "#3fcf9f", "#e58fc8")
INK, MUTED, FAINT = "#1b1f24", "#5d6670", "#e3e6ea"  # text, what stands back, lines behind the picture
GOOD, BAD = "#0072b2", "#d55e00"  # above and below the center of a heat map
MARKERS = "osD^vPX"  # as matplotlib names them: circle, square, diamond, two triangles, plus, cross
DASHES = ((6.0, 3.0), (2.0, 2.5), (9.0, 3.0, 2.0, 3.0), (4.0, 2.0, 1.0, 2.0))  # of baselines, in widths of the line
FULL = 4.0  # a ratio this far from the center has the full colour


def axes(chart: Chart) -> tuple[Scale, Scale]:
    """The scales of x and y."""
    xs = [x for s in chart.series for x in s.xs] + [m.at for m in chart.marks]
    ys = [y for s in chart.series for y in s.ys if y is not None]
    cloud = any(s.points for s in chart.series)
    return (
        scale(xs, log=chart.x.log, own_ticks=not cloud and not chart.marks),
        scale(ys, log=chart.y.log, from_zero=True),
    )


def hues(pictures: Iterable[Picture]) -> dict[str, int]:
    """A number for each curve's label and each map's name: the same one has the same colour in all pictures."""
    labels: list[str] = []
    for p in pictures:
        if isinstance(p, Chart):
            labels += [s.label for s in p.series if s.role == "codec"]
        elif isinstance(p, HeatMap):
            labels += [name for name in whose(p) if name not in p.plain]
    return {label: number for number, label in enumerate(dict.fromkeys(labels))}


def whose(heat: HeatMap) -> list[str]:
    """The names in a map, each once, in the order of its lines."""
    return list(dict.fromkeys(name for row in heat.names for name in row if name))


def tint(name: str, heat: HeatMap) -> float:
    """How much of its colour a name's cells have; of names without one, the second is paler than the first."""
    return 0.45 if name not in heat.plain else 0.45 / (1 + list(heat.plain).index(name))


def steps(heat: HeatMap) -> list[tuple[float, str]]:
    """What colours of values mean: shades from the lowest to the highest that there are, and the values they stand for.

    The outermost may stand for more than their value.
    """
    values = [v for row in heat.values for v in row if v is not None]
    if heat.center is None:
        return [(0.0, written(min(values), heat.unit)), (1.0, written(max(values), heat.unit))]
    center, limit = heat.center, _limit(values, heat.center)
    low, high = (center * math.exp(by) if center > 0 else center + by for by in (-limit, limit))
    below = [(-1.0, f"≤ {written(low, heat.unit)}")] if min(values) < center else []
    above = [(1.0, f"≥ {written(high, heat.unit)}")] if max(values) > center else []
    return [*below, (0.0, written(center, heat.unit)), *above]


def dashes(series: Sequence[Series]) -> dict[str, int]:
    """A number for each baseline's label: which dashes it has."""
    return {s.label: n % len(DASHES) for n, s in enumerate(s for s in series if s.role == "baseline")}


def last(series: Series) -> tuple[float, float] | None:
    """Where a curve ends; None if it has no point."""
    points = [(x, y) for x, y in zip(series.xs, series.ys, strict=True) if y is not None]
    return max(points) if points else None


def shades(heat: HeatMap) -> list[list[float | None]]:
    """How far each value is from the center, in [-1, 1]; without one, from the smallest to the largest in [0, 1]."""
    values = [v for row in heat.values for v in row if v is not None]
    limit = _limit(values, heat.center)
    low, high = min(values), max(values)

    def shade(value: Value) -> float | None:
        if value is None:
            return None
        if heat.center is None:
            return (value - low) / (high - low) if high > low else 0.5
        return max(-1.0, min(1.0, _distance(value, heat.center) / limit))

    return [[shade(v) for v in row] for row in heat.values]


def _limit(values: Sequence[float], center: float | None) -> float:
    """The distance that has the full colour: the largest there is, within reason."""
    if center is None:
        return 1.0
    largest = max(abs(_distance(v, center)) for v in values)
    return max(min(largest, math.log(FULL)), math.log(1.25)) if center > 0 else largest or 1.0


def _distance(value: float, center: float) -> float:
    """Of ratios by their logarithm: half as fast is as far as twice as fast."""
    return math.log(value / center) if value > 0 and center > 0 else value - center


def bar_scale(bars: Bars) -> Scale:
    """From zero to the longest bar."""
    return scale([total(bars, i) for i in range(len(bars.groups))], log=False, from_zero=True)


def part_hue(part: Part) -> int:
    """The number of a part's colour."""
    return (part.hue or 0) % len(PART_COLOURS)


def total(bars: Bars, group: int) -> float:
    """The length of one bar."""
    return sum(p.values[group] or 0.0 for p in bars.parts)


def blend(colour: str, share: float, ground: str = "#ffffff") -> str:
    """A colour laid over the ground.

    >>> blend("#000000", 0.5)
    '#808080'
    """
    mixed = (round(int(ground[i : i + 2], 16) * (1 - share) + int(colour[i : i + 2], 16) * share) for i in (1, 3, 5))
    return "#" + "".join(f"{value:02x}" for value in mixed)
