"""What is computed from measurements, and what the verdict says about them."""

from __future__ import annotations

import math

from gradwire.bench.outcome import Outcome, describe_win, on_link, verdict, wins_below


def an_outcome(label, milliseconds, sent_bytes, accuracy=0.9, spread=1.0):
    samples = tuple(1e-3 * (milliseconds + spread * d) for d in (-2, -1, 0, 1, 2))
    parts = {"encode": 0.001, "communicate": 0.002, "decode": 0.003}
    return Outcome(label=label, samples=samples, sent_bytes=sent_bytes, loss=0.1, accuracy=accuracy, parts=parts)


PLAIN = an_outcome("fp32 DDP", 50, 8e6)
HALF = an_outcome("fp16", 60, 4e6)


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


def test_the_verdict_when_compression_loses():
    lines = verdict([PLAIN, HALF, an_outcome("topk", 100, 1e6, accuracy=0.875)])
    assert lines == [
        "Measured: compression does not pay here. The fastest codec, topk, takes 100 ms a step against 50 ms of fp32 "
        "DDP: over loopback, sending is cheap, and encoding costs more than it saves.",
        "Measured: on held-out images fp32 DDP is right in 90.0% of cases, the others between 87.5% (topk) and 90.0% "
        "(fp32 DDP); one seed, so a point or two say little.",
        "Computed, not measured: if each worker had a link of 1 Gbit/s and waited for it, fp16 would be the fastest, "
        "at 92 ms a step; compression (topk) would beat both baselines below 600 Mbit/s. Latency and overlap are left "
        "out.",
    ]


def test_the_verdict_when_compression_wins_or_ties():
    assert verdict([PLAIN, HALF, an_outcome("topk", 40, 1e6)])[0] == (
        "Measured: compression pays even here. The fastest codec, topk, takes 40 ms a step against 50 ms of fp32 DDP."
    )
    assert verdict([PLAIN, HALF, an_outcome("topk", 51, 1e6)])[0] == (
        "Measured: a tie. The fastest codec, topk, takes 51 ms a step against 50 ms of fp32 DDP: within the spread of "
        "the steps."
    )
    assert "would beat both baselines at any rate." in verdict([PLAIN, HALF, an_outcome("topk", 40, 1e6)])[2]
    assert "would beat both baselines at no rate." in verdict([PLAIN, HALF, an_outcome("none", 60, 8e6)])[2]
