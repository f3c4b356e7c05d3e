"""Conversions, and how numbers are written for people."""

from __future__ import annotations

import doctest

import pytest

from gradwire.core import units
from gradwire.core.errors import ConfigError


def test_examples_in_the_docstrings_hold():
    result = doctest.testmod(units)
    assert result.attempted > 0
    assert result.failed == 0


def test_a_transfer_and_its_bandwidth_are_inverse():
    assert units.transfer_seconds(125_000_000, units.GBIT) == 1.0
    assert units.bandwidth(125_000_000, 1.0) == units.GBIT


@pytest.mark.parametrize(
    "value, text",
    [(0, "0 B"), (999, "999 B"), (999.9, "1 kB"), (1000, "1 kB"), (999_600, "1 MB"), (6_355_644, "6.36 MB"),
     (2.5e9, "2.5 GB"), (4.2e12, "4200 GB")],
)  # fmt: skip
def test_bytes_in_decimal_units(value, text):
    assert units.format_bytes(value) == text


def test_rates_and_times():
    assert units.format_rate(587_400_000) == "587 Mbit/s"
    assert units.format_milliseconds(0.000672) == "0.672 ms"
    assert units.format_milliseconds(12.3456) == "12300 ms"


@pytest.mark.parametrize(
    "text, bits",
    [
        *(("1gbit", 1e9), (" 2.5 Gbit/s ", 2.5e9), ("100Mbit", 1e8), ("64kbitps", 64e3), (5e6, 5e6), (7, 7.0)),
        *(("10Gbps", 1e10), ("10gbits", 1e10), ("10 Gb/s", 1e10), ("64kbps", 64e3), ("1.6 Tbit/s", 1.6e12)),
    ],
)
def test_rates_as_people_type_them(text, bits):
    assert units.parse_rate(text) == bits


@pytest.mark.parametrize(
    "text", ["1", "gbit", "10G", "-1gbit", "1gb", "1GB", "1.2.3gbit", "0gbit", "", 0, -1, float("nan"), float("inf")]
)
def test_other_rates_are_refused(text):
    with pytest.raises(ConfigError) as caught:
        units.parse_rate(text)
    assert str(caught.value) == (
        f"gradwire: a rate needs a number above 0 and a unit, as in 100mbit or 1gbit; got {text!r}"
    )


def test_bytes_a_second_are_told_from_bits():
    with pytest.raises(ConfigError) as caught:
        units.parse_rate("1.25 GB/s")
    assert str(caught.value) == ("gradwire: a rate is told in bits a second, got bytes in '1.25 GB/s'; write 10Gbit/s")


@pytest.mark.parametrize(
    "text, seconds",
    [("20us", 2e-5), ("20µs", 2e-5), ("1.5 ms", 0.0015), ("2s", 2.0), (" 5 ns ", 5e-9), ("0us", 0.0), (0.25, 0.25)],
)
def test_times_as_people_type_them(text, seconds):
    assert units.parse_seconds(text) == seconds


@pytest.mark.parametrize("text", ["20", "us", "-1ms", "1.2.3ms", "1min", "1MS", "", -1, float("nan"), float("inf")])
def test_other_times_are_refused(text):
    with pytest.raises(ConfigError) as caught:
        units.parse_seconds(text)
    assert str(caught.value) == (f"gradwire: a time needs a number and a unit, as in 20us, 1.5ms or 2s; got {text!r}")
