"""What-if sweeps: how ranges become points, gaps, crossovers against what bisection must find, and pictures."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import pairwise

import pytest

from gradwire import planner
from gradwire.core.errors import ConfigError, UnknownName
from gradwire.core.units import format_rate
from gradwire.laboratory.report.chart import Chart, HeatMap
from gradwire.laboratory.report.sweep import pictures, title
from gradwire.planner.model import predict
from gradwire.planner.profile import Profile
from gradwire.planner.quantity import QUANTITIES, quantity, setting, values
from gradwire.planner.sweeps import as_asked, baselines, parse, whatif

HARDWARE = "v100-paper-measured"
SETUP = {"model": "resnet101", "batch": 64, "gpus": 64, "gpus_per_node": 4, "bandwidth": "10gbit", "hardware": HARDWARE}
POWER = "powersgd(rank=4)"


def without(*names):
    return {k: v for k, v in SETUP.items() if k not in names}


def made(seconds):
    """A stand-in for `predict` that takes step times from a function of the question; None: out of memory."""
    some = predict(**SETUP)

    def stand_in(**asked):
        found = seconds(**asked)
        changed = {"codec": asked["codec"], "fits": found is not None, "step_seconds": found, "sync_seconds": found}
        return replace(some, **changed)

    return stand_in


# -------------------------------------------------------------------- points


@pytest.mark.parametrize(
    "name, text, points",
    [
        ("bandwidth", "1gbit:100gbit:3", (1e9, 1e10, 1e11)),
        ("bandwidth", "10gbit,1gbit,1gbit", (1e9, 1e10)),
        ("latency", "0us:100us:3", (0.0, 5e-5, 1e-4)),
        ("gpus", "8:64", (8, 16, 32, 64)),
        ("gpus", "6:70", (8, 16, 32, 64)),  # whole nodes of 4
        ("gpus", "20:28", (20, 28)),
        ("gpus", "8:96:4", (8, 20, 40, 96)),
        ("gpus", "32,8,16", (8, 16, 32)),
        ("gpus_per_node", "1:8", (1, 2, 4, 8)),  # divisors of 64
        ("gpus_per_node", "3:64:2", (4, 64)),
        ("batch", "1:4", (1, 2, 3, 4)),
        ("compute_speed", "0.5:8:5", (0.5, 1.0, 2.0, 4.0, 8.0)),
        ("ratio", "1,2.5", (1.0, 2.5)),
    ],
)
def test_points_of_a_sweep(name, text, points):
    assert values(quantity(name), text, without(name), alone=True) == points


def test_a_range_has_25_points_alone_and_10_beside_another():
    swept = quantity("bandwidth")
    alone = values(swept, "1gbit:30gbit", {}, alone=True)
    assert (len(alone), alone[0], alone[-1]) == (25, 1e9, 30e9)
    steps = [b / a for a, b in pairwise(alone)]
    assert max(steps) / min(steps) < 1.02  # evenly in the logarithm, but for rounding to three digits
    assert all(v == float(f"{v:.3g}") for v in alone)
    assert len(values(swept, "1gbit:30gbit", {}, alone=False)) == 10


def test_gpus_double_where_nodes_are_swept_too():
    found = whatif(sweep={"gpus": "8:32", "gpus_per_node": "2:8"}, **without("gpus", "gpus_per_node"))
    assert found.values == ((8, 16, 32), (2, 4, 8))


def test_values_of_any_kind_are_taken_from_python():
    assert values(quantity("bandwidth"), ["1gbit", 2e9], {}, alone=True) == (1e9, 2e9)
    assert values(quantity("gpus"), (16, 8), {}, alone=True) == (8, 16)


@pytest.mark.parametrize(
    "sweep, problem, message",
    [
        (
            {"bandwidth": "30gbit:1gbit"},
            ConfigError,
            "whatif: the range bandwidth=30gbit:1gbit runs backwards; type bandwidth=1gbit:30gbit, or another range, "
            "as in bandwidth=1gbit:30gbit",
        ),
        (
            {"bandwidth": "2gbit:2gbit"},
            ConfigError,
            "whatif: the range bandwidth=2gbit:2gbit holds a single value; type bandwidth=2gbit, or another range, as "
            "in bandwidth=1gbit:30gbit",
        ),
        (
            {"bandwidth": ""},
            ConfigError,
            "whatif: bandwidth has no values; type a range or a list, as in bandwidth=1gbit:30gbit",
        ),
        (
            {"bandwidth": "1gbit:"},
            ConfigError,
            "whatif: a range is written FROM:TO or FROM:TO:POINTS, as in bandwidth=1gbit:30gbit; got "
            "'bandwidth=1gbit:'",
        ),
        (
            {"bandwidth": "1gbit:2gbit:1"},
            ConfigError,
            "whatif: the number of points of a range is a whole number from 2 to 5000, got '1' in "
            "'bandwidth=1gbit:2gbit:1'",
        ),
        (
            {"bandwidth": "1:30gbit"},
            ConfigError,
            "gradwire: a rate needs a number above 0 and a unit, as in 100mbit or 1gbit; got '1'",
        ),
        (
            {"bandwidth": "-1gbit:30gbit"},
            ConfigError,
            "gradwire: a rate needs a number above 0 and a unit, as in 100mbit or 1gbit; got '-1gbit'",
        ),
        (
            {"latency": "1:2"},
            ConfigError,
            "gradwire: a time needs a number and a unit, as in 20us, 1.5ms or 2s; got '1'",
        ),
        ({"gpus": "8,x"}, ConfigError, "whatif: gpus takes whole numbers above 0, such as 8; got 'x'"),
        ({"gpus": "8.5,9"}, ConfigError, "whatif: gpus takes whole numbers above 0, such as 8; got '8.5'"),
        ({"batch": "0:8"}, ConfigError, "whatif: batch takes whole numbers above 0, such as 8; got '0'"),
        ({"ratio": "0:8"}, ConfigError, "whatif: ratio takes factors above 0, such as 2 or 0.5; got '0'"),
        (
            {"gpus": "5:7"},
            ConfigError,
            "whatif: no number of GPUs from 5 to 7 fills nodes of 4; type a range that holds a multiple of 4, or "
            "--gpus-per-node 1",
        ),
        (
            {"gpus_per_node": "5:7"},
            ConfigError,
            "whatif: no number of GPUs a node from 5 to 7 divides 64 GPUs; type a range that holds one, such as 1:8",
        ),
        ({"bandwith": "1gbit"}, UnknownName, "whatif: no quantity named 'bandwith'; did you mean bandwidth or batch?"),
        (
            {"size": "1"},
            UnknownName,
            f"whatif: no quantity named 'size'; known: {', '.join(sorted(QUANTITIES))}",
        ),
        ({}, ConfigError, "whatif: one or two quantities are swept at a time, got none"),
        (
            {"batch": "1", "gpus": "4", "ratio": "1"},
            ConfigError,
            "whatif: one or two quantities are swept at a time, got batch, gpus, ratio",
        ),
        (
            {"bandwidth": "1gbit:2gbit:4999"},
            ConfigError,
            "whatif: 4999 points are more than the 1000 that are answered at once; ask for fewer",
        ),
    ],
)
def test_what_cannot_be_swept(sweep, problem, message, monkeypatch):
    monkeypatch.setattr("gradwire.planner.sweeps.MOST_POINTS", 1000)
    with pytest.raises(problem) as caught:
        whatif(sweep=sweep, **without(*sweep))
    assert str(caught.value) == message


@pytest.mark.parametrize(
    "missing, message",
    [
        ("model", "whatif: a set-up needs model; give --model resnet50"),
        ("batch", "whatif: a set-up needs batch; give --batch 64, or sweep it: --sweep batch=16:128"),
        (
            "bandwidth",
            "whatif: a set-up needs bandwidth; give --bandwidth 10gbit, or sweep it: --sweep bandwidth=1gbit:30gbit",
        ),
    ],
)
def test_what_is_missing(missing, message):
    with pytest.raises(ConfigError) as caught:
        whatif(sweep={"latency": "1us,2us"}, **without(missing))
    assert str(caught.value) == message


def test_what_is_given_twice():
    with pytest.raises(ConfigError) as caught:
        whatif(sweep={"gpus": "8,16"}, **SETUP)
    assert str(caught.value) == "whatif: gpus is swept and given as 64; leave one of the two out"
    with pytest.raises(ConfigError) as caught:
        whatif(sweep={"latency": "1us,2us"}, codec=POWER, **SETUP)
    assert str(caught.value) == f"whatif: codecs are given as a list, codecs=[...], got codec='{POWER}'"


def test_sweeps_as_typed():
    assert parse("bandwidth=1gbit:30gbit") == ("bandwidth", "1gbit:30gbit")
    assert parse("gpus-per-node=1:8") == ("gpus_per_node", "1:8")
    with pytest.raises(ConfigError) as caught:
        parse("bandwidth")
    assert str(caught.value) == (
        "whatif: a sweep is written QUANTITY=FROM:TO or QUANTITY=A,B,C, as in bandwidth=1gbit:30gbit or gpus=8,16,32; "
        "got 'bandwidth'"
    )


# -------------------------------------------------------------------- curves


def test_points_are_predictions_and_baselines_are_there():
    found = whatif(sweep={"bandwidth": [1e9, 1e10]}, codecs=[POWER], **without("bandwidth"))
    assert [c.label for c in found.curves] == ["FP32 DDP", "FP16 DDP", POWER]
    for curve in found.curves:
        for rate, own in zip((1e9, 1e10), curve.predictions, strict=True):
            assert own == predict(codec=curve.codec, **{**SETUP, "bandwidth": rate})
    slow = found.curves[2].seconds()[0]
    both = [c.seconds()[0] for c in found.curves[:2]]
    assert found.speedup(found.curves[2])[0] == min(both) / slow
    assert found.speedup(found.curves[2], "none")[0] == both[0] / slow
    assert found.curves[0].seconds("sync")[0] == found.curves[0].predictions[0].sync_seconds


def test_what_is_told_of_codecs_is_not_told_of_ddp():
    asked = {**SETUP, "strategy": "hierarchical", "ratio": 4.0, "encode_speed": 2.0}
    assert as_asked("fp16", asked) == {**SETUP, "codec": "fp16"}
    assert as_asked(POWER, asked) == {**asked, "codec": POWER}
    found = whatif(sweep={"ratio": "1,8"}, codecs=["signsgd"], **{**SETUP, "bandwidth": "1gbit"})
    full, half, signs = (c.seconds() for c in found.curves)
    assert full[0] == full[1]
    assert half[0] == half[1]
    assert signs[0] > signs[1]


def test_baselines_are_those_that_the_profile_knows():
    assert baselines(HARDWARE) == (["none", "fp16"], [])
    whole = Profile.load(HARDWARE)
    partial = replace(whole, codecs={k: v for k, v in whole.codecs.items() if k != "fp16"})
    told = f"FP16 DDP is left out: profile {HARDWARE} does not know what fp16 costs."
    assert baselines(partial, ("none", "fp16", "bf16")) == (["none", "bf16"], [told])
    found = whatif(sweep={"bandwidth": "1gbit:30gbit"}, codecs=[POWER], **{**without("bandwidth"), "hardware": partial})
    assert ([c.codec for c in found.curves], found.notes) == (["none", POWER], (told,))
    assert found.sentences() == [f"{POWER} is faster than FP32 DDP below {format_rate(found.crossovers[0].at)}."]
    assert found.speedup(found.curve(POWER), "fp16") == (None,) * 25
    assert [m.label[:18] for m in pictures(found)[1].marks] == ["even with FP32 DDP"]
    nothing = replace(whole, codecs={})
    with pytest.raises(ConfigError) as caught:
        whatif(sweep={"bandwidth": "1gbit"}, **{**without("bandwidth"), "hardware": nothing})
    assert str(caught.value) == (
        f"whatif: profile {HARDWARE} knows the cost of neither FP32 nor FP16 DDP; name a codec that it knows"
    )


def test_impossible_points_are_gaps_with_a_note():
    found = whatif(sweep={"gpus": "4,6,8,10"}, codecs=[POWER], **without("gpus"))
    assert [[p is None for p in c.predictions] for c in found.curves] == [[False, True, False, True]] * 3
    assert found.notes == (
        "No value at 6 GPUs: 6 GPUs do not fill nodes of 4.",
        "No value at 10 GPUs: 10 GPUs do not fill nodes of 4.",
    )


def test_where_every_point_is_impossible_the_error_is_the_answer():
    with pytest.raises(ConfigError) as caught:
        whatif(sweep={"gpus": "6,10"}, codecs=[POWER], **without("gpus"))
    assert str(caught.value) == (
        "gradwire: 6 GPUs do not fill nodes of 4; type a multiple, such as 4 or 8, or --gpus-per-node 1"
    )


def test_out_of_memory_is_a_gap():
    def seconds(*, codec, gpus, **_):
        return None if codec == POWER and gpus > 8 else 1.0

    found = whatif(sweep={"gpus": "4,8,16,32"}, codecs=[POWER], predict=made(seconds), **without("gpus"))
    assert found.curve(POWER).seconds() == (1.0, 1.0, None, None)
    assert found.notes == (f"No value at 16 GPUs, 32 GPUs: {POWER} is predicted to run out of memory.",)
    with pytest.raises(ConfigError) as caught:
        whatif(sweep={"gpus": "4,8"}, predict=made(lambda **_: None), **without("gpus"))
    assert str(caught.value) == (
        "whatif: FP32 DDP is predicted to run out of memory at every point of the sweep; try a smaller batch or fewer "
        "GPUs"
    )


def test_an_unknown_codec_is_told_at_once():
    with pytest.raises(UnknownName, match=r"^no codec named 'powersg'; did you mean powersgd\?$"):
        planner.whatif(sweep={"bandwidth": "1gbit:30gbit"}, codecs=["powersg"], **without("bandwidth"))


# -------------------------------------------------------------------- crossovers


def test_crossovers_are_where_the_times_are_equal():
    found = whatif(sweep={"bandwidth": "1gbit:30gbit"}, codecs=[POWER], **without("bandwidth"))
    assert [(c.codec, c.baseline, c.faster_below) for c in found.crossovers] == [
        (POWER, "fp16", True),
        (POWER, "none", True),
    ]
    for cross in found.crossovers:
        there = {**SETUP, "bandwidth": cross.at}
        codec, other = (predict(codec=c, **there).step_seconds for c in (POWER, cross.baseline))
        assert codec == pytest.approx(other, rel=2e-4)
    assert 4e9 < found.crossovers[0].at < 6e9 < found.crossovers[1].at < 12e9


@pytest.mark.parametrize(
    "sweep, seconds, at, where",
    [
        # FP16 DDP takes 1 second everywhere, so the crossing is known
        ({"latency": "0us:100us"}, lambda latency, **_: 0.9 + 4e3 * latency, [25e-6], "below 25 us"),
        ({"compute_speed": "0.5:8"}, lambda compute_speed, **_: 3 / compute_speed, [3.0], "above compute speed 3x"),
        (
            {"ratio": "1:6"},
            lambda ratio, **_: 1 + (ratio - 2) * (ratio - 5) / 9,
            [2.0, 5.0],
            "above ratio 2x and below ratio 5x",
        ),
        (
            {"ratio": "1:6"},
            lambda ratio, **_: 1 - (ratio - 2) * (ratio - 5) / 9,
            [2.0, 5.0],
            "below ratio 2x; above ratio 5x",
        ),
        ({"batch": "8:128"}, lambda batch, **_: 0.5 + batch / 100, [50], "below batch 50"),  # at 50 as fast
        ({"batch": "8:128"}, lambda batch, **_: 1.5 - batch / 200, [101], "from batch 101 on"),
        ({"gpus": "4:64"}, lambda gpus, **_: 1.25 - gpus / 100, [32], "from 32 GPUs on"),  # of those that were swept
        ({"bandwidth": "1gbit:2gbit"}, lambda **_: 2.0, [], "at no point"),
    ],
)
def test_crossovers_of_known_curves(sweep, seconds, at, where):
    def times(codec, **asked):
        return {"none": 9.0, "fp16": 1.0}.get(codec) or seconds(**asked)

    found = whatif(sweep=sweep, codecs=[POWER], predict=made(times), **without(*sweep))
    assert [c.at for c in found.crossovers] == pytest.approx(at, rel=2e-4)
    assert {c.baseline for c in found.crossovers} <= {"fp16"}
    assert found.sentences() == [f"{POWER} is faster than FP16 DDP {where}, and than FP32 DDP at every point."]


def test_what_holds_for_both_baselines_is_said_once():
    found = whatif(
        sweep={"bandwidth": "1gbit,2gbit"},
        codecs=[POWER, "bf16"],
        predict=made(lambda codec, **_: {"none": 9.0, "fp16": 1.0, "bf16": 10.0}.get(codec, 0.5)),
        **without("bandwidth"),
    )
    assert found.sentences() == [
        f"{POWER} is faster than FP16 and FP32 DDP at every point.",
        "BF16 DDP is faster than FP16 and FP32 DDP at no point.",
    ]


def test_a_gap_hides_a_crossing_of_what_is_continuous_only():
    def seconds(codec, bandwidth, gpus, **_):
        times = bandwidth / 2e9 if gpus == 64 else gpus / 16
        return {"none": 1.0, "fp16": 1.0}.get(codec) or (None if times == 1 else times)

    by_rate = whatif(
        sweep={"bandwidth": [1e9, 2e9, 4e9]}, codecs=[POWER], predict=made(seconds), **without("bandwidth")
    )
    assert by_rate.crossovers == ()
    assert by_rate.sentences() == [f"{POWER} is faster than FP16 and FP32 DDP at 1 of 2 points."]
    by_count = whatif(sweep={"gpus": "8,16,32"}, codecs=[POWER], predict=made(seconds), **without("gpus"))
    assert [c.at for c in by_count.crossovers] == [32, 32]
    assert by_count.sentences() == [f"{POWER} is faster than FP16 and FP32 DDP below 32 GPUs."]


# -------------------------------------------------------------------- two quantities


def test_two_quantities_make_a_grid():
    found = whatif(
        sweep={"bandwidth": "1gbit,30gbit", "gpus": "8,16,30"}, codecs=[POWER], **without("bandwidth", "gpus")
    )
    assert found.points[:4] == [(1e9, 8), (1e9, 16), (1e9, 30), (30e9, 8)]
    assert found.crossovers == ()
    assert [None if c is None else c.codec for c in found.best()] == [POWER, POWER, None, "fp16", "fp16", None]
    assert found.curve(POWER).predictions[4] == predict(codec=POWER, **{**SETUP, "gpus": 16, "bandwidth": 30e9})
    assert found.sentences() == [f"{POWER} is faster than FP16 and FP32 DDP at 2 of 4 points."]


def test_rows_have_every_point():
    found = whatif(sweep={"gpus": "8,16,30"}, codecs=[POWER], **without("gpus"))
    rows = found.rows("sync")
    assert [(r["gpus"], r["codec"]) for r in rows[:4]] == [(8, "none"), (16, "none"), (30, "none"), (8, "fp16")]
    assert rows[2]["step_seconds"] is rows[2]["speedup_over_fp16"] is None
    codec, half = rows[6], rows[3]
    assert codec["speedup_over_fp16"] == half["sync_seconds"] / codec["sync_seconds"]
    with pytest.raises(ConfigError) as caught:
        found.rows("whole")
    assert str(caught.value) == "whatif: `metric` must be 'step' or 'sync', got 'whole'"


# -------------------------------------------------------------------- words and pictures


def test_the_set_up_in_words():
    assert setting({**SETUP, "accumulate": 4, "latency": 2e-5, "mode": "after_backward", "strategy": "auto"}) == (
        "resnet101, batch 64, 64 GPUs, 4 a node, 10 Gbit/s, 20 us, 4 micro-batches a step, mode after_backward"
    )
    assert setting(without("gpus", "bandwidth")) == "resnet101, batch 64, 4 GPUs a node"


def test_one_quantity_is_drawn_as_times_and_speedups():
    found = whatif(sweep={"bandwidth": "1gbit:30gbit"}, codecs=[POWER], **without("bandwidth"))
    times, speedups = pictures(found)
    assert isinstance(times, Chart)
    assert times.title == "resnet101, batch 64, 64 GPUs, 4 a node: step time by bandwidth of a node"
    assert times.subtitle == f"Predicted, not measured; hardware profile {HARDWARE}"
    assert [(s.label, s.role) for s in times.series] == [
        ("FP32 DDP", "baseline"),
        ("FP16 DDP", "baseline"),
        (POWER, "codec"),
    ]
    assert (times.x.unit, times.x.log, times.y.unit) == ("rate", True, "seconds")
    assert [m.at for m in times.marks] == [c.at for c in found.crossovers]
    assert times.marks[0].label.startswith("even with FP16 DDP at 4.")
    assert times.notes[0] == found.sentences()[0]
    assert times.notes[-1].startswith("What went in is ")
    assert [m.at for m in speedups.marks] == [found.crossovers[0].at]
    assert speedups.series[0].ys == found.speedup(found.curves[2])
    assert set(speedups.series[-1].ys) == {1.0}
    assert title(found) == "What if: bandwidth of a node from 1 Gbit/s to 30 Gbit/s"


def test_marks_of_several_codecs_are_named_and_only_with_the_faster_baseline():
    found = whatif(sweep={"bandwidth": "1gbit:30gbit"}, codecs=[POWER, "signsgd"], **without("bandwidth"))
    labels = [m.label for m in pictures(found, "sync")[0].marks]
    assert [text.partition(" at ")[0] for text in labels] == [
        f"{POWER} even with FP16 DDP",
        "signsgd even with FP16 DDP",
    ]


def test_two_quantities_are_drawn_as_maps():
    found = whatif(
        sweep={"bandwidth": "1gbit,30gbit", "gpus": "8,16,30"}, codecs=[POWER], **without("bandwidth", "gpus")
    )
    best, own = pictures(found)
    assert isinstance(own, HeatMap)
    assert own.title == f"resnet101, batch 64, 4 GPUs a node: {POWER} against FP16 DDP"
    assert (own.xs, own.ys) == ((1e9, 30e9), (8, 16, 30))
    ratios = found.speedup(found.curve(POWER), "fp16")
    assert own.values == ((ratios[0], ratios[3]), (ratios[1], ratios[4]), (None, None))
    assert best.plain == ["FP32 DDP", "FP16 DDP"]
    assert best.names == [[POWER, "FP16 DDP"], [POWER, "FP16 DDP"], ["", ""]]
    assert best.values[0] == (ratios[0], 1.0)
    assert title(found) == "What if: bandwidth of a node from 1 Gbit/s to 30 Gbit/s, number of GPUs from 8 to 30"


def test_every_quantity_can_be_swept():
    for swept in QUANTITIES.values():
        name, text = parse(swept.example)
        found = whatif(sweep={name: text}, codecs=[POWER], **without(name))
        assert all(math.isfinite(s) for c in found.curves for s in c.seconds() if s is not None), name
        assert pictures(found)[0].x.label == swept.label
