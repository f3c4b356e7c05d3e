"""Pictures: all formats, gaps, layout without overlaps, and what is refused in which words."""

from __future__ import annotations

import csv
import doctest
import io
import json
import sys
import xml.etree.ElementTree as ElementTree

import pytest
from invented import NASTY, Page

from gradwire.core.errors import ConfigError, MissingExtra
from gradwire.laboratory.report import layout, plots, scale
from gradwire.laboratory.report.chart import SUFFIXES, Axis, Bars, Chart, HeatMap, Mark, Part, Series, write

RATES = (1e8, 1e9, 1e10)
RATE, STEP = Axis("bandwidth", log=True, unit="rate"), Axis("step", unit="seconds")


def a_chart(**changes):
    series = (
        Series("fp32 DDP", RATES, (0.4, 0.2, 0.1), role="baseline"),
        Series("no exchange", RATES, (0.05, 0.05, 0.05), role="reference"),
        Series(NASTY, RATES, (0.2, None, 0.15), note="a <b>note</b>"),
    )
    values = {"series": series, "marks": (Mark(2e9, "even at 2 Gbit/s"),), "notes": ("predicted",), "subtitle": "four"}
    return Chart("Steps", RATE, STEP, **{**values, **changes})


def a_heat_map(**changes):
    values = {"names": (("a", "FP16 DDP"), ("", "a")), "plain": ("FP16 DDP",), "notes": ("a note",)}
    axes = Axis("bandwidth", unit="rate"), Axis("codec")
    values |= {"values": ((2.0, 0.5), (None, 1.0)), "label": "ratio"}
    return HeatMap("Map", *axes, RATES[:2], ("a", NASTY), **{**values, **changes})


def some_bars(**changes):
    values = {"roles": ("codec", "baseline"), "ends": ("20 ms", "30 ms")}
    parts = (Part("forward", (0.01, 0.01)), Part("wait", (0.01, 0.02)))
    return Bars("Bars", STEP, ("signsgd", NASTY), parts, **{**values, **changes})


def texts_of(path):
    """What is written on an SVG, in its order."""
    found = ElementTree.fromstring(path.read_bytes()).iter()
    return dict.fromkeys(" ".join("".join(e.itertext()).split()) for e in found if e.tag.endswith("}text"))


PICTURES = {"chart": a_chart, "heat map": a_heat_map, "bars": some_bars}


@pytest.mark.parametrize("name", PICTURES)
@pytest.mark.parametrize("suffix", SUFFIXES)
def test_every_picture_is_written_in_every_format(name, suffix, tmp_path):
    path = write(PICTURES[name](), tmp_path / "new folder" / f"picture{suffix}")
    content = path.read_bytes()
    begin = {".png": b"\x89PNG", ".svg": b"<?xml", ".html": b"<!DOCTYPE html>", ".csv": b"chart,", ".json": b"["}[
        suffix
    ]
    assert content.startswith(begin)
    assert len(content) < 500_000
    if suffix == ".svg":
        assert "".join(NASTY.split()) in "".join("".join(texts_of(path)).split())  # it may take several lines
        assert "Date" not in content.decode()
    if suffix == ".html":
        assert Page(content.decode()).pictures[0]["kind"] == name.replace(" map", "")


def test_several_pictures_share_a_sheet(tmp_path):
    both = [a_chart(), a_heat_map(), some_bars()]
    assert len(Page(write(both, tmp_path / "all.html").read_text(encoding="utf-8")).pictures) == 3
    assert len(json.loads(write(both, tmp_path / "all.json").read_text(encoding="utf-8"))) == 3
    assert write(both, tmp_path / "all.PNG").stat().st_size > write(both[:1], tmp_path / "one.png").stat().st_size


def test_the_same_picture_is_the_same_file(tmp_path):
    assert write(a_chart(), tmp_path / "a.svg").read_bytes() == write(a_chart(), tmp_path / "b.svg").read_bytes()


def test_csv_has_one_value_a_line_in_base_units(tmp_path):
    text = write([a_chart(), a_heat_map()], tmp_path / "x.csv").read_text(encoding="utf-8")
    lines = list(csv.DictReader(io.StringIO(text)))
    assert len(lines) == 9 + 4
    first = {"chart": "Steps", "series": "fp32 DDP", "bandwidth (bit/s)": "100000000.0", "step (s)": "0.4"}
    assert lines[0] == {**first, "codec": "", "ratio (times)": "", "name": ""}
    assert lines[7]["step (s)"] == ""  # a gap
    assert lines[-3] == dict.fromkeys(lines[0], "") | {
        "chart": "Map", "bandwidth (bit/s)": "1000000000.0", "codec": "a", "ratio (times)": "0.5",
        "name": "FP16 DDP",
    }  # fmt: skip


def test_columns_of_one_name_are_told_apart(tmp_path):
    chart = Chart("t", STEP, STEP, [Series("s", (1.0,), (2.0,), points=True, names=("here",))])
    text = write(chart, tmp_path / "x.csv").read_text(encoding="utf-8")
    assert text == "chart,series,step (s),step (s) 2,point\nt,s,1.0,2.0,here\n"


def test_what_is_not_finite_is_a_gap(tmp_path):
    chart = Chart("t", RATE, STEP, [Series("s", RATES, (float("inf"), float("nan"), 1.0))])
    assert chart.series[0].ys == (None, None, 1.0)
    assert (
        Page(write(chart, tmp_path / "x.html").read_text(encoding="utf-8")).pictures[0]["series"][0]["text"][0] == "-"
    )


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: Series("s", (1, 2), (1,)),
            "chart: series 's' needs as many xs as ys, and as many names or none, got 2, 1 and 0",
        ),
        (
            lambda: Series("s", (float("nan"),), (1,)),
            "chart: series 's' has an x that is not a finite number; leave the point out",
        ),
        (
            lambda: Series("s", (1,), (1,), role="hero"),
            "chart: `role` must be 'codec' or 'baseline' or 'reference', got 'hero'",
        ),
        (
            lambda: Axis("x", unit="miles"),
            "chart: `unit` must be None or one of rate, seconds, bytes, ratio, share, count, got 'miles'",
        ),
        (
            lambda: Chart("t", RATE, STEP, [Series("s", (0, 1), (1, 1))]),
            "chart: 'bandwidth' is a logarithmic axis and takes numbers above 0, got 0; "
            "leave the point out or make the axis linear",
        ),
        (
            lambda: Chart("t", RATE, STEP, [Series("s", (1,), (None,))]),
            "chart: 't' has no value to show; give at least one series with a number",
        ),
        (
            lambda: a_heat_map(names=(("a",),)),
            "heat map: 'Map' needs 2 rows of 2 `names`, got rows of [1]",
        ),
        (
            lambda: HeatMap("Map", STEP, STEP, (1, 2), (1,), ((None, None),), "v"),
            "heat map: 'Map' has no value to show; give at least one",
        ),
        (
            lambda: some_bars(ends=("one",)),
            "bars: 'Bars' needs at least one part and one group, and a value of each part for each of the 2 groups, "
            "got lengths [1, 2]",
        ),
        (lambda: write([], "x.png"), "chart: there is no picture to write; give at least one"),
        (
            lambda: write(a_chart(), "x.pdf"),
            "chart: a picture is written as .png, .svg, .html, .csv or .json, got 'x.pdf'; "
            "choose one of these endings",
        ),
    ],
)  # fmt: skip
def test_what_is_refused(make, message):
    with pytest.raises(ConfigError) as caught:
        make()
    assert str(caught.value) == message


def test_a_file_that_cannot_be_written(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match=r"x\.csv' cannot be written \(.+\); name another file$"):
        write(a_chart(), tmp_path / "file" / "x.csv")


def test_without_matplotlib_the_message_has_the_command(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(MissingExtra) as caught:
        write(a_chart(), tmp_path / "x.png")
    assert str(caught.value).endswith("run: pip install matplotlib, or write .html, .csv or .json")
    assert not (tmp_path / "x.png").exists()
    write(a_chart(), tmp_path / "x.html")


# -------------------------------------------------------------------- layout


@pytest.mark.parametrize("module", [scale, layout])
def test_doctests(module):
    assert doctest.testmod(module).failed == 0


def test_a_sheet_names_every_curve_and_grows_with_its_text(tmp_path):
    crowd = [Series(f"codec {i}", RATES, (0.1, 0.1, 0.1)) for i in range(60)]
    assert {s.label for s in crowd} | {"bandwidth", "even at 2 Gbit/s"} <= set(
        texts_of(write(a_chart(series=crowd), tmp_path / "x.svg"))
    )
    assert plots._height(a_chart(notes=["word " * 100])) > plots._height(a_chart()) + 0.3
    assert plots._height(some_bars()) < plots._height(a_chart())


@pytest.mark.parametrize("values", [[1e8, 2e9], [0.97, 1.4], [1e-6, 1e6], [3.0, 3.0]])
@pytest.mark.parametrize("log", [True, False])
def test_ticks_are_inside_and_some(values, log):
    side = scale.scale(values, log=log)
    assert 2 <= len(side.ticks) <= 13
    assert all(side.low <= t <= side.high for t in side.ticks)
    assert all(0 <= side.place(v) <= 1 for v in values)


def test_few_values_are_their_own_ticks():
    assert layout.axes(a_chart(marks=()))[0].ticks == RATES


def test_a_linear_axis_of_times_starts_at_zero():
    assert layout.axes(a_chart())[1].low == 0
    assert layout.bar_scale(some_bars()).low == 0


def test_colours_of_a_heat_map_part_at_the_center():
    shades = layout.shades(a_heat_map())
    assert shades[0][0] == pytest.approx(-shades[0][1])  # twice as fast is as far as half as fast
    assert shades[1] == [None, 0.0]
    growing = layout.shades(a_heat_map(center=None))
    assert growing[0] == [1.0, 0.0]


def test_every_colour_of_a_map_has_a_name(tmp_path):
    """In the page's legend and on the sheet: of names where cells have them, else of values."""
    named, valued = a_heat_map(), a_heat_map(names=())
    first, second = Page(write([named, valued], tmp_path / "x.html").read_text(encoding="utf-8")).pictures
    assert first["names"] == [
        {"label": "a", "hue": 0, "percent": 45},
        {"label": "FP16 DDP", "hue": None, "percent": 45},
    ]
    assert first["whose"] == [[0, 1], [None, 0]]
    assert (first["steps"], second["names"], second["whose"]) == ([], [], [])
    assert second["steps"] == [[-1.0, "≤ 0.50"], [0.0, "1.00"], [1.0, "≥ 2.00"]]
    assert layout.steps(a_heat_map(names=(), center=None)) == [(0.0, "0.50"), (1.0, "2.00")]
    assert layout.steps(a_heat_map(names=(), values=((2.0, 8.0), (None, 1.0)))) == [(0.0, "1.00"), (1.0, "≥ 4.00")]
    assert layout.tint("FP16 DDP", a_heat_map(plain=("FP32 DDP", "FP16 DDP"))) < layout.tint("FP32 DDP", named)
    for heat, labels in ((named, {"a", "FP16 DDP"}), (valued, {"≤ 0.50", "≥ 2.00"})):
        assert labels <= set(texts_of(write(heat, tmp_path / "x.svg")))


def test_a_label_has_one_colour_on_all_pictures():
    one, two = a_chart(series=[Series("b", (1,), (1,))], marks=()), a_chart(series=[Series("a", (1,), (1,))], marks=())
    assert layout.hues([one, two, one]) == {"b": 0, "a": 1}
    assert layout.hues([one, a_heat_map()]) == {"b": 0, "a": 1}  # DDP has none
