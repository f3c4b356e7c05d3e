"""What records say about claims."""

from __future__ import annotations

import pytest
from stand_in import record

from gradwire.laboratory.reproduce import measured
from gradwire.laboratory.reproduce.claims import utility_counts
from gradwire.laboratory.reproduce.evidence import Evidence
from gradwire.laboratory.reproduce.study import Study


def collective(hosts, decode, peak, strategy="all_gather", codec="signsgd"):
    what = {"hosts": hosts, "ranks_per_host": 1, "codec": codec, "strategy": strategy, "elements": 1000}
    return record("collective", what, 0.1, {"parts_seconds": {"decode": decode}, "peak_bytes": peak})


def step(configuration, seconds, sent=0.0, **more):
    what = {
        "configuration": configuration, "model": "m", "batch": 4, "hosts": 2, "ranks_per_host": 1,
        "bits_per_second": 1e9, **more,
    }  # fmt: skip
    return record("step", what, seconds, {"sent_bytes": sent})


def test_growth_is_a_line_through_three_or_more_numbers_of_hosts():
    records = [collective(h, 1e-3 * (2 + h), 1e6 * (40 + 2 * h)) for h in (2, 4, 8)]
    noise = [collective(2, 9, 9, strategy="scatter_reduce_gather"), collective(2, 9, 9, codec="qsgd")]
    decode, memory = measured.gather_decode(records + noise), measured.gather_memory(records + noise)
    assert (decode.value, memory.value) == pytest.approx((1, 1))
    assert decode.text == "decoding of gathered signs on 2 to 8 emulated hosts: 4 to 10 ms, 1 ms a host"
    assert memory.text == "memory of gathered signs on 2 to 8 emulated hosts: 44 to 56 MB, 2 MB a host"
    assert measured.gather_decode(records[:2]) is None


def test_a_line_that_is_none():
    slope, fit = measured.line_fit([1, 2, 3], [1, 5, 1])
    assert (slope, fit) == (0, 0)


def test_overlapped_over_sequential_pairs_of_one_run():
    records = [
        step("topk", 0.3, mode="overlap"),
        step("topk", 0.2, mode="after_backward"),
        step("qsgd", 0.3, mode="overlap"),  # no partner
        step("fp32 DDP", 0.4),
    ]
    [(what, ratio)] = measured.overlap_ratios(records)
    assert (what["configuration"], ratio) == ("topk", pytest.approx(1.5))
    finding = measured.overlapped_compression(records)
    assert finding.text == "1 of 1 pairs on CPUs are slower overlapped; 1.50 to 1.50 times"
    assert measured.overlapped_compression(records[:1]) is None


def test_of_two_streams_the_most_that_hides_decides():
    def beside(model, codec, hidden):
        outcome = {"hidden": hidden, "hidden_interval": [hidden - 0.1, hidden + 0.1]}
        return record("overlap", {"model": model, "codec": codec}, 0.1, outcome)

    records = [beside("m", "topk", 0.1), beside("n", "thc", 0.35), beside("n", "topk", -0.2)]
    finding = measured.two_streams(records)
    assert (finding.value, finding.low, finding.high) == pytest.approx((0.35, 0.25, 0.45))
    assert finding.text.startswith("of encoding's time -0.20 (topk beside n) to 0.35 (thc beside n) hides")
    assert measured.two_streams([]) is None

    (claim,) = (c for c in utility_counts.CLAIMS if c.id.endswith("P1"))
    for hidden, verdict in ((0.3, "reproduced"), (0.45, "open"), (0.7, "not reproduced")):
        evidence = Evidence(study=Study(records=[beside("m", "topk", hidden)]))
        assert claim.check(evidence).verdict == verdict


def test_overlap_of_ddp_against_what_it_would_take_alone():
    records = [step("no exchange", 0.1), step("fp32 DDP", 0.15, sent=12.5e6)]  # 0.1 s of exchange
    finding = measured.ddp_overlap(records)
    assert finding.value == pytest.approx(25)
    assert finding.text.startswith("at most 25 % (m) in 1 set-ups on CPUs")
    assert measured.ddp_overlap(records[:1]) is None


def test_wins_of_steps():
    records = [
        step("fp32 DDP", 0.4),
        step("fp16 DDP", 0.2),
        step("topk", 0.3, mode="overlap"),
        step("qsgd", 0.1, mode="overlap"),
        step("dgc", 0.01, mode="after_backward"),
    ]
    finding = measured.step_wins(records)
    assert finding.value is None
    assert finding.text.startswith("2 of 2 steps beat FP32 DDP and 1 FP16 DDP, on CPUs at 1 to 1 Gbit/s")
    assert measured.step_wins(records[:2]) is None


def test_encode_times_are_of_the_gpu_and_the_size():
    def encode(codec, device, elements):
        return record("encode", {"codec": codec, "device": device, "elements": elements}, 0.005, {})

    records = [encode("topk", "cpu", 1000), encode("topk", "cuda", 500), encode("topk", "cuda", 1001)]
    assert measured.encode_seconds(records, "topk", 1000) == 0.005
    assert measured.encode_seconds(records[:2], "topk", 1000) is None
    assert measured.encode_seconds(records, "qsgd", 1000) is None
