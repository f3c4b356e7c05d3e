"""A table or figure of the study as we can give it: rows to print, and curves to draw."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from gradwire.core.errors import Incompatible, UnknownName
from gradwire.laboratory.reproduce.setup import Source

Cell = str | float | int | None
COMPARISON = ("what", "paper", "formula", "our model", "measured")
NO_BARS = "The figure's bars are not in our text, so a paper's value stands only where its prose or caption gives one."


@dataclass(frozen=True)
class Curve:
    """One labelled line. `role` is codec, baseline or reference."""

    label: str
    xs: tuple[float, ...]
    ys: tuple[float | None, ...]
    role: str = "codec"


@dataclass(frozen=True)
class Scale:
    """What runs along a side; `unit` is rate, seconds, ratio, count or None."""

    label: str
    log: bool = False
    unit: str | None = None


@dataclass(frozen=True)
class Picture:
    """Curves over one quantity."""

    title: str
    x: Scale
    y: Scale
    curves: tuple[Curve, ...]


@dataclass(frozen=True, kw_only=True)
class Exhibit:
    """Everything about one table or figure."""

    id: str
    title: str
    columns: tuple[str, ...] = COMPARISON
    rows: tuple[tuple[Cell, ...], ...]
    notes: tuple[str, ...] = ()
    pictures: tuple[Picture, ...] = ()  # the parts of a figure
    brief: tuple[str, ...] = ()  # columns for a terminal, where all are too many
    details: tuple[str, ...] = ()  # told below the table there, instead of those columns


def answer(ask: Callable[..., float | None], *arguments: object) -> float | None:
    """A number, or None where whoever is asked has none to give."""
    try:
        return ask(*arguments)
    except (UnknownName, Incompatible):
        return None


def compared(
    what: str,
    ask: Callable[[Source], float | None],
    by: tuple[Source, Source],
    *,
    paper: Cell = None,
    measured: Cell = None,
    scale: float = 1.0,
) -> tuple[Cell, ...]:
    """One row: formula and our model are asked the same; `scale` 1e3 turns seconds into milliseconds."""
    values = [answer(ask, source) for source in by]
    return (what, paper, *(None if v is None else scale * v for v in values), measured)


def curve(label: str, xs: Sequence[float], of: Callable[[float], float | None], role: str = "codec") -> Curve:
    """A line through the points that have a value."""
    return Curve(label, tuple(xs), tuple(answer(of, x) for x in xs), role)


def both_curves(
    label: str, xs: Sequence[float], of: Callable[[Source, float], float | None], by: tuple[Source, Source]
) -> tuple[Curve, Curve]:
    """Our model as a line, the formula as a thin one behind it."""
    formula, ours = by
    return (
        curve(f"{label}, our model", xs, lambda x: of(ours, x)),
        curve(f"{label}, formula", xs, lambda x: of(formula, x), "reference"),
    )
