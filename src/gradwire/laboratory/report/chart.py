"""What a picture shows, apart from how it is drawn: `Chart` (curves or points), `HeatMap`, `Bars`; and `write`.

    chart = Chart("Step time", Axis("bandwidth", log=True, unit="rate"), Axis("step", unit="seconds"),
                  (Series("fp32 DDP", (1e9, 1e10), (0.4, 0.1), role="baseline"),
                   Series("powersgd(rank=4)", (1e9, 1e10), (0.2, 0.15))))
    write(chart, "step.svg")        # or .png, .html, .csv, .json

Numbers are in base units (seconds, bytes, bit/s); an axis says by its `unit` how they are written for people. A value
that is None or not finite is a gap: not measured, or not possible.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from gradwire.core.errors import ConfigError
from gradwire.laboratory.report.scale import check_unit

ROLES = ("codec", "baseline", "reference")
SUFFIXES = (".png", ".svg", ".html", ".csv", ".json")

Value: TypeAlias = float | None


@dataclass(frozen=True)
class Axis:
    """What runs along one side. `unit`: rate, seconds, bytes, ratio, share, count, or None for plain numbers."""

    label: str
    log: bool = False
    unit: str | None = None

    def __post_init__(self) -> None:
        check_unit(self.unit)


@dataclass(frozen=True)
class Series:
    """One curve. A baseline is drawn dashed and without colour, a reference as a thin line behind the others."""

    label: str
    xs: Sequence[float]
    ys: Sequence[Value]
    role: str = "codec"
    note: str = ""  # what to know of it, shown where the pointer rests
    points: bool = False  # markers alone, without a line
    names: Sequence[str] = ()  # of the points, where each is a thing of its own

    def __post_init__(self) -> None:
        object.__setattr__(self, "ys", gaps(self.ys))
        _one_of("role", self.role, ROLES)
        if len(self.xs) != len(self.ys) or len(self.names) not in (0, len(self.xs)):
            raise ConfigError(
                f"chart: series {self.label!r} needs as many xs as ys, and as many names or none, "
                f"got {len(self.xs)}, {len(self.ys)} and {len(self.names)}"
            )
        if not all(math.isfinite(x) for x in self.xs):
            raise ConfigError(f"chart: series {self.label!r} has an x that is not a finite number; leave the point out")


@dataclass(frozen=True)
class Mark:
    """A vertical line with a label, such as a crossover."""

    at: float
    label: str


@dataclass(frozen=True)
class Chart:
    """Curves over one quantity, or points."""

    title: str
    x: Axis
    y: Axis
    series: Sequence[Series]
    subtitle: str = ""
    notes: Sequence[str] = ()
    marks: Sequence[Mark] = ()

    def __post_init__(self) -> None:
        if not any(y is not None for s in self.series for y in s.ys):
            raise ConfigError(f"chart: {self.title!r} has no value to show; give at least one series with a number")
        _positive(self.x, (x for s in self.series for x in s.xs))
        _positive(self.x, (m.at for m in self.marks))
        _positive(self.y, (y for s in self.series for y in s.ys))


@dataclass(frozen=True)
class HeatMap:
    """A value for each pair of x and y. With a `center`, as of ratios, colours part there; without, they only grow.

    With `names`, a cell has the colour of its name, and is hollow where its value is below the center.
    """

    title: str
    x: Axis
    y: Axis
    xs: Sequence[float | str]
    ys: Sequence[float | str]
    values: Sequence[Sequence[Value]]  # one row a y
    label: str  # what a value is
    center: float | None = 1.0
    unit: str | None = "ratio"  # of the values
    names: Sequence[Sequence[str]] = ()  # whose each value is; "" where there is none
    plain: Sequence[str] = ()  # names without a colour of their own, such as DDP
    here: tuple[int, int] | None = None  # the row and column of the cell that is marked
    subtitle: str = ""
    notes: Sequence[str] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "values", tuple(gaps(row) for row in self.values))
        check_unit(self.unit)
        for name, grid in (("values", self.values), ("names", self.names)):
            whole = [len(row) for row in grid] == [len(self.xs)] * len(self.ys)
            if not whole and not (name == "names" and not grid):
                raise ConfigError(
                    f"heat map: {self.title!r} needs {len(self.ys)} rows of {len(self.xs)} `{name}`, "
                    f"got rows of {[len(row) for row in grid]}"
                )
        if not any(v is not None for row in self.values for v in row):
            raise ConfigError(f"heat map: {self.title!r} has no value to show; give at least one")


@dataclass(frozen=True)
class Part:
    """One layer of stacked bars: a value for each bar."""

    label: str
    values: Sequence[Value]
    hue: int | None = None  # which of the colours of parts; by its place where none is given


@dataclass(frozen=True)
class Bars:
    """Bars, one a group, made of stacked parts."""

    title: str
    axis: Axis
    groups: Sequence[str]
    parts: Sequence[Part]
    roles: Sequence[str] = ()  # of the groups; codec where none are given
    ends: Sequence[str] = ()  # what is written at the end of each bar
    subtitle: str = ""
    notes: Sequence[str] = ()

    def __post_init__(self) -> None:
        parts = tuple(Part(p.label, gaps(p.values), n if p.hue is None else p.hue) for n, p in enumerate(self.parts))
        object.__setattr__(self, "parts", parts)
        object.__setattr__(self, "roles", tuple(self.roles) or ("codec",) * len(self.groups))
        for role in self.roles:
            _one_of("role", role, ROLES)
        lengths = {len(p.values) for p in parts} | {len(self.roles)} | ({len(self.ends)} if self.ends else set())
        if not parts or not self.groups or lengths != {len(self.groups)}:
            raise ConfigError(
                f"bars: {self.title!r} needs at least one part and one group, and a value of each part for each of the "
                f"{len(self.groups)} groups, got lengths {sorted(lengths)}"
            )


Picture: TypeAlias = Chart | HeatMap | Bars


def gaps(values: Iterable[Value]) -> tuple[Value, ...]:
    """The same, with None for what is not a finite number."""
    return tuple(v if v is not None and math.isfinite(v) else None for v in values)


def write(pictures: Picture | Sequence[Picture], path: str | Path, *, title: str = "") -> Path:
    """Draw one picture, or several below each other, into a file of the kind that its suffix names.

    `title` heads an HTML page; else the first picture's does.
    """
    shown = [pictures] if isinstance(pictures, Chart | HeatMap | Bars) else list(pictures)
    if not shown:
        raise ConfigError("chart: there is no picture to write; give at least one")
    path = checked(path)
    return save(path, _content(shown, path.suffix.lower(), title or shown[0].title))


def _content(pictures: Sequence[Picture], suffix: str, title: str) -> bytes:
    from gradwire.laboratory.report import export, page, plots

    if suffix in (".png", ".svg"):
        return plots.draw(pictures, suffix[1:])
    if suffix == ".html":
        return page.of_pictures(title, pictures).encode()
    return (export.csv_text(pictures) if suffix == ".csv" else export.json_text(pictures)).encode()


def checked(path: str | Path) -> Path:
    """The path, if pictures can be written in the format its suffix names."""
    path = Path(path)
    if path.suffix.lower() not in SUFFIXES:
        raise ConfigError(
            f"chart: a picture is written as {', '.join(SUFFIXES[:-1])} or {SUFFIXES[-1]}, got {str(path)!r}; "
            "choose one of these endings"
        )
    return path


def save(path: Path, content: bytes) -> Path:
    """Write a whole file; its folder is made if it is not there."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    except OSError as problem:
        raise ConfigError(
            f"gradwire: {str(path)!r} cannot be written ({problem.strerror}); name another file"
        ) from problem
    return path


def _one_of(field: str, value: str, allowed: Sequence[str]) -> None:
    if value not in allowed:
        raise ConfigError(f"chart: `{field}` must be {' or '.join(map(repr, allowed))}, got {value!r}")


def _positive(axis: Axis, values: Iterable[Value]) -> None:
    """A logarithm needs it."""
    low = min((v for v in values if v is not None), default=1.0)
    if axis.log and low <= 0:
        raise ConfigError(
            f"chart: {axis.label!r} is a logarithmic axis and takes numbers above 0, got {low:g}; "
            "leave the point out or make the axis linear"
        )
