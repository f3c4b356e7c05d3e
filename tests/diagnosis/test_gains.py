"""What codecs would bring: the rate that was seen, safe codecs alone, and when to say no."""

from __future__ import annotations

import pytest
from watched import SHAPES, watch

from gradwire.core.units import transfer_seconds
from gradwire.diagnosis.causes import account
from gradwire.diagnosis.codecs import Gain, Gains, advised, candidates, gains
from gradwire.diagnosis.report import diagnose
from gradwire.planner import quality
from gradwire.planner.profile import CodecCost, Whole

GRADIENT = 4 * sum(a * (b[0] if b else 1) for a, *b in SHAPES)  # bytes
COSTS = {
    spec: CodecCost(
        encode=None,
        decode=None,
        source="measured: by this test",
        models={"Net": Whole(encode_seconds=0.001, decode_seconds=0.001, source="measured: by this test")},
    )
    for spec in candidates()
}


def slow(ranks=2, rate=1e8, settings=None, **own):
    """A job whose whole gradient is exposed, at a rate."""
    exposed = transfer_seconds(2 * (ranks - 1) / ranks * GRADIENT, rate)
    step = {"seconds": 0.01 + exposed, "forward": 0.003, "backward": 0.001, "exposed": exposed}
    return [watch(r, ranks, [step] * 5, settings, **own) for r in range(ranks)]


@pytest.mark.parametrize("rate", [2e7, 1e9])
@pytest.mark.parametrize("ranks", [2, 8])
def test_the_rate_is_the_one_that_explains_what_was_exposed(ranks, rate):
    watches = slow(ranks, rate)
    assert gains(watches[0], account(watches), COSTS).bits_per_second == pytest.approx(rate, rel=0.05)


def test_gradients_of_16_bits_are_half_as_many_bytes():
    for told in ({"gradient_bits": 16}, {"settings": {"hook": "fp16_compress_hook"}}):
        watches = slow(2, 1e8, **told)
        found = gains(watches[0], account(watches), COSTS)
        assert found.bits_per_second == pytest.approx(0.5e8, rel=0.05)
        assert all(g.codec != "fp16" for g in found.codecs)


def test_safe_codecs_alone_are_ranked_and_faster_at_a_slow_link():
    watches = slow()
    found = gains(watches[0], account(watches), COSTS, task="language")
    assert [g.codec for g in found.codecs if g.codec != "fp16"]
    for gain in found.codecs:
        assert gain.codec == "fp16" or quality.standing(gain.codec, "language").kind == quality.SAFE
        assert gain.speedup == pytest.approx(account(watches).step_seconds / gain.step_seconds)
    by_codec = {g.codec: g for g in found.codecs}
    assert all(g.sent_bytes < GRADIENT for g in found.codecs)  # an oracle that sends everything brings nothing
    assert by_codec["fp16"].speedup == pytest.approx(2, rel=0.1)
    assert by_codec["eightbit"].speedup == pytest.approx(3.5, rel=0.2)
    assert by_codec["eightbit"].line.startswith('gradwire.attach(model, "eightbit", mode="')
    assert "bert-small-wikitext2" in by_codec["eightbit"].evidence
    assert [g.step_seconds for g in found.codecs] == sorted(g.step_seconds for g in found.codecs)


def test_the_kind_that_the_model_showed_decides_unless_one_is_told():
    watches = slow(task="recommendation")
    costs = {spec: next(iter(COSTS.values())) for spec in candidates("images") + candidates("recommendation")}

    def named(**told):
        return {g.codec for g in gains(watches[0], account(watches), costs, **told).codecs}

    assert named() == named(task="recommendation") != named(task="images")


def test_ranks_of_a_host_share_its_card():
    watches = slow(4, 1e8, local_ranks=2)
    found = gains(watches[0], account(watches), COSTS)
    assert any(g.line and "hierarchical(per_node=2)" in g.line for g in found.codecs)


def test_a_verdict_at_a_slow_link_has_its_line():
    found = diagnose(slow(), COSTS)
    assert found.cause == "network"
    assert found.verdict.startswith("The network: for 99 % of a step all ranks wait for sums that nothing hides. It ")
    assert " Compress: " in found.verdict
    assert found.line == found.codecs[0].line


def test_do_not_compress_where_codecs_cost_more_than_they_save():
    whole = Whole(encode_seconds=9.0, decode_seconds=9.0, source="measured: by this test")
    dear = {
        spec: CodecCost(encode=None, decode=None, source="measured: by this test", models={"Net": whole})
        for spec in candidates()
    }
    found = diagnose(slow(), dear)
    assert (found.cause, found.line) == ("network", None)
    assert found.verdict.endswith(" Do not compress: no safe codec is estimated to make a step 5 % faster.")


@pytest.mark.parametrize(
    "speedups, wanted",
    [
        ({"a": 3.0, "fp16": 1.9}, "a"),
        ({"a": 1.92, "fp16": 1.9}, "fp16"),  # not worth a codec
        ({"a": 1.04, "fp16": 1.02}, None),
        ({"a": 1.5}, "a"),
        ({}, None),
    ],
)
def test_what_is_advised(speedups, wanted):
    listed = tuple(Gain(c, 1 / s, s, 1.0, "tried", "a line") for c, s in speedups.items())
    best = advised(Gains(1e8, listed, ""))
    assert (best.codec if best else None) == wanted


@pytest.mark.parametrize(
    "told, remark",
    [
        ({"settings": {"hook": "powerSGD_hook"}}, "Gradients go through the hook powerSGD_hook already; "),
        ({"settings": {"bucket_bytes": (99,) * 99}}, "While buckets are tiny, the network's rate does not show; "),
        ({}, "What codecs cost on this CPU is not known: "),
    ],
)
def test_why_nothing_is_estimated(told, remark):
    watches = slow(**told)
    found = gains(watches[0], account(watches))
    assert found.codecs == ()
    assert found.remark.startswith(remark)


def test_nothing_to_save_or_nothing_but_latency():
    watches = [watch(r, 2, [{"seconds": 1.0}] * 5) for r in range(2)]
    assert gains(watches[0], account(watches)).remark.startswith("So little of the exchange is exposed")
    alone = [watch(0, 1)]
    assert gains(alone[0], account(alone)).remark == "One rank has nothing to exchange."
    quick = [watch(r, 64, [{"seconds": 0.01, "exposed": 0.002}] * 5) for r in range(2)]
    assert gains(quick[0], account(quick), COSTS).remark.startswith("The exchange takes no longer than its messages")


def test_costs_of_an_h200_stand_for_a_gpu():
    watches = slow(settings={"device": "cuda", "backend": "nccl"})
    found = gains(watches[0], account(watches))
    assert "of an H200" in found.remark
    assert {g.codec for g in found.codecs} >= {"fp16", "eightbit"}
