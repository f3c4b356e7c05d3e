"""Along an axis: how values are written, and where ticks stand; the same whichever program draws the picture."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from gradwire.core.errors import ConfigError
from gradwire.core.units import format_bytes, format_milliseconds, format_rate

FEW = 8  # so many different values are ticks themselves
TICKS = 6  # about as many, otherwise
FACTORS = (  # within one power of ten, on a logarithmic axis of so many of them
    (1.3, (1, 1.5, 2, 3, 5, 7)),
    (2.5, (1, 2, 5)),
    (4, (1, 3)),
    (math.inf, (1,)),
)


def _plain(value: float) -> str:
    """
    >>> _plain(12345.0), _plain(0.25), _plain(2.0)
    ('12,345', '0.25', '2')
    """
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def _ratio(value: float) -> str:
    """
    >>> _ratio(1.0), _ratio(2.126), _ratio(13.26)
    ('1.00', '2.13', '13.3')
    """
    return f"{value:.2f}" if abs(value) < 10 else f"{value:.1f}"


FORMATS: dict[str, Callable[[float], str]] = {
    "rate": format_rate,
    "seconds": format_milliseconds,
    "bytes": format_bytes,
    "ratio": _ratio,
    "share": lambda value: f"{100 * value:.3g} %",
    "count": _plain,
}
BASE_UNITS = {"rate": "bit/s", "seconds": "s", "bytes": "bytes", "ratio": "times", "share": "of 1", "count": "count"}


def check_unit(unit: str | None) -> None:
    """Refuse a unit that cannot be written."""
    if unit is not None and unit not in FORMATS:
        raise ConfigError(f"chart: `unit` must be None or one of {', '.join(FORMATS)}, got {unit!r}")


def written(value: float | None, unit: str | None) -> str:
    """A value for people; a gap is a dash.

    >>> written(2e9, "rate"), written(None, "rate"), written(0.0123, "seconds"), written(0.125, "share")
    ('2 Gbit/s', '-', '12.3 ms', '12.5 %')
    """
    return "-" if value is None else FORMATS.get(unit or "count", _plain)(value)


def tick(value: float, unit: str | None) -> str:
    """A round value beside an axis.

    >>> tick(5.0, "ratio"), tick(0.1, "seconds")
    ('5', '100 ms')
    """
    return f"{value:g}" if unit == "ratio" else written(value, unit)


@dataclass(frozen=True)
class Scale:
    """The range of an axis and its ticks."""

    low: float
    high: float
    log: bool
    ticks: tuple[float, ...]

    def place(self, value: float) -> float:
        """Where a value lies: 0 at the low end, 1 at the high end."""
        low, high, at = (math.log(v) if self.log else v for v in (self.low, self.high, value))
        return (at - low) / (high - low)


def scale(values: Sequence[float], *, log: bool, from_zero: bool = False, own_ticks: bool = False) -> Scale:
    """A scale that holds all values. With `own_ticks`, few different values are the ticks."""
    low, high = min(values), max(values)
    if log:
        return _log_scale(low, high, sorted(set(values)) if own_ticks else [])
    if from_zero and low >= 0:
        low = 0.0
    if low == high == 0:
        high = 1.0
    if low == high:
        low, high = low - (abs(low) or 1.0) / 2, high + (abs(high) or 1.0) / 2
    distinct = sorted(set(values))
    if own_ticks and len(distinct) <= FEW:
        return Scale(low, high, False, tuple(distinct))
    step = _step((high - low) / TICKS)
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    ticks = tuple(float(f"{i * step:.12g}") for i in range(first, last + 1))
    return Scale(min(low, ticks[0]), max(high * 1.02 if from_zero else high, ticks[-1]), False, ticks)


def _step(wanted: float) -> float:
    """The smallest of 1, 2, 5 times a power of ten that is not below `wanted`."""
    power = 10.0 ** math.floor(math.log10(wanted))
    return next(f * power for f in (1, 2, 5, 10) if f * power >= wanted * (1 - 1e-9))


def _log_scale(low: float, high: float, own: Sequence[float]) -> Scale:
    room = max((high / low) ** 0.04, 1.03)  # so that nothing lies on the frame
    low, high = low / room, high * room
    if own and len(own) <= FEW:
        return Scale(low, high, True, tuple(own))
    decades = math.log10(high / low)
    factors = next(f for most, f in FACTORS if decades <= most)
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    ticks = [float(f"{f}e{p}") for p in powers for f in factors if low <= float(f"{f}e{p}") <= high]
    if len(ticks) < 2:  # less than one step of 1, 2, 5: divide it evenly
        step = _step((high - low) / TICKS)
        ticks = [float(f"{i * step:.12g}") for i in range(math.ceil(low / step), math.floor(high / step) + 1)]
    return Scale(low, high, True, tuple(ticks))
