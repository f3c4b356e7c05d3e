"""What can be swept: how its values are typed, written and spaced.

Ranges are spaced evenly in the logarithm. Numbers of GPUs are those that fill nodes, numbers of GPUs in a node those
that divide the GPUs, batch sizes whole numbers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gradwire.core.errors import ConfigError, UnknownName, suggestion
from gradwire.core.registry import Check
from gradwire.core.units import format_milliseconds, format_rate, parse_rate, parse_seconds
from gradwire.planner.workload import OVERLAP

ALONE, PAIRED = 25, 10  # points of a range, if one quantity is swept, or two
MOST_POINTS = 5000  # of a sweep; each takes about a millisecond a curve

WRITTEN = {
    "gpus": "{} GPUs",
    "gpus_per_node": "{} GPUs a node",
    "batch": "batch {}",
    "compute_speed": "compute speed {}x",
    "encode_speed": "encode speed {}x",
    "ratio": "ratio {}x",
}
TOLD = {  # of a set-up, unless it is as usual
    "accumulate": ("{} micro-batches a step", 1),
    "mode": ("mode {}", OVERLAP),
    "strategy": ("strategy {}", "auto"),
}


@dataclass(frozen=True)
class Quantity:
    """One of what `whatif` sweeps. Values are in base units."""

    name: str
    label: str  # on an axis
    unit: str  # rate, seconds, count or ratio
    example: str

    @property
    def whole(self) -> bool:
        return self.unit == "count"

    @property
    def sparse(self) -> bool:
        """Whether not every whole number is possible, so that there is no looking between two values."""
        return self.name in ("gpus", "gpus_per_node")

    @property
    def title(self) -> str:
        return self.label.partition(",")[0]

    def read(self, typed: str | float) -> float:
        """A value of what was typed."""
        if self.unit == "rate":
            return parse_rate(typed)
        return parse_seconds(typed) if self.unit == "seconds" else self._number(typed)

    def _number(self, typed: str | float) -> float:
        wanted = "whole numbers above 0, such as 8" if self.whole else "factors above 0, such as 2 or 0.5"
        try:
            value = float(typed)
        except ValueError:
            value = math.nan
        if not 0 < value < math.inf or (self.whole and value != int(value)):
            raise ConfigError(f"whatif: {self.name} takes {wanted}; got {typed!r}")
        return value

    def exact(self, value: float) -> float | int:
        """As predictions take it."""
        return int(value) if self.whole else value

    def written(self, value: float) -> str:
        """For people.

        >>> quantity("latency").written(2e-5), quantity("gpus").written(64), quantity("ratio").written(2.5)
        ('20 us', '64 GPUs', 'ratio 2.5x')
        """
        if self.unit == "rate":
            return format_rate(value)
        if self.unit == "seconds":
            return f"{value * 1e6:.3g} us" if value < 1e-3 else format_milliseconds(value)
        return WRITTEN[self.name].format(f"{value:.0f}" if self.whole else f"{value:.3g}")

    def cell(self, value: float) -> str:
        """The same where a heading says what it is.

        >>> quantity("bandwidth").cell(1e9), quantity("gpus").cell(64), quantity("ratio").cell(2.5)
        ('1 Gbit/s', '64', '2.5x')
        """
        return (
            self.written(value) if self.name not in WRITTEN else f"{value:.3g}x" if not self.whole else f"{value:.0f}"
        )

    def middle(self, low: float, high: float) -> float:
        """Between two values: halfway in the logarithm, or a whole number."""
        return math.floor((low + high) / 2) if self.whole else math.sqrt(low * high) if low else high / 2

    def between(self, low: float, high: float, precision: float) -> bool:
        """Whether it is worth while to look between two values."""
        if self.whole:
            return not self.sparse and high - low > 1
        return high - low > precision * high and high > 1e-9


QUANTITIES = {
    q.name: q
    for q in (
        Quantity("bandwidth", "bandwidth of a node", "rate", "bandwidth=1gbit:30gbit"),
        Quantity("latency", "latency of a message", "seconds", "latency=5us:500us"),
        Quantity("gpus", "number of GPUs", "count", "gpus=8,16,32"),
        Quantity("gpus_per_node", "GPUs a node", "count", "gpus_per_node=1:8"),
        Quantity("batch", "batch of one GPU", "count", "batch=16:128"),
        Quantity("compute_speed", "speed of computing, times the profile's", "ratio", "compute_speed=0.5:4"),
        Quantity("encode_speed", "speed of encoding, times the profile's", "ratio", "encode_speed=0.5:10"),
        Quantity("ratio", "size of payloads, times smaller", "ratio", "ratio=1:16"),
    )
}


def quantity(name: str) -> Quantity:
    """By its name."""
    if name not in QUANTITIES:
        raise UnknownName(f"whatif: no quantity named {name!r}; {suggestion(name, QUANTITIES)}")
    return QUANTITIES[name]


def values(
    swept: Quantity, wish: str | Sequence[str | float], setup: Mapping[str, Any], *, alone: bool
) -> tuple[float, ...]:
    """The values of a sweep, in order: of a range, a list as typed, or values."""
    if isinstance(wish, str) and ":" in wish:
        return _range(swept, wish, setup, alone)
    typed = [t.strip() for t in wish.split(",") if t.strip()] if isinstance(wish, str) else list(wish)
    found = tuple(sorted({swept.read(t) for t in typed}))
    if not found:
        raise ConfigError(f"whatif: {swept.name} has no values; type a range or a list, as in {swept.example}")
    return found


def _range(swept: Quantity, text: str, setup: Mapping[str, Any], alone: bool) -> tuple[float, ...]:
    typed = [t.strip() for t in text.split(":")]
    if len(typed) > 3 or not all(typed):
        raise ConfigError(
            f"whatif: a range is written FROM:TO or FROM:TO:POINTS, as in {swept.example}; got '{swept.name}={text}'"
        )
    low, high = swept.read(typed[0]), swept.read(typed[1])
    if low >= high:
        what = "runs backwards" if low > high else "holds a single value"
        instead = f"{typed[1]}:{typed[0]}" if low > high else f"{typed[0]}"
        raise ConfigError(
            f"whatif: the range {swept.name}={text} {what}; type {swept.name}={instead}, or another range, "
            f"as in {swept.example}"
        )
    count = _count(swept, text, typed[2]) if len(typed) == 3 else None
    fitting: dict[str, Callable[..., tuple[float, ...]]] = {"gpus": _fill, "gpus_per_node": _divide}
    if swept.name in fitting:
        return fitting[swept.name](int(low), int(high), count, setup)
    spaced = _spaced(low, high, count or (ALONE if alone else PAIRED), digits=3 if alone else 2)
    return tuple(sorted({float(round(v)) for v in spaced})) if swept.whole else spaced


def _count(swept: Quantity, text: str, typed: str) -> int:
    if not typed.isdecimal() or not 2 <= int(typed) <= MOST_POINTS:
        raise ConfigError(
            f"whatif: the number of points of a range is a whole number from 2 to {MOST_POINTS}, got {typed!r} in "
            f"'{swept.name}={text}'"
        )
    return int(typed)


def _spaced(low: float, high: float, count: int, digits: int = 3) -> tuple[float, ...]:
    """Evenly in the logarithm (from 0 on: evenly), rounded as far as all stay apart; the ends as they are.

    >>> _spaced(1.0, 100.0, 3), _spaced(0.0, 1.0, 3), _spaced(1.0, 1.001, 3)
    ((1.0, 10.0, 100.0), (0.0, 0.5, 1.0), (1.0, 1.0005, 1.001))
    """
    shares = [i / (count - 1) for i in range(1, count - 1)]
    inner = [low * (high / low) ** s if low else high * s for s in shares]
    found = {low, high, *(float(f"{v:.{digits}g}") for v in inner)}
    if (len(found) < count or min(found) < low or max(found) > high) and digits < 15:
        return _spaced(low, high, count, digits + 1)
    return tuple(sorted(v for v in found if low <= v <= high))


def _fill(low: int, high: int, count: int | None, setup: Mapping[str, Any]) -> tuple[float, ...]:
    """Numbers of GPUs that fill nodes: by doubling, or as many as wanted."""
    node = setup.get("gpus_per_node", 1)
    Check("gradwire").integer("gpus_per_node", node, 1)
    first, last = -(-low // node) * node, high // node * node
    if first > last:
        raise ConfigError(
            f"whatif: no number of GPUs from {low} to {high} fills nodes of {node}; type a range that holds a multiple "
            f"of {node}, or --gpus-per-node 1"
        )
    if count is not None:
        found = {round(v / node) * node for v in _spaced(first, last, count)} if last > first else {first}
    else:
        ends = {v for v in (low, high) if v % node == 0}
        found = ends | {node * 2**i for i in range(64) if first <= node * 2**i <= last} or {first, last}
    return tuple(float(v) for v in sorted(found))


def _divide(low: int, high: int, count: int | None, setup: Mapping[str, Any]) -> tuple[float, ...]:
    """Numbers of GPUs in a node that divide all GPUs; where those are swept too, by doubling."""
    gpus = setup.get("gpus")
    if gpus is None:
        return tuple(float(v) for v in sorted({low, high} | {2**i for i in range(64) if low <= 2**i <= high}))
    found = [v for v in range(low, high + 1) if gpus % v == 0]
    if not found:
        raise ConfigError(
            f"whatif: no number of GPUs a node from {low} to {high} divides {gpus} GPUs; type a range that holds one, "
            "such as 1:8"
        )
    wanted = min(count or len(found), len(found))
    picked = {found[round(i * (len(found) - 1) / max(1, wanted - 1))] for i in range(wanted)}
    return tuple(float(v) for v in sorted(picked))


def setting(setup: Mapping[str, Any]) -> str:
    """A set-up in words.

    >>> setting({"model": "resnet50", "gpus": 16, "gpus_per_node": 4, "bandwidth": "10gbit", "accumulate": 2})
    'resnet50, 16 GPUs, 4 a node, 10 Gbit/s, 2 micro-batches a step'
    """
    told = [str(setup["model"])] if "model" in setup else []
    for name in ("batch", "gpus", "gpus_per_node", "bandwidth", "latency"):
        if setup.get(name) is not None:
            told.append(QUANTITIES[name].written(QUANTITIES[name].read(setup[name])))
    if "gpus" in setup:
        told = [text.replace(" GPUs a node", " a node") for text in told]
    for name, (text, usual) in TOLD.items():
        if setup.get(name, usual) != usual:
            told.append(text.format(setup[name]))
    return ", ".join(told)
