"""The advisor: verdicts in clear cases, crossovers that are where times are equal, and what it says of itself."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import json
import random

import pytest

from gradwire.core.errors import ConfigError, UnknownName
from gradwire.core.units import format_milliseconds as ms
from gradwire.planner import advisor
from gradwire.planner.advisor import FP16_HOOK, advise
from gradwire.planner.model import MODES, predict
from gradwire.planner.profile import parse
from gradwire.planner.ranking import ESTIMATED, NO_WAY, NOT_MEASURED, TOO_LARGE, Contest
from gradwire.planner.workload import shipped

LAW = {"launches": 5.0, "passes": 2.0}
FREE = {"launches": 0.0, "passes": 0.0}
ACCURACY = {
    "fp32 DDP": {"settings": 8, "median": 0.016, "max": 0.07},
    "fp16 DDP": {"settings": 8, "median": 0.02, "max": 0.08},
    "codecs": {"settings": 40, "median": 0.03, "max": 0.2},
    "about": {"place": "4 hosts at 1 Gbit/s"},
}


def profile(codecs=("qsgd", "topk", "powersgd", "signsgd"), half=FREE, **device):
    """Of round numbers: a step of 150 ms, cheap codecs, 20 us a message."""
    costs = {codec: {"encode": LAW, "decode": LAW, "source": "measured: in a dream"} for codec in codecs}
    costs["none"] = {"encode": FREE, "decode": FREE, "source": "assumed: nothing to encode"}
    costs["fp16"] = {"encode": half, "decode": half, "source": "assumed: two casts"}
    times = {
        "batch": 64,
        "forward_seconds": 0.05,
        "backward_seconds": 0.1,
        "optimizer_seconds": 0.0,
        "memory_bytes": 9e9,
        "source": "published: a book",
    }
    return parse(
        {
            "name": "invented",
            "description": "for tests",
            "device": {
                "memory_bytes": 10e9,
                "launch_seconds": 1e-5,
                "pass_bytes_per_second": 1e12,
                "source": "assumed: round",
                **device,
            },
            "network": {"latency_seconds": 2e-5, "efficiency": 1.0, "source": "assumed: ideal"},
            "inside": {"latency_seconds": 5e-6, "bits_per_second": 2e12, "source": "assumed: fast"},
            "overlap": {"network_slowdown": 1.05, "compute_sharing": 1.0, "source": "inferred: from a guess"},
            "models": {"resnet50": [times]},
            "codecs": costs,
        }
    )


PROFILE = profile()
SETUP = {"model": "resnet50", "batch": 64, "gpus": 16, "bandwidth": "1gbit", "hardware": PROFILE}


def asked(**changes):
    """By time alone, unless the changes say otherwise."""
    return advise(**{**SETUP, "accuracy": ACCURACY, "any_codec": True, **changes})


def seconds(codec, **changes):
    """The fastest of both modes, as the advisor should find it where a node has one GPU."""
    setup = {**SETUP, **changes}
    return min(predict(**setup, codec=codec, mode=mode).step_seconds for mode in MODES)


def slowed(codec, factor):
    """A prediction function by which one codec takes a multiple of FP16 DDP's time; `factor` sees the set-up."""

    def answer(**setup):
        found = predict(**setup)
        if setup["codec"] != codec:
            return found
        half = predict(**{**setup, "codec": "fp16"})
        return dataclasses.replace(found, step_seconds=factor(setup) * half.step_seconds)

    return answer


# ---------------------------------------------------------------- verdicts


def test_a_slow_network_pays():
    found = asked()
    first = found.ranking[0]
    own, half = seconds(first.codec), seconds("fp16")
    assert found.verdict.kind == "worth it"
    assert found.verdict.sentence == (
        f"Worth it: {first.codec} takes {ms(own)} a step against {ms(half)} of FP16 DDP, "
        f"{half / own:.3g} times as fast. In our trainings: {first.evidence}."
    )
    assert found.verdict.line == f'gradwire.attach(model, "{first.codec}", mode="{first.mode}", strategy="auto")'
    assert first.speedup == pytest.approx(half / own)


def test_a_fast_network_does_not():
    found = asked(bandwidth=1e13, accuracy={})
    first = found.ranking[0]
    own, half = seconds(first.codec, bandwidth=1e13), seconds("fp16", bandwidth=1e13)
    assert found.verdict.kind == "not worth it"
    assert found.verdict.sentence == (
        f"Not worth it: keep FP16 DDP. The fastest codec, {first.codec}, takes {ms(own)} a step against {ms(half)} of "
        f"FP16 DDP, {100 * (own / half - 1):.1f} % slower; more than 5 % would be worth it."
    )
    assert found.verdict.line == FP16_HOOK


def test_plain_ddp_is_kept_where_even_casts_cost_more_than_they_save():
    found = asked(bandwidth=1e13, hardware=profile(half={"launches": 100.0, "passes": 50.0}))
    assert found.verdict.sentence.startswith("Not worth it: keep FP32 DDP. ")
    assert found.verdict.line is None
    assert [b.codec for b in found.baselines] == ["none", "fp16"]
    assert found.baselines[0].speedup == 1.0
    assert found.baselines[1].speedup < 1.0


@pytest.mark.parametrize(
    "factor, kind", [(0.94, "worth it"), (0.96, "not worth it"), (0.98, "too close to call"), (1.01, "not worth it")]
)
def test_five_percent_are_worth_it_and_less_than_the_usual_error_says_nothing(factor, kind):
    found = asked(codecs=["topk"], predict=slowed("topk", lambda _: factor))
    assert found.verdict.kind == kind


def test_too_close_to_call_says_so():
    found = asked(codecs=["topk"], predict=slowed("topk", lambda _: 1 / 1.02))
    half = seconds("fp16")
    assert found.verdict.sentence == (
        f"Too close to call: topk is predicted to take {ms(half / 1.02)} a step against {ms(half)} of FP16 DDP, 2.0 % "
        "faster, and such predictions are 3.0 % off in the median; keep FP16 DDP unless a measurement says otherwise."
    )
    assert (
        asked(codecs=["topk"], predict=slowed("topk", lambda _: 1 / 1.02), accuracy={}).verdict.kind == "not worth it"
    )


def test_one_gpu_has_nothing_to_compress():
    found = asked(gpus=1)
    assert found.verdict.sentence == "Nothing to compress: one GPU exchanges no gradients."
    assert (found.bandwidth, found.gpus, found.explanations, found.verdict.line) == (None, None, (), None)


def test_codecs_of_unknown_cost_give_no_answer():
    found = asked(codecs=["natural"])
    assert found.verdict.kind == "unknown"
    assert found.verdict.sentence == (
        "No answer: profile invented knows the cost of none of these codecs; measure one: "
        "gradwire calibrate --codec natural"
    )


# ---------------------------------------------------------------- the ranking


def test_all_of_the_catalogue_is_there_fastest_first_and_unknown_last():
    found = asked()
    assert {r.codec for r in found.ranking} == set(shipped().codecs()) - {"none", "fp16", "bf16"}
    known = [r.step_seconds for r in found.ranking if r.step_seconds is not None]
    assert known == sorted(known)
    assert len(known) >= 5
    assert [r.step_seconds for r in found.ranking[: len(known)]] == known
    assert {r.notes for r in found.ranking[len(known) :]} == {(NOT_MEASURED,)}
    assert found.certainty.codec_costs["not measured on this hardware"] == len(found.ranking) - len(known)


def test_the_best_of_both_modes_and_strategies_counts():
    nodes = {"gpus": 32, "gpus_per_node": 4, "bandwidth": "10gbit"}
    for entry in asked(**nodes, codecs=["qsgd", "topk", "powersgd"]).ranking:
        tried = {
            (mode, strategy): predict(
                **{**SETUP, **nodes}, codec=entry.codec, mode=mode, strategy=strategy
            ).step_seconds
            for mode in MODES
            for strategy in ("auto", "hierarchical")
        }
        assert entry.step_seconds == min(tried.values())
        assert tried[entry.mode, entry.strategy] == entry.step_seconds


def test_ddp_may_go_node_by_node_where_codecs_may():
    nodes = {**SETUP, "gpus": 32, "gpus_per_node": 4}
    half = asked(gpus=32, gpus_per_node=4).baselines[1]
    ways = {way: predict(**nodes, codec="fp16", strategy=way).step_seconds for way in ("auto", "hierarchical")}
    assert half.step_seconds == min(ways.values()) == ways[half.strategy]


def test_only_the_mode_and_strategy_that_were_asked_for():
    found = asked(mode="after_backward", strategy="all_gather")
    known = [r for r in found.ranking if r.step_seconds is not None]
    assert {(r.mode, r.strategy) for r in known} == {("after_backward", "all_gather")}
    assert next(r for r in found.ranking if r.codec == "powersgd").notes == (NO_WAY,)
    assert asked(strategy="parameter_server", codecs=["topk"]).verdict.line is None


def test_what_does_not_fit_is_marked_and_not_recommended():
    small = profile(memory_bytes=9.3e9)  # beside 9 GB of the training
    found = asked(hardware=small, gpus=512, strategy="all_gather")
    large = [r for r in found.ranking if r.fits is False]
    assert large
    assert all(TOO_LARGE in r.notes for r in large)
    assert found.verdict.line is None or not any(f'"{r.codec}"' in found.verdict.line for r in large)
    none = asked(hardware=small, gpus=512, strategy="all_gather", codecs=[large[0].codec])
    assert none.verdict.sentence == "Not worth it: keep FP16 DDP. No codec fits into memory here."


def test_sizes_that_depend_on_data_are_marked():
    known = profile(codecs=["threshold", "topk"])
    found = asked(codecs=["threshold", "topk"], hardware=known)
    assert {r.codec: ESTIMATED in r.notes for r in found.ranking} == {"threshold": True, "topk": False}
    alone = asked(codecs="threshold", hardware=known)
    assert alone.verdict.sentence.endswith(" Mind: sizes depend on the data, estimated from noise.")


def test_bytes_are_compared_with_fp16_sums_that_go_the_same_way():
    for strategy in ("auto", "hierarchical"):
        found = asked(gpus=32, gpus_per_node=4, strategy=strategy, codecs=["qsgd"])
        assert found.ranking[0].sent_against_fp16 == pytest.approx(3.9, rel=0.05)  # 4 bits and norms against 16


def test_other_ways_to_write_a_codec_are_one_entry():
    assert [r.codec for r in asked(codecs=["powersgd(rank=4)", "powersgd", "fp16"]).ranking] == ["powersgd"]


def test_the_line_is_a_call_that_attach_takes():
    import gradwire
    from gradwire.collectives.choose import parse as parse_strategy

    line = asked(gpus=32, gpus_per_node=4, strategy="hierarchical").verdict.line
    call = ast.parse(line).body[0].value
    given = {k.arg: k.value.value for k in call.keywords}
    assert ast.unparse(call.func) == "gradwire.attach"
    assert set(given) <= set(inspect.signature(gradwire.attach).parameters)
    assert parse_strategy(given["strategy"]).per_node == 4
    ast.parse(FP16_HOOK)


# ---------------------------------------------------------------- reasons


def test_the_first_three_are_explained():
    found = asked()
    assert len(found.explanations) == 3
    for text, entry in zip(found.explanations, found.ranking, strict=False):
        parts = entry.parts
        assert text.startswith(
            f"{entry.codec} ({entry.mode}, auto): {ms(entry.step_seconds)} a step, of which 150 ms compute and "
            f"{ms(parts['wait'])} wait; it encodes and decodes for {ms(parts['encode'] + parts['decode'])} and "
            f"exchanges for {ms(parts['exchange'])}"
        )
        assert f"{entry.sent_against_fp16:.3g} times less than FP16" in text
    half = predict(**SETUP, codec="fp16").parts["exchange"]
    assert "it is first because " in found.explanations[0]
    assert found.explanations[0].endswith(f"(FP16 DDP exchanges for {ms(half)}).")
    assert f"behind {found.ranking[0].codec} because " in found.explanations[1]


# ---------------------------------------------------------------- what would change it


@pytest.mark.parametrize("bandwidth", ["1gbit", "40gbit", 1e13])
def test_at_the_crossover_both_take_the_same_time(bandwidth):
    found = asked(bandwidth=bandwidth).bandwidth
    own, half = seconds(found.codec, bandwidth=found.at), seconds("fp16", bandwidth=found.at)
    assert own == pytest.approx(half, rel=0.01)
    assert seconds(found.codec, bandwidth=found.at / 1.1) < seconds("fp16", bandwidth=found.at / 1.1)
    assert seconds(found.codec, bandwidth=found.at * 1.1) > seconds("fp16", bandwidth=found.at * 1.1)
    assert found.sentence.startswith(f"FP16 DDP and {found.codec} are even at ")
    assert found.sentence.endswith(f"; {found.codec} is faster below.")


def test_no_crossover_is_said_so():
    span = "than DDP at every bandwidth from 10 Mbit/s to 10000 Gbit/s; there is no crossover."
    for factor, word in ((0.5, "faster"), (2, "slower")):
        found = asked(codecs=["topk"], predict=slowed("topk", lambda _, f=factor: f)).bandwidth
        assert (found.at, found.sentence) == (None, f"topk is {word} {span}")


def rate(setup):
    return setup["bandwidth"] if isinstance(setup["bandwidth"], float) else 1e9


def test_of_several_crossings_the_nearest_is_named():
    waves = slowed("topk", lambda s: 0.9 if 1e8 < rate(s) < 4e9 or rate(s) > 3e11 else 1.1)
    found = asked(codecs=["topk"], predict=waves).bandwidth
    assert found.at == pytest.approx(4e9, rel=0.01)
    assert [r for span in found.ranges for r in span] == pytest.approx([1e8, 4e9, 3e11, 1e13], rel=0.01)
    assert found.sentence.endswith(
        "the curves cross 3 times: topk is faster from 100 Mbit/s to 4 Gbit/s and from 300 Gbit/s to 10000 Gbit/s."
    )


def test_the_smallest_number_of_gpus_that_pays():
    found = asked(codecs=["signsgd"], bandwidth="8gbit", gpus_per_node=4).gpus
    assert found.at > 4
    assert found.at % 4 == 0

    def gain(gpus):
        contest = Contest(predict, PROFILE, {**SETUP, "gpus_per_node": 4, "bandwidth": "8gbit", "gpus": gpus})
        return contest.reference().step_seconds / contest.best("signsgd").step_seconds

    assert gain(int(found.at)) > 1.05 >= gain(int(found.at) - 4)
    assert found.sentence == (
        f"signsgd pays, being more than 5 % faster than DDP, from {found.at:.0f} GPUs on, up to 1024 at least."
    )


@pytest.mark.parametrize(
    "pays, ranges, sentence",
    [
        (lambda n: False, [], "topk is more than 5 % faster than DDP at no number of GPUs up to 1024."),
        (
            lambda n: 5 <= n <= 77,
            [(5, 77)],
            "topk pays, being more than 5 % faster than DDP, from 5 to 77 GPUs, not beyond.",
        ),
        (
            lambda n: n in (2, 3) or n > 100,
            [(2, 3), (101, 1024)],
            "topk pays, being more than 5 % faster than DDP, from 2 to 3 GPUs and from 101 GPUs on, up to 1024 at "
            "least (not steadily: the gain comes and goes).",
        ),
    ],
)
def test_gpu_counts_between_which_it_pays(pays, ranges, sentence):
    found = asked(codecs=["topk"], predict=slowed("topk", lambda s: 0.8 if pays(s["gpus"]) else 1.2), gpus=64).gpus
    assert list(found.ranges) == ranges
    assert found.sentence == sentence
    assert found.at == (ranges[-1][0] if ranges else None)  # the nearest to 64


def test_a_contest_is_decided_by_the_best_of_both_sides():
    """However few predictions it looks at."""
    draw = random.Random(7)
    for _ in range(200):
        times = {}

        def answer(*, codec, mode, strategy, times=times, **rest):
            found = predict(**SETUP, codec="none")
            key = (codec, mode, strategy)
            times.setdefault(key, draw.choice([1.0, 2.0, 3.0, 4.0] if codec == "topk" else [0.5, 3.5, 3.5, 3.5]))
            return dataclasses.replace(found, step_seconds=times[key], fits=times[key] != 2.0)

        contest = Contest(answer, PROFILE, {**SETUP, "gpus_per_node": 4})
        won = contest.beats("topk", 1.0)
        best = contest.best("topk")
        assert won == (best.fits and best.step_seconds < contest.reference().step_seconds)


# ---------------------------------------------------------------- compression for near-linear scaling


def test_the_smallest_ratio_that_comes_near_to_linear_scaling():
    found = asked().compression
    alone = predict(**{**SETUP, "gpus": 1}).step_seconds
    assert found.alone_seconds == alone == pytest.approx(0.15)
    assert predict(**SETUP, ratio=found.ratio).step_seconds <= 1.1 * alone
    assert predict(**SETUP, ratio=0.97 * found.ratio).step_seconds > 1.1 * alone
    assert found.sentence == (
        f"Near-linear scaling (within 10 % of a step without exchange) needs payloads {found.ratio:.3g} times smaller "
        "than FP32, if encoding were free: 165 ms a step against 150 ms without exchange."
    )


def test_no_compression_is_needed_or_none_is_enough():
    free = asked(bandwidth=1e12).compression
    assert free.ratio == 1
    assert free.sentence.startswith("Near-linear scaling needs no compression here: FP32 DDP takes ")
    far = asked(latency=0.01).compression
    assert far.ratio is None
    assert far.sentence == (
        f"Near-linear scaling is not reachable: latency alone, with next to nothing sent, makes it "
        f"{ms(far.step_seconds)} a step against 150 ms without exchange, {far.step_seconds / 0.15:.3g} times as long."
    )


# ---------------------------------------------------------------- how sure


def test_inputs_are_grouped_by_their_source():
    inputs = asked(codecs=["topk"]).certainty.inputs
    names = {kind: [i.name for i in found] for kind, found in inputs.items()}
    assert names == {
        "measured": ["encode and decode"],
        "published": ["backward", "forward"],
        "inferred": ["contention"],
        "assumed": ["encode and decode", "network", "latency"],
        "traced": ["bytes of fp16", "bytes of topk"],
    }
    assert "estimated" in asked(codecs=["threshold"], hardware=profile(codecs=["threshold"])).certainty.inputs
    given = asked(codecs=["topk"], latency=1e-4, backward=0.2).certainty.inputs["assumed"]
    assert "assumed: as you gave it" in [i.source for i in given]


def test_the_expected_error_and_where_it_was_found():
    assert asked().certainty.sentence == (
        "Expected error of a step: 1.6 % in the median (7.0 % at most, 8 settings) for fp32 DDP, 2.0 % in the median "
        "(8.0 % at most, 8 settings) for fp16 DDP, 3.0 % in the median (20.0 % at most, 40 settings) for codecs. That "
        "was found on an emulated network between CPU hosts (4 hosts at 1 Gbit/s), not on the hardware of invented, "
        "where it may be larger."
    )
    assert asked(accuracy={}).certainty.sentence == "Expected error: not known, no validation shipped."


def test_a_missing_validation_is_no_failure(monkeypatch, tmp_path):
    monkeypatch.setattr(advisor, "files", lambda _: tmp_path)
    assert advisor.shipped_accuracy() == {}
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "accuracy.json").write_text(json.dumps(ACCURACY))
    assert advisor.shipped_accuracy() == ACCURACY


def test_remarks():
    assert asked().remarks[0].startswith("Ranked by time alone, as asked for: ")
    wanted = "Ranked are codecs that lost at most 0.25 points, or 0.5 % of a perplexity, wherever we trained with them"
    rule = asked(any_codec=False, max_loss=0.25).remarks[0]
    assert rule.startswith(wanted)
    assert rule.endswith("The mean of seeds counts: the ± beside it is its 95 % interval, which may reach beyond that.")
    assert len(asked().remarks) == 1
    assert "node by node" in asked(gpus_per_node=4).remarks[1]
    assert "memory" in asked(backward=0.1).remarks[-1]  # of a backward pass that was given, no memory is known


# ---------------------------------------------------------------- the frame


def test_an_answer_goes_through_json():
    found = dataclasses.asdict(asked())
    again = json.loads(json.dumps(found, allow_nan=False))
    assert again["setup"]["hardware"] == "invented"
    assert again["ranking"][0]["parts"]["backward"] == 0.1


def test_an_answer_takes_few_predictions():
    """So that it comes in under a second."""
    count = 0

    def counted(**setup):
        nonlocal count
        count += 1
        return predict(**setup)

    everything = profile(codecs=[c for c in shipped().codecs() if c not in ("none", "fp16", "bf16")])
    asked(hardware=everything, gpus=64, gpus_per_node=4, bandwidth="10gbit", predict=counted)
    assert count < 600


@pytest.mark.parametrize(
    "changes, error, message",
    [
        ({"codec": "topk"}, ConfigError, "advise: codecs are compared here; write codecs=['topk'] instead of codec="),
        (
            {"strategy": "star"},
            ConfigError,
            "advise: `strategy` must be 'auto' or 'all_gather' or 'hierarchical' or 'parameter_server', got 'star'",
        ),
        ({"gpus": 0}, ConfigError, "gradwire: `gpus` must be a whole number of at least 1, got 0"),
        ({"gpus": "8"}, ConfigError, "gradwire: `gpus` must be a whole number of at least 1, got '8'"),
        (
            {"gpus_per_node": 3},
            ConfigError,
            "gradwire: 16 GPUs do not fill nodes of 3; type a multiple, such as 15 or 18, or --gpus-per-node 1",
        ),
        (
            {"bandwidth": "10"},
            ConfigError,
            "gradwire: a rate needs a number above 0 and a unit, as in 100mbit or 1gbit; got '10'",
        ),
        ({"codecs": ["powersg"]}, UnknownName, "no trace of codec 'powersg'; did you mean powersgd"),
        ({"mode": "later"}, ConfigError, "gradwire: `mode` must be 'overlap' or 'after_backward', got 'later'"),
    ],
)
def test_wrong_input_gets_a_sentence(changes, error, message):
    with pytest.raises(error) as caught:
        asked(**changes)
    assert str(caught.value).startswith(message)
