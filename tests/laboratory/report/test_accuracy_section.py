"""The section about trainings: tables, curves, time where it was measured, and what controllers did."""

from __future__ import annotations

import doctest
import sys
from pathlib import Path

import pytest
from invented import NASTY, Page, accuracy

from gradwire.core.records import append
from gradwire.laboratory.report import accuracy as pictures
from gradwire.laboratory.report import document
from gradwire.laboratory.report.page import Choice, Table
from gradwire.laboratory.report.sections.accuracy import MOST_SWITCHES, section
from gradwire.planner.training import Run
from gradwire.planner.tta import LOSSY_NOTE, utility

sys.path.insert(0, str(Path(__file__).parents[2]))
from trainings import perplexity, training

MEASURED = "measured: 4 hosts at 200 Mbit/s"
ACCORDION = "accordion(low='powersgd(rank=4)', high='powersgd(rank=1)')"


def shown(records):
    """Blocks by the values of the choice."""
    choice = next(b for b in section(records).blocks if isinstance(b, Choice))
    return {item.values: item.blocks for item in choice.items}


def of(records, show):
    return next(blocks for values, blocks in shown(records).items() if values[2] == show)


def test_doctests():
    assert doctest.testmod(pictures).failed == 0


def test_the_table_says_who_is_within_half_a_point():
    records = [
        *(training(quality=(50.0, q), seed=s) for s, q in enumerate((90.0, 90.4))),
        training("topk", (40.0, 89.7), memory="error_feedback()"),
        training("signsgd", (40.0, 89.6)),
    ]
    (table,) = of(records, "best quality")
    assert table.headings[2:5] == ("best top-1 accuracy, %", "seeds", "to FP16")
    assert [row[0] for row in table.rows] == ["fp16", "topk", "signsgd"]
    by_codec = {row[0]: row for row in table.rows}
    assert by_codec["fp16"] == ["fp16", "none", "90.20 ± 0.20", "2", "+0.00", "yes", "16", "0.25"]
    assert by_codec["topk"] == ["topk", "error_feedback", "89.70", "1", "-0.50", "yes", "16", "0.25"]
    assert by_codec["signsgd"][4:6] == ["-0.60", "no"]


def test_curves_over_rounds_and_bytes_are_of_errors():
    records = [training(), training("topk", (45.0, 82.0, 100.0))]
    (chart,) = of(records, "over rounds")
    assert chart.y.label == "error, 100 % less top-1 accuracy"
    half, topk = chart.series
    assert (half.label, half.role, list(half.xs), list(half.ys)) == ("fp16", "baseline", [10, 20, 30], [50, 20, 10])
    assert list(topk.ys) == [55.0, 18.0, None]  # no error at all has no place on a logarithmic axis
    (by_bytes,) = of(records, "over bytes")
    assert list(by_bytes.series[0].xs) == [20000, 40000, 60000]
    assert by_bytes.x.unit == "bytes"


def test_perplexity_is_drawn_as_it_is():
    (chart,) = of([perplexity()], "over rounds")
    assert (chart.y.label, chart.y.log) == ("perplexity, perplexity", True)
    assert list(chart.series[0].ys) == [300.0, 120.0, 100.0]


def test_time_is_shown_where_it_was_measured_and_only_there():
    assert "time to accuracy" not in {values[2] for values in shown([training()])}
    records = [training(clock=MEASURED), training("topk", clock=MEASURED, seconds=[1.0, 2.0, 3.0])]
    chart, table = of(records, "time to accuracy")
    assert chart.x.label == f"seconds, {MEASURED}"
    assert list(next(s for s in chart.series if s.label == "topk").xs) == [1.0, 2.0, 3.0]
    assert table.caption == f"{MEASURED}; {LOSSY_NOTE}"
    assert table.headings == ("codec", "rank", "a round", *("to 89.5 %", "FP16 / this", "to 89 %", "FP16 / this"),
                              "to 88 %", "FP16 / this")  # fmt: skip
    assert table.rows[1][:5] == ["topk (lossy)", "2", "0.1 s", "2.95 s", "5"]


def test_two_places_are_not_compared():
    records = [training(clock=MEASURED), training("topk", clock="measured: another place")]
    assert "time to accuracy" not in {values[2] for values in shown(records)}


def test_long_times_are_in_hours():
    table = utility([Run.of(training(seconds=[3600.0, 7200.0, 10800.0], clock=MEASURED))], _clock())
    chart = pictures.over_time(table)
    assert (chart.x.label, list(chart.series[0].xs)) == ("hours, here", [1.0, 2.0, 3.0])


def _clock():
    from gradwire.planner.clock import Measured

    return Measured("here")


def test_controllers_have_levels_and_switches():
    switch = {"epoch": 1, "parameter": "a", "from": "powersgd(rank=4)", "to": "powersgd(rank=1)", "why": "calm"}
    records = [
        training(),
        training(
            "powersgd",
            controller=ACCORDION,
            levels=[{"powersgd(rank=4)": 5}, {"powersgd(rank=4)": 2, "powersgd(rank=1)": 3}, {"powersgd(rank=1)": 5}],
            switches=[switch, {**switch, "parameter": "b"}, {**switch, "epoch": 2}],
        ),
    ]
    chart, table = of(records, "controllers")
    assert {s.label: list(s.ys) for s in chart.series} == {
        "powersgd(rank=4)": [5.0, 2.0, 0.0],
        "powersgd(rank=1)": [0.0, 3.0, 5.0],
    }
    assert table.rows == [
        ["1", "powersgd(rank=4)", "powersgd(rank=1)", "calm", "2"],
        ["2", "powersgd(rank=4)", "powersgd(rank=1)", "calm", "1"],
    ]
    many = [{**switch, "epoch": e} for e in range(MOST_SWITCHES + 3)]
    _, longer = of([training("powersgd", controller=ACCORDION, levels=[{"a": 1}] * 3, switches=many)], "controllers")
    assert len(longer.rows) == MOST_SWITCHES
    assert longer.caption.endswith("seed 0; 3 more lines in the record")


def test_without_fp16_the_table_is_against_fp32_or_nothing():
    (table,) = of([training("none"), training("topk", (40.0, 70.0, 89.0))], "best quality")
    assert table.headings[4] == "to FP32"
    assert [row[4] for row in table.rows] == ["+0.00", "-1.00"]
    (alone,) = of([training("topk")], "best quality")
    assert alone.rows[0][4:6] == ["-", "-"]


def test_records_of_other_makes_are_in_a_plain_table():
    found = section([accuracy("signsgd", 0.9)])
    (table,) = found.blocks
    assert isinstance(table, Table)
    assert table.rows[0][1:4] == ["signsgd", "shapes", "1"]
    assert section([]) is None


@pytest.mark.parametrize("codec", ["topk", f"mine(text={NASTY!r})"])
def test_the_page_holds_together(tmp_path, codec):
    records = [training(clock=MEASURED), training(codec, clock=MEASURED, task=NASTY), accuracy("topk", 0.8)]
    append(tmp_path / "some.jsonl", records)
    found = Page(document.make([tmp_path / "some.jsonl"]).html)
    assert found.headings == ["Verdict", "Accuracy", "Where the numbers come from"]
    assert len(found.pictures) == 2 + 3  # without FP16 there is no time to compare with
    assert "img" not in {tag for tag, _ in found.tags}
