"""What is computed from measurements, and what the verdict says about them."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from gradwire.laboratory.bench.outcome import Outcome, describe_win, even_at, line, on_link, pays, verdict, wins_below
from gradwire.planner.quality import standing


def an_outcome(label, milliseconds, sent_bytes, accuracy=0.9, spread=1.0):
    """`milliseconds`: of a step over loopback, or a dictionary by link."""
    by_link = milliseconds if isinstance(milliseconds, dict) else {"loopback": milliseconds}
    samples = {link: tuple(1e-3 * (ms + spread * d) for d in (-2, -1, 0, 1, 2)) for link, ms in by_link.items()}
    parts = {"encode": 0.001, "communicate": 0.002, "decode": 0.003}
    return Outcome(label=label, samples=samples, sent_bytes=sent_bytes, loss=0.1, accuracy=accuracy, parts=parts)


def on_links(label, slow, fast, accuracy=0.9):
    return an_outcome(label, {"200 Mbit/s": slow, "1 Gbit/s": fast}, 1e6, accuracy)


PLAIN = an_outcome("fp32 DDP", 50, 8e6)
HALF = an_outcome("fp16 DDP", 60, 4e6)


def test_a_link_adds_the_time_of_the_bytes():
    assert math.isclose(on_link(PLAIN), 0.050 + 0.064)
    assert math.isclose(on_link(PLAIN, 1e8), 0.050 + 0.640)


def test_a_codec_wins_below_the_rate_where_bytes_saved_outweigh_time_added():
    slower = an_outcome("topk", 100, 1e6)
    assert math.isclose(wins_below(slower, HALF), 8 * 3e6 / 0.040)
    assert math.isclose(on_link(slower, wins_below(slower, HALF)), on_link(HALF, wins_below(slower, HALF)))
    assert wins_below(an_outcome("topk", 55, 1e6), HALF) == math.inf
    assert wins_below(an_outcome("none", 55, 8e6), HALF) == 0.0
    assert [describe_win(r) for r in (6e8, math.inf, 0.0)] == ["600 Mbit/s", "any rate", "no rate"]


def test_shares_are_of_the_mean_step():
    assert {k: round(v, 9) for k, v in PLAIN.shares.items()} == {"encode": 0.02, "communicate": 0.04, "decode": 0.06}


def test_the_verdict_over_loopback():
    lines = verdict([PLAIN, HALF, an_outcome("topk", 100, 1e6, accuracy=0.875)])
    assert lines == [
        "Measured over loopback: compression does not pay. The fastest codec, topk, takes 100 ms a step against 50 ms "
        "of fp32 DDP: sending is cheap here, and encoding costs more than it saves.",
        "Measured: on held-out images fp32 DDP is right in 90.0% of cases, the others between 87.5% (topk) and 90.0% "
        "(fp32 DDP); one seed, so a point or two say little.",
        "Computed, not measured: if each worker had a link of 1 Gbit/s and waited for it, fp16 DDP would be the "
        "fastest, at 92 ms a step; compression (topk) would beat both baselines below 600 Mbit/s. Latency and "
        "overlap are left out.",
    ]


def test_the_verdict_when_compression_wins_or_ties():
    assert verdict([PLAIN, HALF, an_outcome("topk", 40, 1e6)])[0] == (
        "Measured over loopback: compression pays. topk takes 40 ms a step against 50 ms of fp32 DDP: "
        "1.2 times as fast."
    )
    assert verdict([PLAIN, HALF, an_outcome("topk", 51, 1e6)])[0] == (
        "Measured over loopback: a tie. The fastest codec, topk, takes 51 ms a step against 50 ms of fp32 DDP: "
        "too close to tell."
    )
    assert "would beat both baselines at any rate." in verdict([PLAIN, HALF, an_outcome("topk", 40, 1e6)])[2]
    assert "would beat both baselines at no rate." in verdict([PLAIN, HALF, an_outcome("none", 60, 8e6)])[2]


def test_many_steps_tell_a_difference_that_few_leave_open():
    def spread_out(label, milliseconds, count):
        times = tuple(1e-3 * (milliseconds + 80 * i / (count - 1) - 40) for i in range(count))
        return Outcome(label=label, samples={"loopback": times}, sent_bytes=1.0, loss=0.0, accuracy=1.0, parts=None)

    assert pays("loopback", spread_out("fp16 DDP", 100, 5), spread_out("topk", 80, 5)) is None
    assert pays("loopback", spread_out("fp16 DDP", 100, 81), spread_out("topk", 80, 81)) is True
    assert pays("loopback", spread_out("topk", 80, 81), spread_out("fp16 DDP", 100, 81)) is False


def test_the_verdict_on_two_links():
    baselines = [on_links("fp32 DDP", 300, 100), on_links("fp16 DDP", 200, 80)]
    trained = standing("eightbit", "images").sentence
    assert verdict([*baselines, on_links("eightbit", 100, 90, accuracy=0.88)]) == [
        "Measured at 200 Mbit/s: compression pays. eightbit takes 100 ms a step against 200 ms of fp16 DDP: 2.0 "
        "times as fast.",
        "Measured at 1 Gbit/s: compression does not pay. The fastest codec, eightbit, takes 90 ms a step against 80 "
        "ms of fp16 DDP: sending is cheap here, and encoding costs more than it saves.",
        "Computed from 200 Mbit/s and 1 Gbit/s: DDP catches up with eightbit at about 733 Mbit/s; slower links are for "
        "compression, faster ones are not.",
        "Measured: on held-out images fp32 DDP is right in 90.0% of cases, the others between 88.0% (eightbit) and "
        "90.0% (fp32 DDP); one seed, so a point or two say little.",
        'So: on links up to 200 Mbit/s, one line saves time: gradwire.attach(model, "eightbit"). It was 2.0 times as '
        "fast as fp16 DDP there, with 2.0 points less accuracy than fp32 DDP in this short run; in our longer "
        f"trainings: {trained}.",
    ]
    slow = [*baselines, on_links("topk", 400, 300)]
    assert verdict(slow)[-1] == "So: on links like these keep DDP as it is; compression would save you no time."


def test_what_hurt_in_our_trainings_is_not_recommended():
    baselines = [on_links("fp32 DDP", 300, 100), on_links("fp16 DDP", 200, 80)]
    hurts, fast = standing("topk", "images").sentence, on_links("topk", 50, 45)
    assert verdict([*baselines, fast])[-1] == (
        f"So: keep DDP as it is. topk was faster, but in our trainings: {hurts}."
    )
    told = verdict([*baselines, fast, on_links("eightbit", 100, 90)])[-1]
    assert 'gradwire.attach(model, "eightbit")' in told
    assert told.endswith(f"topk was faster still, but there: {hurts}.")


def test_two_links_give_a_line_and_two_lines_cross():
    half, codec = on_links("fp16 DDP", 200, 80), on_links("topk", 100, 90)
    constant, bits = line(half, half.links)
    assert constant == pytest.approx(0.050)
    assert bits == pytest.approx(30e6)  # 150 ms of 200 Mbit/s
    assert even_at(codec, half) == pytest.approx((30e6 - 2.5e6) / (0.0875 - 0.050))
    assert even_at(half, codec) == 0.0
    assert even_at(on_links("topk", 90, 40), half) == math.inf


def test_a_link_that_carries_less_than_its_name_is_told():
    measured = {"asked_bits_per_second": [1e9, 1e9], "payload_bits_per_second": [0.95e9, 0.6e9]}
    outcomes = [on_links("fp32 DDP", 300, 100), on_links("fp16 DDP", 200, 80), on_links("topk", 100, 90)]
    told = verdict([replace(o, network={"1 Gbit/s": measured}) for o in outcomes])
    assert told[2] == "Beware: a link of 1 Gbit/s carried 600 Mbit/s here, because the machine is busy or slow."
    assert not any(line.startswith("Beware") for line in verdict(outcomes))
