"""Time to accuracy: curves, targets, clocks, and tables whose numbers can be worked out by hand."""

from __future__ import annotations

import doctest
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from gradwire.core.baselines import MAX_LOSS
from gradwire.core.errors import ConfigError, UnknownName
from gradwire.planner import quality, spec, tta
from gradwire.planner.clock import Measured, Modelled
from gradwire.planner.model import predict
from gradwire.planner.seeds import Options, groups
from gradwire.planner.training import CHOSEN, Curve, Point, Reached, Run, readable, time_to
from gradwire.planner.tta import as_dict, labels, setups, slack, utility
from gradwire.planner.workload import AFTER, OVERLAP

sys.path.insert(0, str(Path(__file__).parent.parent))
from trainings import perplexity, training

MEASURED = "measured: 4 hosts at 200 Mbit/s"
ACCORDION = "accordion(low='powersgd(rank=4)', high='powersgd(rank=1)')"
PLACE = {"gpus": 16, "gpus_per_node": 1, "bandwidth": "10gbit", "hardware": "h200"}


def curve(*qualities, higher=True):
    """A second and an epoch a round."""
    return Curve(tuple(Point(float(i), i, float(i), q) for i, q in enumerate(qualities, start=1)), higher)


def runs(*records):
    return [Run.of(r) for r in records]


def stand_in(seconds):
    """A `predict` that takes rounds' seconds from a table by codec, and remembers what it was asked."""
    some = predict(model="resnet9", batch=64, codec="fp16", **PLACE)
    asked = []

    def answer(**question):
        asked.append(question)
        if question["codec"] not in seconds:
            raise ConfigError(f"nobody knows what {question['codec']} costs")
        return replace(some, step_seconds=seconds[question["codec"]])

    answer.asked = asked
    return answer


@pytest.mark.parametrize("module", [spec, tta])
def test_doctests(module):
    assert doctest.testmod(module).failed == 0


# -------------------------------------------------------------------- specs


@pytest.mark.parametrize(
    "one, other, alike",
    [
        ("topk", "topk(ratio=0.01, value_bits=32, index='best')", True),
        ("topkc(chunk=128, bits=0.5)", "topkc(bits=0.5)", True),
        ("topkc(bits=0.5)", "topkc(bits=0.5, younger=False)", True),  # a parameter that no trace knows yet
        ("topkc(bits=0.5)", "topkc(bits=0.5, younger=True)", False),
        ("powersgd(rank=1)", "powersgd", False),
        ("mine(a=1)", "mine(a=1)", True),
    ],
)
def test_specs_are_the_same_by_what_they_build(one, other, alike):
    assert spec.same(one, other) is alike


@pytest.mark.parametrize("text", ["topk(", "topk(ratio=x)", "3", "a.b(c=1)"])
def test_a_spec_that_cannot_be_read(text):
    with pytest.raises(ConfigError, match="cannot be read; write a name"):
        spec.parameters(text)


# -------------------------------------------------------------------- curves


def test_time_to_is_linear_between_evaluations():
    found = curve(10.0, 50.0, 90.0)
    assert time_to(found, 70.0) == Reached(2.5, 2.5)
    assert time_to(found, 50.0) == Reached(2.0, 2.0)
    assert time_to(found, 5.0) == Reached(1.0, 1)  # before the first evaluation nothing is known
    assert time_to(found, 90.1) is None


def test_time_to_where_less_is_better():
    found = curve(300.0, 120.0, 100.0, higher=False)
    assert time_to(found, 110.0) == Reached(2.5, 2.5)
    assert time_to(found, 99.0) is None
    assert (found.best, found.final) == (100.0, 100.0)


def test_time_to_takes_the_first_crossing_after_a_dip():
    assert time_to(curve(10.0, 60.0, 40.0, 80.0), 50.0).seconds == pytest.approx(1.8)


def test_a_rolling_average_looks_back_so_many_rounds():
    found = curve(10.0, 20.0, 60.0, 30.0)
    assert [p.quality for p in found.rolling(2).points] == [10.0, 15.0, 40.0, 45.0]
    assert found.rolling(0) == found.rolling(1) == found
    assert found.rolling(2).best == 45.0
    with pytest.raises(ConfigError, match="over 0 or more rounds, got -1"):
        found.rolling(-1)


def test_early_stopping_keeps_the_point_at_which_patience_ends():
    found = curve(10.0, 50.0, 50.4, 50.2, 60.0)
    assert [p.rounds for p in found.stopped(2).points] == [1, 2, 3, 4, 5]  # 50.4 counts without min_delta
    assert [p.rounds for p in found.stopped(2, min_delta=0.5).points] == [1, 2, 3, 4]
    assert curve(300.0, 100.0, 120.0, 110.0, higher=False).stopped(1).final == 120.0
    with pytest.raises(ConfigError, match="a patience above 0 epochs"):
        found.stopped(0)


# -------------------------------------------------------------------- runs


def test_a_run_tells_what_its_record_holds():
    run = Run.of(training("topk(ratio=0.01)", memory="error_feedback()", nmse=[0.1, None, 0.3]))
    assert (run.codec, run.memory, run.controller) == ("topk", "error_feedback", None)
    assert run.bits_per_element == 16.0  # 2000 bytes a round, 1000 parameters
    assert run.nmse == pytest.approx(0.2)
    assert run.floats == 15000.0
    assert not run.measured
    assert Run.of(training(clock=MEASURED)).measured
    assert Run.of(training(None, controller=ACCORDION)).codec == CHOSEN


def test_records_that_are_no_training_are_refused():
    good = training()
    assert readable(good)
    lacking = replace(good, outcome={k: v for k, v in good.outcome.items() if k != "rounds"})
    assert not readable(lacking)
    with pytest.raises(
        ConfigError, match=r"a record of kind accuracy is without outcome.rounds; records are never edited"
    ):
        Run.of(lacking)
    with pytest.raises(ConfigError, match="3 evaluations and 2 numbers of rounds"):
        Run.of(training(rounds=[10, 20]))


def test_seeds_are_grouped_and_the_latest_of_each_counts():
    old = training(quality=(1.0, 2.0, 3.0), seed=1, time="2026-01-01T00:00:00+00:00")
    found = groups(runs(training(seed=0), old, training(seed=1), training("none")))
    assert [g.seeds for g in found] == [(0, 1), (0,)]
    assert found[0].bests() == [90.0, 90.0]
    assert len(setups(runs(training(), training(workers=4), training("none")))) == 2


def test_labels_tell_what_differs():
    found = groups(runs(training(), training(learning_rate=0.1), training("none")))
    assert labels(found) == ["fp16, learning_rate 0.4", "fp16, learning_rate 0.1", "none"]


def test_a_codec_has_one_row_at_the_rate_that_was_chosen():
    found = utility(
        runs(
            *(training(seed=seed) for seed in (0, 1)),
            training(learning_rate=0.1, quality=(80.0, 90.0, 99.0)),  # one lucky seed
            training("none", learning_rate=0.1, quality=(80.0, 85.0, 88.0)),
            training("none"),
        ),
        None,
    )
    assert {row.label: row.group.first.what["learning_rate"] for row in found.rows} == {"fp16": 0.4, "none": 0.4}
    assert found.assumptions == (
        "of several learning rates, the one with most seeds and then the best is shown: 0.4 of fp16, none",
    )


# -------------------------------------------------------------------- clocks


def test_modelled_time_is_rounds_times_a_round():
    answer = stand_in({"fp16": 0.5, "topk": 0.25})
    clock = Modelled(answer, PLACE)
    found = clock.times(Run.of(training("topk")))
    assert found.seconds == (2.5, 5.0, 7.5)
    assert found.a_round == 0.25
    assert answer.asked == [{"model": "resnet9", "batch": 64, "codec": "topk", "strategy": "auto", **PLACE}]
    assert clock.label == "modelled: h200, 16 GPUs, 10 Gbit/s"
    told = clock.assumptions()
    assert told[0] == "quality over rounds is that of 8 workers, the time of a round of the cluster"
    assert any(a.startswith("network 10 Gbit/s") and "assumed" in a for a in told)


@pytest.mark.parametrize("codec", ["variance", "gradiveq"])  # by the data, and until its basis is known
def test_a_round_sends_what_it_sent_in_the_training(codec):
    usual = {"model": "resnet9", "batch": 64, "codec": codec}
    traced = predict(**usual, **PLACE | {"gpus": 8, "mode": AFTER}).sent_bytes
    sent = [traced * 10 * 2, traced * 10 * 3, traced * 10 * 3.25]  # twice as much, as much, a quarter
    clock = Modelled(predict, PLACE)
    found = clock.times(Run.of(training(codec, sent_bytes=sent)))
    each = [predict(**usual, ratio=r, **PLACE).step_seconds for r in (0.5, 1, 4)]
    assert found.seconds == pytest.approx([10 * sum(each[: i + 1]) for i in range(3)], rel=1e-6)
    assert each[2] < each[1] < each[0]
    assert not any(a.startswith("bytes") for a in clock.assumptions())


def test_a_training_that_compressed_the_whole_gradient_is_not_held_against_buckets():
    usual = {"model": "resnet50", "batch": 64, "codec": "dgc"}  # in small buckets by another strategy
    whole, by_bucket = (predict(**usual, **PLACE | {"gpus": 8, "mode": m}).sent_bytes for m in (AFTER, OVERLAP))
    assert abs(by_bucket / whole - 1) > 0.02
    run = Run.of(training("dgc", model="resnet50", sent_bytes=[whole * r for r in (10, 20, 30)]))
    assert Modelled(predict, PLACE).times(run).a_round == pytest.approx(predict(**usual, **PLACE).step_seconds)


def test_bytes_of_one_model_say_nothing_about_another():
    run = Run.of(training("topk", sent_bytes=[1e3, 2e3, 3e3]))
    found = Modelled(predict, PLACE, model="resnet50").times(run)
    assert found.a_round == pytest.approx(predict(model="resnet50", batch=64, codec="topk", **PLACE).step_seconds)


def test_sizes_that_only_the_data_tell_are_doubtful_unless_recorded():
    clock = Modelled(predict, PLACE)
    alone = predict(model="resnet9", batch=64, codec="variance", **PLACE)
    assert alone.estimated
    assert clock.times(Run.of(training("variance"))).a_round == pytest.approx(alone.step_seconds)
    (told,) = (a for a in clock.assumptions() if a.startswith("bytes"))
    assert told.startswith("bytes of variance ")
    assert told.endswith("estimated: of noise, since sizes depend on the data")


def test_levels_count_by_their_shares_of_tensors():
    levels = [{"powersgd(rank=4)": 4}, {"powersgd(rank=4)": 1, "powersgd(rank=1)": 3}, {"powersgd(rank=1)": 4}]
    run = Run.of(training("powersgd", controller=ACCORDION, levels=levels))
    found = Modelled(stand_in({"powersgd(rank=4)": 1.0, "powersgd(rank=1)": 0.2}), PLACE).times(run)
    assert found.seconds == pytest.approx((10.0, 14.0, 16.0))
    assert found.a_round == pytest.approx(16 / 30)


def test_a_batch_that_grows_is_predicted_as_such():
    answer = stand_in({"none": 0.1})
    run = Run.of(training("none", controller="accordion_batch(factor=8)", batch_sizes=[512, 4096, 4096]))
    Modelled(answer, PLACE).times(run)
    assert [q["batch"] for q in answer.asked] == [64, 512]
    answer.asked.clear()
    Modelled(answer, {**PLACE, "batch": 32}).times(run)
    assert [q["batch"] for q in answer.asked] == [32, 256]


@pytest.mark.parametrize("controller", ["accordion_batch(every=2)", "accordion_batch(codec='none')"])
def test_a_controller_without_levels_has_its_own_codec(controller):
    run = Run.of(training(None, controller=controller))
    assert Modelled(stand_in({"none": 0.1}), PLACE).times(run).a_round == pytest.approx(0.1)
    assert Run.of(training(None, controller="accordion_batch(codec='fp16')")).carried == "fp16"


def test_what_cannot_be_modelled_says_why_and_the_others_stay():
    table = utility(runs(training(), training("topk")), Modelled(stand_in({"fp16": 0.5}), PLACE))
    assert table.row("topk").note == "nobody knows what topk costs"
    assert table.row("topk").to_target == dict.fromkeys(table.targets)
    assert table.row("topk").best == 90.0
    assert table.row("fp16").seconds_per_round == 0.5


def test_the_real_model_answers_and_takes_backward():
    known = Modelled(predict, PLACE).times(Run.of(training()))
    assert known.seconds[0] > 0
    unknown = Run.of(training(model="vgg16-cifar10"))
    refused = Modelled(predict, PLACE).times(unknown)
    assert refused.seconds is None
    assert "has no times of 'vgg16-cifar10'" in refused.note
    with pytest.raises(UnknownName):
        predict(model="vgg16-cifar10", batch=64, codec="fp16", **PLACE)
    assert Modelled(predict, {**PLACE, "backward": 0.02}).times(unknown).a_round > 0.03  # forward is half of it


def test_measured_time_is_of_one_place():
    one, other = (Run.of(training(clock=f"measured: {n} hosts")) for n in (2, 4))
    assert Measured.of([one]).times(one).seconds == (5.0, 10.0, 15.0)
    assert Measured.of([one]).label == "measured: 2 hosts"
    with pytest.raises(ConfigError, match="measured: 2 hosts; measured: 4 hosts; give --gpus"):
        Measured.of([one, other])
    with pytest.raises(ConfigError, match="no time of a cluster"):
        Measured.of(runs(training()))


# -------------------------------------------------------------------- the table


@pytest.fixture
def nobody_tried(monkeypatch):
    """As if we had trained with nothing: nothing is lossy."""
    monkeypatch.setattr(quality, "shipped", tuple)


@pytest.mark.usefixtures("nobody_tried")
def test_the_table_by_hand():
    table = utility(
        runs(
            training(quality=(50.0, 80.0, 90.0)),
            training("topk", quality=(40.0, 70.0, 89.8), memory="error_feedback()"),
            training("signsgd", quality=(40.0, 60.0, 80.0)),
        ),
        Modelled(stand_in({"fp16": 1.0, "topk": 0.5, "signsgd": 0.1}), PLACE),
    )
    assert table.targets == (89.5, 89.0, 88.0)
    assert [r.group.first.codec for r in table.rows] == ["topk", "fp16", "signsgd"]
    assert [r.rank for r in table.rows] == [1, 2, 3]
    topk, half, sign = table.rows
    assert half.to_target[89.5] == Reached(pytest.approx(29.5), pytest.approx(29.5))
    rounds = 20 + 10 * 19.5 / 19.8
    assert topk.to_target[89.5] == Reached(pytest.approx(rounds / 2), pytest.approx(rounds))
    assert topk.speed_up[89.5] == pytest.approx(29.5 / (rounds / 2))
    assert (topk.difference, sign.difference) == (pytest.approx(-0.2), pytest.approx(-10.0))
    assert sign.to_target[88.0] is None
    assert half.speed_up == dict.fromkeys(table.targets, 1.0)


def test_what_our_trainings_call_lossy_is_marked_and_comes_last(monkeypatch):
    """By the rule of `advise`, of the codec with the memory that it was trained with."""
    lost = quality.Quality(
        "other", quality.IMAGES, "topk(ratio=0.01)", "error_feedback", 0.6, quality.POINTS, 0.1, 3, 9
    )
    fast, records = {"fp16": 1.0, "topk": 0.1}, [training(), training("topk", memory="error_feedback()")]
    for loss, order in ((0.6, ["fp16", "topk"]), (0.4, ["topk", "fp16"])):
        monkeypatch.setattr(quality, "shipped", lambda loss=loss: (replace(lost, loss=loss),))
        assert quality.standing("topk", quality.IMAGES).kind == (quality.LOSSY if loss > 0.5 else quality.SAFE)
        table = utility(runs(*records), Modelled(stand_in(fast), PLACE))
        assert [r.group.first.codec for r in table.rows] == order
        assert table.row("topk").name == "topk, error_feedback" + " (lossy)" * (loss > 0.5)
        assert as_dict(table)["runs"][0]["standing"] == (None if loss > 0.5 else quality.SAFE)
    monkeypatch.setattr(quality, "shipped", lambda: (lost,))
    bare = utility(runs(training(), training("topk")), Modelled(stand_in(fast), PLACE))
    assert bare.row("topk").standing.kind == quality.UNTRIED  # without its memory it is another thing


def test_what_counts_as_equal_is_what_advise_lets_a_codec_lose():
    on_bert = quality.Quality("b", quality.LANGUAGE, "topk", "none", 0.0, quality.PERPLEXITY, None, 1, 9)
    for loss in (0.99, 1.01):
        assert replace(on_bert, loss=loss).exceeds(MAX_LOSS) is (loss > slack(100.0, "perplexity"))
        assert replace(on_bert, unit=quality.POINTS, loss=loss / 2).exceeds(MAX_LOSS) is (loss / 2 > slack(93.0, "%"))
    assert utility(runs(perplexity()), None).targets[0] == 100.0 + slack(100.0, "perplexity")


def test_seeds_give_a_mean_a_range_and_a_median_with_never_as_the_longest():
    records = [training(quality=(50.0, q), seed=s, epochs=2) for s, q in enumerate((90.0, 91.0, 92.0))]
    table = utility(runs(*records), None, targets=[90.5, 91.5])
    row = table.rows[0]
    assert (row.best, row.spread) == (pytest.approx(91.0), (90.0, 92.0))
    assert row.to_target[91.5] is None  # one of three gets there
    assert row.to_target[90.5].rounds == pytest.approx(10 + 10 * 40.5 / 41)  # the later of two, before never
    assert [p.quality for p in row.curve.points] == [50.0, pytest.approx(91.0)]


def test_two_seeds_of_which_one_never_arrives():
    records = [training(quality=(50.0, q), seed=s, epochs=2) for s, q in enumerate((90.0, 92.0))]
    assert utility(runs(*records), None, targets=[91.0]).rows[0].to_target[91.0] is None


def test_targets_of_perplexity_are_factors():
    table = utility(runs(perplexity(), perplexity("topk", (400.0, 200.0, 104.0))), None)
    assert table.targets == (101.0, 102.0, 104.0)
    assert table.row("topk").difference == pytest.approx(-4.0)
    assert table.row("topk").to_target[102.0] is None
    assert table.row("topk").to_target[104.0].rounds == pytest.approx(30)


def test_targets_of_other_scales_are_shares_of_the_way():
    records = runs(training(quality=(0.2, 0.5, 0.7), unit="IoU"))
    assert utility(records, None).targets == (0.695, 0.675, 0.65)
    assert slack(0.7, "IoU") == pytest.approx(0.007)


def test_rolling_and_patience_reach_the_table():
    records = runs(training(quality=(50.0, 90.0, 80.0, 95.0)))
    assert utility(records, None, options=Options(rolling=20)).rows[0].best == pytest.approx(87.5)
    assert utility(records, None, options=Options(patience=1)).rows[0].best == 90.0


def test_times_to_the_end_of_an_annealed_schedule_are_called_what_they_are():
    """Where all that arrive do so in the last tenth of a schedule that ends at a tenth of its rate, and only there."""
    ends = (50.0, *[60.0] * 8, 90.0)
    fall = {"learning_rates": [0.4] * 9 + [0.01]}
    late = utility(runs(training("fp16", ends, **fall), training("topk", ends, **fall)), None)
    assert late.late == late.targets
    assert late.schedule_note.startswith("the schedule is annealed, and whoever meets 89.5 or 89 or 88 does so")
    assert as_dict(late)["schedule_note"] == late.schedule_note
    early = training("topk", (50.0, 90.0, *[90.0] * 8), **fall)
    assert utility(runs(training("fp16", ends, **fall), early), None).schedule_note == ""
    assert utility(runs(training("fp16", ends), training("topk", ends)), None).schedule_note == ""  # a constant rate
    assert utility(runs(training("fp16", ends, **fall)), None, targets=[99.0]).late == ()  # nobody arrives


def test_a_table_needs_one_set_up_and_a_baseline_or_targets():
    with pytest.raises(ConfigError, match="runs of one set-up can be compared, got 2: task resnet9-cifar10"):
        utility(runs(training(), training(workers=4)), None)
    with pytest.raises(ConfigError, match="has no run with fp16 to compare with, only topk, none; name targets"):
        utility(runs(training("topk"), training("none")), None)
    alone = utility(runs(training("topk")), None, targets=[80.0])
    assert alone.rows[0].difference is None
    assert alone.rows[0].speed_up == {80.0: None}


def test_plain_keys():
    found = as_dict(utility(runs(training()), Modelled(stand_in({"fp16": 1.0}), PLACE), targets=[85.0, 99.0]))
    assert set(found) >= {"task", "time_label", "baseline", "runs"}
    (row,) = found["runs"]
    assert row["to_target"] == {"99.0": None, "85.0": {"seconds": 25.0, "rounds": 25.0, "speed_up": 1.0}}
    assert (row["codec"], row["memory"], row["controller"], row["seeds"]) == ("fp16", "none", None, [0])
    assert (row["best"], row["best_spread"], row["difference"]) == (90.0, [90.0, 90.0], 0.0)
    assert (row["bits_per_element"], row["nmse"], row["seconds_per_round"]) == (16.0, 0.25, 1.0)
