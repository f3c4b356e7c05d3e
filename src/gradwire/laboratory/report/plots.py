"""Pictures as PNG and SVG, by matplotlib: one below the other on a sheet, each with its legend beside it."""

from __future__ import annotations

import io
import textwrap
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from gradwire.core.errors import MissingExtra
from gradwire.laboratory.report import layout
from gradwire.laboratory.report.chart import Bars, Chart, HeatMap, Picture, Series
from gradwire.laboratory.report.export import named
from gradwire.laboratory.report.layout import FAINT, INK, MUTED
from gradwire.laboratory.report.scale import Scale, tick, written

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure, SubFigure

WIDTH, PLOT, ROW = 11.0, 5.0, 0.42  # inches: of the sheet, the height of a chart, and of a line of bars or cells
DPI = 160
TITLE, TEXT, SMALL, NOTE = 17.0, 13.0, 11.0, 10.0  # points
WIDE = 0.62  # of a letter, in sizes of its font: enough for most texts
LABEL, ENTRIES = 34, 22  # letters in a line of a label; entries in a column of a legend
RC: dict[Any, Any] = {
    "font.family": "DejaVu Sans",  # comes with matplotlib, so the sheet is the same everywhere
    "font.size": SMALL,
    "text.color": INK,
    "text.parse_math": False,  # a dollar sign in a name is a dollar sign
    "axes.labelcolor": MUTED,
    "axes.edgecolor": MUTED,
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.titlesize": TEXT,
    "axes.titlecolor": MUTED,
    "axes.titlelocation": "left",
    "grid.color": FAINT,
    "xtick.color": MUTED,
    "xtick.labelcolor": INK,
    "ytick.color": MUTED,
    "ytick.labelcolor": INK,
    **{f"axes.spines.{side}": False for side in ("left", "right", "top")},
    "legend.frameon": False,
    "legend.fontsize": SMALL,
    "legend.title_fontsize": SMALL,
    "figure.constrained_layout.h_pad": 0.12,
    "figure.constrained_layout.w_pad": 0.12,
    "svg.fonttype": "none",  # text stays text
    "svg.hashsalt": "gradwire",  # the same picture, the same file
}


def draw(pictures: Sequence[Picture], form: str) -> bytes:
    """A PNG or SVG of the pictures, one below the other."""
    try:
        import matplotlib
        from matplotlib.figure import Figure
    except ImportError as missing:
        raise MissingExtra(
            f"chart: PNG and SVG need {missing.name}, which is not installed; run: pip install matplotlib, "
            "or write .html, .csv or .json"
        ) from missing
    with matplotlib.rc_context(RC):
        heights = [_height(p) for p in pictures]
        figure = Figure(figsize=(WIDTH, sum(heights)), dpi=DPI, layout="constrained", facecolor="white")
        hues = layout.hues(pictures)
        for sheet, picture in zip(_sheets(figure, heights), pictures, strict=True):
            _draw(sheet, picture, hues)
        content = io.BytesIO()
        metadata: dict[str, Any] = {"Date": None} if form == "svg" else {}
        figure.savefig(content, format=form, metadata=metadata)
    return content.getvalue()


def _sheets(figure: Figure, heights: Sequence[float]) -> list[SubFigure]:
    return list(figure.subfigures(len(heights), 1, height_ratios=heights, squeeze=False)[:, 0])


def _wrapped(texts: Sequence[str], size: float) -> list[str]:
    """Lines that fit on the sheet, broken between words."""
    letters = int(WIDTH * 72 / (size * WIDE))
    return [line for text in texts for line in textwrap.wrap(text, letters)]


def _height(picture: Picture) -> float:
    """Inches, roughly: what does not fit makes the picture a little lower, and nothing overlaps."""
    body = PLOT
    if not isinstance(picture, Chart):
        body = 0.9 + ROW * len(picture.ys if isinstance(picture, HeatMap) else picture.groups)
    words = [
        (_wrapped([picture.title], TITLE), TITLE),
        (_wrapped(picture.notes, NOTE), NOTE),
        ([picture.subtitle], TEXT),
    ]
    return body + 0.4 + sum(len(lines) * size * 1.35 / 72 for lines, size in words)


def _draw(sheet: SubFigure, picture: Picture, hues: dict[str, int]) -> None:
    axes = sheet.subplots()
    if isinstance(picture, HeatMap):
        handles = _heat(axes, picture, hues)
    else:
        handles = _bars(axes, picture) if isinstance(picture, Bars) else _chart(axes, picture, hues)
    title = "\n".join(_wrapped([picture.title], TITLE))
    sheet.suptitle(title, x=0.01, ha="left", size=TITLE, weight="bold")
    marks = len(picture.marks) if isinstance(picture, Chart) else 0  # whose labels stand above the frame, one a line
    axes.set_title("\n".join(_wrapped([picture.subtitle], TEXT)), pad=6 + marks * NOTE * 1.3)
    sheet.supxlabel("\n".join(_wrapped(picture.notes, NOTE)), x=0.01, ha="left", size=NOTE, color=MUTED)
    shown = {label: handle for label, handle in handles.items() if label}
    labels = [_folded(label) for label in shown]
    place: dict[str, Any] = {"loc": "upper left", "bbox_to_anchor": (1.01, 1.02), "ncols": -(-len(labels) // ENTRIES)}
    axes.legend(list(shown.values()), labels, title=_heading(picture), alignment="left", **place)


def _heading(picture: Picture) -> str:
    """Of a map's legend: what its numbers are, and its colours where no name has them."""
    if not isinstance(picture, HeatMap):
        return ""
    return _folded(f"{'number' if picture.names else 'colour'}: {picture.label}")


def _folded(label: str) -> str:
    """In several lines where it is long."""
    return "\n".join(textwrap.wrap(label, LABEL))


def _ticks(axis: Any, side: Scale, unit: str | None) -> None:
    """Ticks and their texts, and no others."""
    from matplotlib.ticker import NullLocator

    axis.set_ticks(list(side.ticks), [tick(t, unit) for t in side.ticks])
    axis.set_minor_locator(NullLocator())


# -------------------------------------------------------------------- curves


def _chart(axes: Axes, chart: Chart, hues: dict[str, int]) -> dict[str, Artist]:
    x, y = layout.axes(chart)
    axes.set(xscale="log" if x.log else "linear", yscale="log" if y.log else "linear")
    axes.set(xlim=(x.low, x.high), ylim=(y.low, y.high), xlabel=chart.x.label, ylabel=chart.y.label)
    _ticks(axes.xaxis, x, chart.x.unit)
    _ticks(axes.yaxis, y, chart.y.unit)
    axes.grid(visible=False, axis="x")
    for number, mark in enumerate(sorted(chart.marks, key=lambda m: m.at)):
        axes.axvline(mark.at, color=MUTED, linewidth=1, linestyle=":")
        left = x.place(mark.at) < 0.6
        above = (3 if left else -3, 3 + number * NOTE * 1.3)
        where: dict[str, Any] = {
            "xycoords": axes.get_xaxis_transform(),
            "textcoords": "offset points",
            "ha": "left" if left else "right",
        }
        axes.annotate(mark.label, (mark.at, 1), above, size=NOTE, color=MUTED, annotation_clip=False, **where)
    handles: dict[str, Artist] = {}
    for series in sorted(chart.series, key=_end, reverse=True):
        ys = [float("nan") if value is None else value for value in series.ys]
        (handles[series.label],) = axes.plot(list(series.xs), ys, clip_on=False, **_style(series, chart, hues))
    return handles


def _end(series: Series) -> float:
    """The legend has the order of the curves' ends; points stand last."""
    end = layout.last(series)
    return float("-inf") if end is None or series.points else end[1]


def _style(series: Series, chart: Chart, hues: dict[str, int]) -> dict[str, Any]:
    """Colour, dashes and marker."""
    if series.role == "reference":
        return {"color": MUTED, "linewidth": 1.2, "zorder": 1.5}
    if series.role == "baseline":
        return {"color": INK, "linewidth": 1.8, "dashes": layout.DASHES[layout.dashes(chart.series)[series.label]]}
    number = hues[series.label]
    marker = layout.MARKERS[number % len(layout.MARKERS)] if len(series.xs) <= 12 or series.points else ""
    style = {"color": layout.COLOURS[number % len(layout.COLOURS)], "linewidth": 2.2, "marker": marker, "markersize": 6}
    return style | ({"linestyle": "none", "alpha": 0.75} if series.points else {})


# -------------------------------------------------------------------- heat maps


def _heat(axes: Axes, heat: HeatMap, hues: dict[str, int]) -> dict[str, Artist]:
    from matplotlib.patches import Patch, Rectangle

    axes.set(xlim=(0, len(heat.xs)), ylim=(len(heat.ys), 0), xlabel=heat.x.label, ylabel=heat.y.label)
    axes.set_xticks([i + 0.5 for i in range(len(heat.xs))], [named(x, heat.x).replace(" ", "\n", 1) for x in heat.xs])
    axes.set_yticks([i + 0.5 for i in range(len(heat.ys))], [_folded(named(y, heat.y)) for y in heat.ys])
    axes.grid(visible=False)
    axes.spines["bottom"].set_visible(False)
    axes.tick_params(length=0)
    letters = 0.7 * WIDTH * 72 / len(heat.xs) / (NOTE * WIDE)  # that a cell has room for
    for row, shades in enumerate(layout.shades(heat)):
        for column, shade in enumerate(shades):
            name = heat.names[row][column] if heat.names else ""
            colour = "#f4f5f6" if shade is None else _named(name, heat, hues) if name else _shaded(shade)
            hollow = bool(name) and shade is not None and shade < 0
            style: dict[str, Any] = {
                "facecolor": "white" if hollow else colour,
                "edgecolor": colour,
                "linewidth": 2 if hollow else 0,
            }
            axes.add_patch(Rectangle((column + 0.03, row + 0.06), 0.94, 0.88, **style))
            if (row, column) == heat.here:
                axes.add_patch(Rectangle((column + 0.01, row + 0.02), 0.98, 0.96, fill=False, ec=INK, lw=2.5))
            text = written(heat.values[row][column], heat.unit)
            if len(text) <= letters:
                axes.text(column + 0.5, row + 0.5, text, size=NOTE, ha="center", va="center")
    colours = {name: _named(name, heat, hues) for name in layout.whose(heat)}
    colours = colours or {text: _shaded(shade) for shade, text in layout.steps(heat)}
    return {text: Patch(facecolor=colour, edgecolor=MUTED, linewidth=0.4) for text, colour in colours.items()}


def _shaded(shade: float) -> str:
    """The colour of a value."""
    return layout.blend(layout.GOOD if shade >= 0 else layout.BAD, 0.7 * abs(shade))


def _named(name: str, heat: HeatMap, hues: dict[str, int]) -> str:
    """The colour of a name."""
    colour = MUTED if name in heat.plain else layout.COLOURS[hues[name] % len(layout.COLOURS)]
    return layout.blend(colour, layout.tint(name, heat))


# -------------------------------------------------------------------- bars


def _bars(axes: Axes, bars: Bars) -> dict[str, Artist]:
    side, places = layout.bar_scale(bars), [i + 0.5 for i in range(len(bars.groups))]
    room = 0.04 + 0.012 * max(map(len, bars.ends), default=0)  # for the texts at the ends
    axes.set(xlim=(0, side.high * (1 + room)), ylim=(len(bars.groups), 0), xlabel=bars.axis.label)
    _ticks(axes.xaxis, side, bars.axis.unit)
    axes.set_yticks(places, list(bars.groups))
    axes.grid(visible=False, axis="y")
    for label, role in zip(axes.get_yticklabels(), bars.roles, strict=True):
        label.set_fontweight("bold" if role == "baseline" else "normal")
    start = [0.0] * len(places)
    handles: dict[str, Any] = {}
    for part in bars.parts:
        lengths = [v or 0.0 for v in part.values]
        colour = layout.PART_COLOURS[layout.part_hue(part)]
        handles[part.label] = axes.barh(places, lengths, left=start, height=0.68, color=colour)
        start = [a + b for a, b in zip(start, lengths, strict=True)]
    for place, end, text in zip(places, start, bars.ends, strict=False):
        axes.text(end, place, f" {text}", size=SMALL, va="center_baseline", clip_on=False)
    return handles
