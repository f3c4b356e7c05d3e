"""Pictures as PNG and SVG, by matplotlib: sized and lettered for a slide, labels where the curves end.

Everything is placed in inches on one sheet, from the top downwards, so that nothing overlaps by chance.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from gradwire.core.errors import MissingExtra
from gradwire.laboratory.report import layout
from gradwire.laboratory.report.chart import Bars, Chart, HeatMap, Mark, Picture, Series
from gradwire.laboratory.report.export import named
from gradwire.laboratory.report.layout import FAINT, INK, MUTED, lines, rows
from gradwire.laboratory.report.scale import Scale, spread, tick, written

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

WIDTH, PLOT = 11.0, 4.3  # inches: of the sheet, and the height of a chart's frame
EDGE = 0.35  # around everything
DPI = 160
TITLE, TEXT, SMALL, NOTE = 19.0, 13.0, 11.5, 10.0  # points
LINE = 1.3 / 72  # inches between two lines of text, for each point of its size
ROW = 0.4  # of bars and heat maps
RC: dict[Any, Any] = {
    "font.family": "DejaVu Sans",  # comes with matplotlib, so the sheet is the same everywhere
    "text.parse_math": False,  # a dollar sign in a name is a dollar sign
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
        panels = [_panel(p) for p in pictures]
        figure = Figure(figsize=(WIDTH, sum(p.height for p in panels)), dpi=DPI, facecolor="white")
        top = 0.0
        hues = layout.hues(pictures)
        for panel in panels:
            panel.draw(figure, top, hues)
            top += panel.height
        sheet = io.BytesIO()
        metadata: dict[str, Any] = {"Date": None} if form == "svg" else {}
        figure.savefig(sheet, format=form, metadata=metadata)
    return sheet.getvalue()


def _panel(picture: Picture) -> _Panel:
    kinds: dict[type, type[_Panel]] = {Chart: _ChartPanel, HeatMap: _HeatPanel, Bars: _BarsPanel}
    return kinds[type(picture)](picture)


# -------------------------------------------------------------------- text


def _width(text: str, size: float, bold: bool = False) -> float:
    """Inches."""
    from matplotlib.font_manager import FontProperties
    from matplotlib.textpath import text_to_path

    properties = FontProperties(family="DejaVu Sans", size=size, weight="bold" if bold else "normal")
    width, _, _ = text_to_path.get_text_width_height_descent(text, properties, ismath=False)
    return float(width) / 72


def _widest(texts: Sequence[str], size: float) -> float:
    return max((_width(t, size) for t in texts), default=0.0)


def _wrapped(text: str, size: float, room: float, bold: bool = False) -> list[str]:
    """Lines that are no wider than the room, broken between words."""
    lines: list[str] = []
    for word in text.split():
        longer = f"{lines[-1]} {word}" if lines else word
        if lines and _width(longer, size, bold) <= room:
            lines[-1] = longer
        else:
            lines.append(word)
    return lines


# -------------------------------------------------------------------- one picture on the sheet


class _Panel:
    """Title above, notes below, and in between what the kinds of pictures differ in."""

    picture: Picture

    def __init__(self, picture: Picture) -> None:
        self.picture = picture
        room = WIDTH - 2 * EDGE
        self.head = [(line, TITLE, INK, "bold") for line in _wrapped(picture.title, TITLE, room, bold=True)]
        self.head += [(line, TEXT, MUTED, "normal") for line in _wrapped(picture.subtitle, TEXT, room)]
        self.foot = [line for note in picture.notes for line in _wrapped(note, NOTE, room)]
        self.above = EDGE + sum(size * LINE for _, size, _, _ in self.head) + 0.1
        self.below = EDGE + len(self.foot) * NOTE * LINE
        self.height = self.above + self.measure() + self.below

    def measure(self) -> float:
        """Inches between head and foot."""
        raise NotImplementedError

    def body(self, figure: Figure, top: float, hues: dict[str, int]) -> None:
        """Draw between head and foot."""
        raise NotImplementedError

    def draw(self, figure: Figure, top: float, hues: dict[str, int]) -> None:
        at = top + EDGE
        for line, size, colour, weight in self.head:
            at += size * LINE
            self.text(figure, EDGE, at, line, size=size, color=colour, weight=weight, va="bottom")
        self.body(figure, top + self.above, hues)
        at = top + self.height - self.below + 0.1
        for line in self.foot:
            self.text(figure, EDGE, at, line, size=NOTE, color=MUTED, va="top")
            at += NOTE * LINE

    @staticmethod
    def text(figure: Figure, x: float, y: float, text: str, **style: Any) -> None:
        """Text at inches from the left and from the top."""
        figure.text(x / WIDTH, 1 - y / figure.get_figheight(), text, **style)

    @staticmethod
    def frame(figure: Figure, left: float, top: float, width: float, height: float) -> Axes:
        """Axes at inches from the left and from the top, without a box."""
        whole = figure.get_figheight()
        axes = figure.add_axes((left / WIDTH, 1 - (top + height) / whole, width / WIDTH, height / whole))
        for side in ("top", "right", "left", "bottom"):
            axes.spines[side].set_visible(False)
        axes.tick_params(length=0, labelsize=SMALL, labelcolor=INK, pad=6)
        return axes


def _ticks(axis: Any, side: Scale, unit: str | None) -> None:
    """Ticks and their texts, and no others."""
    from matplotlib.ticker import NullLocator

    axis.set_ticks(list(side.ticks), [tick(t, unit) for t in side.ticks])
    axis.set_minor_locator(NullLocator())


# -------------------------------------------------------------------- curves


class _ChartPanel(_Panel):
    picture: Chart
    gap = SMALL * LINE  # between labels, in inches

    def measure(self) -> float:
        chart = self.picture
        self.x, self.y = layout.axes(chart)
        self.left = EDGE + _widest([tick(t, chart.y.unit) for t in self.y.ticks], SMALL) + 0.12
        self.places = self._places()
        labels = [s.label for s in chart.series if s.label]
        self.right = EDGE + (_widest(labels, SMALL) + 0.3 if self.places is not None else 0.2)
        self.plot = WIDTH - self.left - self.right
        self.rows = self._rows()
        self.over = 0.3 + (max(self.rows, default=0) + 0.5) * self.gap  # the y axis' name, and marks
        widths = [] if self.places is not None else [_width(label, SMALL) + 0.6 for label in labels]
        self.legend = [[labels[i] for i in line] for line in lines(widths, WIDTH - 2 * EDGE)]
        return self.over + PLOT + 0.65 + len(self.legend) * 0.28

    def _places(self) -> list[float] | None:
        """Inches from the top of the frame at which each curve's label stands; None if they need a legend."""
        chart = self.picture
        ends = [layout.last(s) for s in chart.series]
        wide = _widest([s.label for s in chart.series], SMALL) > WIDTH * 0.33
        if wide or any(s.points for s in chart.series) or any(e is None for e in ends):
            return None
        wanted = [PLOT * (1 - self.y.place(e[1])) for e in ends if e is not None]
        return spread(wanted, self.gap, 0.0, PLOT)

    def _rows(self) -> list[int]:
        """The line above the frame in which each mark's label has room."""
        starts = [self._label_left(m) for m in self.picture.marks]
        return rows(starts, [x + _width(m.label, NOTE) + 0.12 for x, m in zip(starts, self.picture.marks, strict=True)])

    def _label_left(self, mark: Mark) -> float:
        """Labels begin at their line, or end there where they would leave the sheet."""
        at, wide = self.left + self.plot * self.x.place(mark.at), _width(mark.label, NOTE)
        return at if at + wide < WIDTH - EDGE else at - wide

    def body(self, figure: Figure, top: float, hues: dict[str, int]) -> None:
        chart, start = self.picture, top + self.over
        axes = self.frame(figure, self.left, start, self.plot, PLOT)
        axes.set(xscale="log" if self.x.log else "linear", yscale="log" if self.y.log else "linear")
        axes.set(xlim=(self.x.low, self.x.high), ylim=(self.y.low, self.y.high))
        _ticks(axes.xaxis, self.x, chart.x.unit)
        _ticks(axes.yaxis, self.y, chart.y.unit)
        axes.grid(axis="y", color=FAINT, linewidth=1)
        axes.spines["bottom"].set_visible(True)
        axes.spines["bottom"].set_color(MUTED)
        axes.set_axisbelow(True)
        self.text(figure, EDGE, top + 0.05, chart.y.label, size=SMALL, color=MUTED, va="top")
        below = start + PLOT + 0.52
        self.text(
            figure, self.left + self.plot / 2, below, chart.x.label, size=SMALL, color=MUTED, va="bottom", ha="center"
        )
        self._marks(figure, axes, start)
        for number, series in enumerate(chart.series):
            self._curve(figure, axes, start, number, series, hues)
        self._draw_legend(figure, below + 0.15, hues)

    def _marks(self, figure: Figure, axes: Axes, start: float) -> None:
        for mark, row in zip(self.picture.marks, self.rows, strict=True):
            up = 0.08 + row * self.gap
            style: dict[str, Any] = {"color": MUTED, "linewidth": 1, "linestyle": (0, (1, 2)), "clip_on": False}
            axes.plot([mark.at] * 2, [0, 1 + up / PLOT], transform=axes.get_xaxis_transform(), **style)
            self.text(figure, self._label_left(mark), start - up, mark.label, size=NOTE, color=MUTED, va="bottom")

    def _style(self, series: Series, hues: dict[str, int]) -> dict[str, Any]:
        """Colour, dashes and marker."""
        if series.role == "reference":
            return {"color": MUTED, "linewidth": 1.2, "zorder": 1.5}
        if series.role == "baseline":
            dash = layout.DASHES[layout.dashes(self.picture.series)[series.label]]
            return {"color": INK, "linewidth": 1.8, "linestyle": (0, dash)}
        number = hues[series.label]
        few = len(series.xs) <= 12
        marker = layout.MARKERS[number % len(layout.MARKERS)] if few or series.points else ""
        colour = layout.COLOURS[number % len(layout.COLOURS)]
        return {"color": colour, "linewidth": 2.2, "marker": marker, "markersize": 6.0}

    def _curve(
        self, figure: Figure, axes: Axes, start: float, number: int, series: Series, hues: dict[str, int]
    ) -> None:
        style = self._style(series, hues)
        ys = [float("nan") if y is None else y for y in series.ys]
        if series.points:
            style |= {"linestyle": "none", "marker": style.get("marker") or "o", "alpha": 0.75}
        axes.plot(list(series.xs), ys, clip_on=False, **style)
        if self.places is None:
            return
        end = layout.last(series)
        assert end is not None, "labels stand at ends only where every curve has one"
        place = self.places[number]
        label = self.left + self.plot + 0.22
        axes.annotate(
            "",
            xy=end,
            xytext=((label - 0.05 - self.left) / self.plot, 1 - place / PLOT),
            textcoords="axes fraction",
            arrowprops={"arrowstyle": "-", "color": style["color"], "linewidth": 0.7, "shrinkA": 0, "shrinkB": 4},
            annotation_clip=False,
        )
        weight = "bold" if series.role == "baseline" else "normal"
        self.text(
            figure, label, start + place, series.label, size=SMALL, color=style["color"], va="center", weight=weight
        )

    def _draw_legend(self, figure: Figure, top: float, hues: dict[str, int]) -> None:
        from matplotlib.lines import Line2D

        by_label = {s.label: s for s in self.picture.series}
        whole = figure.get_figheight()
        for row, labels in enumerate(self.legend):
            at, y = EDGE, top + row * 0.28 + 0.14
            for label in labels:
                style = self._style(by_label[label], hues)
                if by_label[label].points:
                    style |= {"linestyle": "none", "marker": style.get("marker") or "o"}
                ends = [at / WIDTH, (at + 0.16) / WIDTH, (at + 0.32) / WIDTH]
                line = Line2D(ends, [1 - y / whole] * 3, transform=figure.transFigure, markevery=[1], **style)
                figure.add_artist(line)
                self.text(figure, at + 0.4, y, label, size=SMALL, color=INK, va="center_baseline")
                at += _width(label, SMALL) + 0.6


# -------------------------------------------------------------------- heat maps


class _HeatPanel(_Panel):
    picture: HeatMap

    def measure(self) -> float:
        heat = self.picture
        self.names = [named(y, heat.y) for y in heat.ys]
        self.columns = [named(x, heat.x) for x in heat.xs]
        self.left = EDGE + min(_widest(self.names, SMALL) + 0.15, WIDTH * 0.4)
        self.cell = (WIDTH - EDGE - self.left) / len(heat.xs)
        self.two = any(self._fits(t, NOTE) for row in heat.text for t in row)
        self.row = ROW * 1.35 if self.two else ROW
        return 0.35 + self.row * len(heat.ys) + 0.7

    def _fits(self, text: str, size: float) -> bool:
        return 0 < _width(text, size) < self.cell - 0.1

    def body(self, figure: Figure, top: float, hues: dict[str, int]) -> None:
        heat, height = self.picture, self.row * len(self.picture.ys)
        axes = self.frame(figure, self.left, top + 0.35, WIDTH - EDGE - self.left, height)
        axes.set_xlim(0, len(heat.xs))
        axes.set_ylim(len(heat.ys), 0)
        axes.set_xticks([i + 0.5 for i in self._shown()], [self.columns[i] for i in self._shown()])
        axes.set_yticks([i + 0.5 for i in range(len(heat.ys))], self.names)
        self.text(
            figure, EDGE, top + 0.05, f"rows: {heat.y.label} · colour: {heat.label}", size=SMALL, color=MUTED, va="top"
        )
        middle, below = self.left + self.cell * len(heat.xs) / 2, top + 0.35 + height + 0.6
        self.text(figure, middle, below, heat.x.label, size=SMALL, color=MUTED, va="bottom", ha="center")
        for row, shades in enumerate(layout.shades(heat)):
            for column, shade in enumerate(shades):
                self._cell(axes, row, column, shade)

    def _shown(self) -> list[int]:
        """Columns whose names are written: all, or every so many."""
        every = next(n for n in range(1, 1000) if _widest(self.columns, SMALL) + 0.1 < n * self.cell)
        return list(range(0, len(self.columns), every))

    def _cell(self, axes: Axes, row: int, column: int, shade: float | None) -> None:
        from matplotlib.patches import Rectangle

        colour = (
            "#f4f5f6" if shade is None else layout.blend(layout.GOOD if shade >= 0 else layout.BAD, 0.7 * abs(shade))
        )
        axes.add_patch(Rectangle((column + 0.02, row + 0.04), 0.96, 0.92, color=colour, linewidth=0))
        value, text = written(self.picture.values[row][column], self.picture.unit), ""
        if self.picture.text and shade is not None and self._fits(self.picture.text[row][column], NOTE):
            text = self.picture.text[row][column]
        if self._fits(value, SMALL):
            up = 0.36 if text else 0.5
            axes.text(column + 0.5, row + up, value, size=SMALL, color=INK, ha="center", va="center")
        if text:
            axes.text(column + 0.5, row + 0.72, text, size=NOTE, color=INK, ha="center", va="center")


# -------------------------------------------------------------------- bars


class _BarsPanel(_Panel):
    picture: Bars

    def measure(self) -> float:
        bars = self.picture
        self.x = layout.bar_scale(bars)
        self.left = EDGE + _widest(bars.groups, SMALL) + 0.15
        self.right = EDGE + _widest(bars.ends, SMALL) + 0.1
        return 0.4 + ROW * len(bars.groups) + 0.75

    def body(self, figure: Figure, top: float, hues: dict[str, int]) -> None:
        bars, height = self.picture, ROW * len(self.picture.groups)
        axes = self.frame(figure, self.left, top + 0.4, WIDTH - self.left - self.right, height)
        axes.set_xlim(0, self.x.high)
        axes.set_ylim(len(bars.groups), 0)
        _ticks(axes.xaxis, self.x, bars.axis.unit)
        axes.set_yticks([i + 0.5 for i in range(len(bars.groups))], list(bars.groups))
        for label, role in zip(axes.get_yticklabels(), bars.roles, strict=True):
            label.set_fontweight("bold" if role == "baseline" else "normal")
        axes.grid(axis="x", color=FAINT, linewidth=1)
        axes.set_axisbelow(True)
        self._stack(axes)
        self._key(figure, top + 0.1)
        middle, below = self.left + (WIDTH - self.left - self.right) / 2, top + 0.4 + height + 0.6
        self.text(figure, middle, below, bars.axis.label, size=SMALL, color=MUTED, va="bottom", ha="center")

    def _stack(self, axes: Axes) -> None:
        bars = self.picture
        places = [i + 0.5 for i in range(len(bars.groups))]
        start = [0.0] * len(places)
        for part in bars.parts:
            lengths = [v or 0.0 for v in part.values]
            colour = layout.PART_COLOURS[layout.part_hue(part)]
            axes.barh(places, lengths, left=start, height=0.68, color=colour)
            start = [a + b for a, b in zip(start, lengths, strict=True)]
        for place, end, text in zip(places, start, bars.ends, strict=False):
            axes.text(end, place, f" {text}", size=SMALL, color=INK, va="center_baseline", clip_on=False)

    def _key(self, figure: Figure, top: float) -> None:
        """What the colours are."""
        from matplotlib.patches import Rectangle

        at = EDGE
        for part in self.picture.parts:
            colour = layout.PART_COLOURS[layout.part_hue(part)]
            corner = (at / WIDTH, 1 - (top + 0.17) / figure.get_figheight())
            size = (0.2 / WIDTH, 0.17 / figure.get_figheight())
            figure.add_artist(Rectangle(corner, *size, color=colour, linewidth=0, transform=figure.transFigure))
            self.text(figure, at + 0.28, top + 0.085, part.label, size=SMALL, color=INK, va="center_baseline")
            at += _width(part.label, SMALL) + 0.6
