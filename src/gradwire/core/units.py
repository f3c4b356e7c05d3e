"""Bytes, bit/s and seconds: the only home of conversions, and of how they are written for people.

Prefixes are decimal, as on a network: 1 MB is 10⁶ bytes, 1 Gbit/s is 10⁹ bits a second.
"""

from __future__ import annotations

import math
import re
from contextlib import suppress

from gradwire.core.errors import ConfigError

BITS_PER_BYTE = 8
GBIT = 1e9  # bit/s in one Gbit/s

_PREFIXES = ((1e9, "G"), (1e6, "M"), (1e3, "k"))
_FACTORS = {"k": 1e3, "m": 1e6, "g": 1e9, "t": 1e12}  # of what is read
_SECONDS = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0}


def transfer_seconds(num_bytes: float, bits_per_second: float) -> float:
    """Seconds that so many bytes occupy a link, latency left out."""
    return num_bytes * BITS_PER_BYTE / bits_per_second


def bandwidth(num_bytes: float, seconds: float) -> float:
    """The bit/s at which so many bytes take so many seconds."""
    return num_bytes * BITS_PER_BYTE / seconds


def parse_rate(rate: str | float) -> float:
    """Bits a second of what people type: ``1gbit``, ``200 Mbit/s``, ``10Gbps``, or a number of bits a second.

    >>> parse_rate("1gbit"), parse_rate("2.5 Gbit/s"), parse_rate("10Gbps"), parse_rate(1e6)
    (1000000000.0, 2500000000.0, 10000000000.0, 1000000.0)
    """
    value = 0.0
    if not isinstance(rate, str):
        value = float(rate)
    elif match := re.fullmatch(r"\s*([0-9.e+]+?)\s*([kmgt])(bits?(?:/s|ps)?|b(?:/s|ps))\s*", rate, re.I):
        number, prefix, unit = match.groups()
        with suppress(ValueError):
            value = float(number) * _FACTORS[prefix.lower()]
        if unit in ("B/s", "Bps") and 0 < value < math.inf:
            bits = format_rate(BITS_PER_BYTE * value).replace(" ", "")
            raise ConfigError(f"gradwire: a rate is told in bits a second, got bytes in {rate!r}; write {bits}")
    if not 0 < value < math.inf:
        raise ConfigError(f"gradwire: a rate needs a number above 0 and a unit, as in 100mbit or 1gbit; got {rate!r}")
    return value


def parse_seconds(time: str | float) -> float:
    """Seconds of what people type: ``20us``, ``1.5 ms``, or a number of seconds that is not text.

    >>> parse_seconds("20us"), parse_seconds("1.5 ms"), parse_seconds("2s"), parse_seconds(0.25)
    (2e-05, 0.0015, 2.0, 0.25)
    """
    if isinstance(time, str):
        match = re.fullmatch(r"\s*([0-9.]+)\s*(ns|us|µs|ms|s)\s*", time)
        try:
            value = float(f"{float(match[1]) * _SECONDS[match[2]]:.15g}") if match else -1.0
        except ValueError:
            value = -1.0
    else:
        value = float(time)
    if not 0 <= value < math.inf:
        raise ConfigError(f"gradwire: a time needs a number and a unit, as in 20us, 1.5ms or 2s; got {time!r}")
    return value


def format_bytes(num_bytes: float) -> str:
    """
    >>> format_bytes(6355644), format_bytes(832)
    ('6.36 MB', '832 B')
    """
    return _scaled(num_bytes, "B")


def format_rate(bits_per_second: float) -> str:
    """
    >>> format_rate(2.5e9)
    '2.5 Gbit/s'
    """
    return _scaled(bits_per_second, "bit/s")


def format_milliseconds(seconds: float) -> str:
    """
    >>> format_milliseconds(0.01234), format_milliseconds(1.5)
    ('12.3 ms', '1500 ms')
    """
    return f"{_three_digits(seconds * 1e3)} ms"


def _scaled(value: float, unit: str) -> str:
    for factor, prefix in _PREFIXES:
        if abs(value) >= factor * 0.9995:  # what would round up to 1000 of the smaller unit
            return f"{_three_digits(value / factor)} {prefix}{unit}"
    return f"{_three_digits(value)} {unit}"


def _three_digits(value: float) -> str:
    """Three significant digits, without an exponent and without zeros behind the point."""
    rounded = float(f"{value:.3g}")
    return f"{rounded:.0f}" if abs(rounded) >= 100 else f"{rounded:g}"
