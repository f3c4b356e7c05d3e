"""Findings: rules over invented records come out as they must, and the page is made of whatever there is."""

from __future__ import annotations

import dataclasses
import doctest
import importlib.util
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from stand_in import study

from gradwire.core.codec import codecs
from gradwire.laboratory.reproduce import accordion, finding, throughput
from gradwire.laboratory.reproduce.claim import CONTRADICTED
from gradwire.laboratory.reproduce.finding import CONFIRMED, OPEN, Evidence
from gradwire.laboratory.reproduce.findings import accordion as of_accordion
from gradwire.laboratory.reproduce.findings import grace as of_grace
from gradwire.laboratory.reproduce.findings import grace_speed, mixed
from gradwire.laboratory.reproduce.findings import throughput as of_throughput
from gradwire.laboratory.reproduce.findings import utility as of_utility
from gradwire.laboratory.reproduce.throughput import BERT, POWERSGD, SPECS, TOPK, TOPKC, VGG19
from gradwire.planner.spec import keeps
from gradwire.planner.workload import shipped

sys.path.insert(0, str(Path(__file__).parents[2]))
from trainings import perplexity, training

ROOT = Path(__file__).parents[3]
EF = "error_feedback()"
ALL = {f.id: f for f in (*of_grace.FINDINGS, *of_throughput.FINDINGS, *of_accordion.FINDINGS)}
LEVELS = "low='powersgd(rank=4)', high='powersgd(rank=1)'"


def judged(id, records=(), **more):
    return ALL[id].check(Evidence([("some.jsonl", r) for r in records], **more))


def verdict(id, records=(), **more):
    return judged(id, records, **more).verdict


def ending(codec, quality, **changes):
    """A training that ends with this quality."""
    start = (50.0, 80.0) if quality > 80 else (quality - 40, quality - 10)
    return training(codec, (*start, quality), **changes)


# -------------------------------------------------------------------- what is published


def test_the_specs_are_those_that_the_tables_mean():
    assert len(SPECS) == len(set(SPECS)) == 22
    for spec in SPECS:
        codecs.build(spec)
    for setting in TOPK:
        ratio = codecs.build(setting.codec).ratio
        assert 48 * ratio == pytest.approx(setting.bits[BERT], rel=1e-5)
    for setting in TOPKC:
        codec, numel = codecs.build(setting.codec), 1 << 24
        bits = 16 * (codec.kept_chunks(numel) * codec.chunk / numel + 1 / codec.chunk)
        assert bits == pytest.approx(setting.bits[BERT], rel=1e-3)
    assert {codecs.build(s.codec).traits.memory for s in (*TOPK, *TOPKC)} == {"error_feedback"}


def test_tables_hold_together():
    """The paper's own ratios: 29.6 % by saturation, 5.5 % by partial rotation, TopKC twice Top-k, a half by r = 64."""
    full, partial, exact = of_throughput.FULL, of_throughput.PARTIAL, of_throughput.EXACT_SUMS
    rounds = {s: s.rounds_per_second[VGG19] for s in (full, partial, exact, TOPK[2], TOPKC[2], *POWERSGD)}
    assert rounds[full] / rounds[exact] == pytest.approx(1.296, abs=5e-4)
    assert rounds[partial] / rounds[full] == pytest.approx(1.055, abs=1e-3)
    assert rounds[TOPKC[2]] / rounds[TOPK[2]] == 2.0
    assert rounds[POWERSGD[3]] / rounds[POWERSGD[0]] == pytest.approx(0.52, abs=5e-3)
    assert throughput.compute_seconds(VGG19) == pytest.approx(1 / 24.9)
    assert {m for m, _ in throughput.MODELS.values()} <= set(shipped().models())
    assert [line.saved for line in accordion.LINES[:2]] == pytest.approx([1.54, 2.29], abs=5e-3)


def test_defaults_of_memory_are_the_codecs_own():
    for spec in ("topk", "powersgd(rank=64)", "qsgd", "signsgd", "fp16", "thc"):
        assert keeps(spec) is (codecs.build(spec).traits.memory != "none"), spec


def test_doctests():
    assert doctest.testmod(finding).failed == 0


# -------------------------------------------------------------------- without records


def test_without_records_what_trainings_decide_is_open():
    by_shapes = {"T-powersgd-bits", "A-volumes", "A-schedule"}
    for id in set(ALL) - by_shapes:
        found = judged(id)
        assert found.verdict == OPEN, id
        assert found.why.startswith("no record yet: ")
    assert {verdict(id) for id in by_shapes} == {CONFIRMED}
    assert judged("A-schedule").measured == "58.99 epochs at low compression"
    assert len(ALL) == len(of_grace.FINDINGS) + len(of_throughput.FINDINGS) + len(of_accordion.FINDINGS)


# -------------------------------------------------------------------- GRACE


@pytest.mark.parametrize("best, said", [(91.2, CONFIRMED), (91.1, CONTRADICTED)])
def test_grace_baseline(best, said):
    found = judged("G-baseline", [ending("none", best)])
    assert (found.verdict, found.files) == (said, ("some.jsonl",))
    assert found.measured == f"{best:.2f} %"


def test_grace_comparable_counts_codecs_with_their_own_memory():
    near = [ending("fp16", 90.0), ending("topk", 89.6, memory=EF), ending("topk", 20.0), ending("signsgd", 89.5)]
    assert judged("G-comparable", near).measured.startswith("2 of 2 codecs and tasks")
    far = [*near, ending("qsgd", 88.0), ending("natural", 88.0, memory=EF)]
    assert verdict("G-comparable", near) == CONFIRMED
    assert verdict("G-comparable", far) == CONTRADICTED  # two of four are not more than half


def test_grace_above_needs_all_seeds():
    base = [ending("fp16", q, seed=s) for s, q in enumerate((90.0, 91.0))]
    lucky = [ending("topk", q, seed=s, memory=EF) for s, q in enumerate((90.5, 93.0))]
    assert verdict("G-above", [*base, *lucky]) == CONTRADICTED
    assert verdict("G-above", [*base, ending("topk", 91.5, memory=EF)]) == OPEN  # one seed is chance
    assert verdict("G-above", [*base, *lucky, ending("qsgd", 91.5)]) == OPEN  # a second seed of qsgd would tell
    better = [ending("topk", 91.5, seed=s, memory=EF) for s in (0, 1)]
    found = judged("G-above", [*base, *better])
    assert found.verdict == CONFIRMED
    assert found.measured.endswith("topk, error_feedback on resnet9-cifar10, +1.00 points")


NAMES = ("topk", "signsgd", "qsgd", "terngrad", "natural", "dgc", "powersgd", "efsignsgd")


def several(first, second):
    """Two tasks with eight codecs each; qualities and perplexities by codec, the others in between."""
    images = [ending("fp16", 90.0), *(ending(c, first.get(c, 85.0)) for c in NAMES)]
    words = [perplexity(), *(perplexity(c, (300.0, second.get(c, 120.0))) for c in NAMES)]
    return [*images, *(replace_epochs(r) for r in words)]


def replace_epochs(record):
    record.what["epochs"] = 3  # one set-up for all
    return record


def test_grace_no_winner():
    assert verdict("G-no-winner", several({"topk": 89.0}, {"qsgd": 101.0})) == CONFIRMED
    found = judged("G-no-winner", several({"topk": 89.0}, {"topk": 101.0}))
    assert found.verdict == CONTRADICTED
    assert found.measured == "resnet9-cifar10: topk; bert-small-wikitext2: topk"
    assert verdict("G-not-everywhere", several({"topk": 89.8}, {"topk": 101.0})) == CONTRADICTED
    assert verdict("G-not-everywhere", several({"topk": 89.8}, {"qsgd": 101.0})) == CONFIRMED
    assert verdict("G-no-winner", several({}, {})[:9]) == OPEN


def test_grace_error_feedback():
    helped = [ending("topk", 89.0, memory=EF), ending("topk", 80.0)]
    assert verdict("G-ef-sparse", helped) == CONFIRMED
    assert verdict("G-ef-sparse", [helped[1], ending("topk", 79.0, memory=EF)]) == CONTRADICTED
    harmed = [ending("signsgd", 70.0, memory=EF), ending("signsgd", 80.0)]
    assert verdict("G-ef-harms", harmed) == OPEN  # one of four
    harmed += [ending("qsgd", 70.0, memory=EF), ending("qsgd", 80.0)]
    assert verdict("G-ef-harms", harmed) == CONFIRMED
    noisy = [ending("topk", 80.1, memory=EF), ending("topk", 80.0)]
    assert verdict("G-ef-sparse", noisy) == OPEN  # seeds differ by as much
    ncf = [ending("topk", q, memory=m, task="ncf-ml1m", model="ncf-ml1m") for q, m in ((60.0, EF), (62.0, "none()"))]
    assert verdict("G-ef-ncf", [*helped, *ncf]) == CONFIRMED
    assert verdict("G-ef-sparse", ncf) == OPEN  # recommendation is the exception, and not counted
    assert verdict("G-ef-ncf", [helped[1], ending("topk", 79.0, memory=EF), *ncf]) == CONTRADICTED


def test_grace_recommendation_and_degrees():
    place = {"task": "ncf-ml1m", "model": "ncf-ml1m", "memory": EF}
    heavy = [1000 * r for r in (1, 2, 3)]
    light = [9000 * r for r in (1, 2, 3)]
    base = ending("fp16", 95.0, **{**place, "memory": "none()"})
    runs = [
        base,
        ending("topk(ratio=0.001)", 90.0, payload_bytes=heavy, **place),
        ending("topk", 94.0, payload_bytes=light, **place),
    ]
    assert verdict("G-ncf-loss", runs) == CONFIRMED
    assert verdict("G-ncf-loss", [base, runs[2]]) == CONFIRMED  # a whole point
    assert verdict("G-ncf-loss", [base, ending("topk", 94.1, **place)]) == CONTRADICTED
    assert verdict("G-ncf-degree", runs) == CONFIRMED
    images = [ending("topk(ratio=0.001)", 89.5, payload_bytes=heavy), ending("topk", 90.0, payload_bytes=light)]
    assert verdict("G-cifar-degree", images) == CONFIRMED
    assert verdict("G-cifar-degree", [*images, ending("topk(ratio=0.5)", 92.0)]) == CONTRADICTED


def test_grace_volume():
    def sized(bytes_a_round, first):
        found = several(first, {})[:9]
        for record in found:
            size = 100 if record.what["codec"] in bytes_a_round else 4000
            record.outcome["payload_bytes"] = [size * r for r in record.outcome["rounds"]]
        return found

    heavy = {"topk", "dgc", "powersgd"}
    worse = dict.fromkeys(heavy, 70.0) | {"qsgd": 60.0}
    found = judged("G-volume", sized(heavy, worse))
    assert found.verdict == CONFIRMED
    assert found.measured.startswith("mean difference to the baseline -20.00 below 1 bit (3 codecs), -10.00 above (5)")
    assert verdict("G-volume", sized(heavy, dict.fromkeys(heavy, 89.0))) == CONTRADICTED


def stepping(seconds):
    """A model by codec and rate."""

    def predict(codec, bandwidth, compute_speed, **_):
        step = seconds(codec, bandwidth, compute_speed < 1)
        return SimpleNamespace(step_seconds=step, parts={"encode": 0.04 * step, "decode": 0.02 * step})

    return predict


def test_grace_speed_by_the_model():
    slow = stepping(lambda codec, rate, slowed: 1.0 if codec in ("none", "fp16") or rate == "10gbit" else 0.5)
    assert verdict("G-rarely-pays", predict=slow) == CONFIRMED
    assert verdict("G-slow-links", predict=slow) == CONFIRMED
    assert verdict("G-overhead", predict=slow) == CONFIRMED
    assert verdict("G-25gbit", predict=slow) == CONTRADICTED  # twice as fast at 25 Gbit/s
    fast = stepping(lambda codec, rate, slowed: 1.0 if codec in ("none", "fp16") else 0.9)
    assert verdict("G-rarely-pays", predict=fast) == CONTRADICTED
    assert verdict("G-25gbit", predict=fast) == CONFIRMED
    assert verdict("G-bound", predict=fast) == CONTRADICTED
    assert 0.1 < grace_speed.slowdown() < 1


# -------------------------------------------------------------------- Beyond Throughput


def both(**qualities):
    """FP16, FP32 and settings on the stand-in of VGG19, by codec."""
    return [ending("fp16", 90.0), ending("none", 90.2), *(ending(c, q) for c, q in qualities.items())]


def settings(*pairs, memory="none()"):
    return [ending(s.codec, q, memory=memory) for s, q in pairs]


def test_time_to_accuracy_is_our_rounds_over_theirs_a_second():
    evidence = Evidence([("f", r) for r in [*both(), *settings((TOPKC[2], 92.0), (TOPKC[0], 70.0), memory=EF)]])
    trained = mixed.found(evidence, VGG19)
    assert mixed.target(trained) == 89.5
    assert mixed.rounds(trained, mixed.FP16) == pytest.approx(29.5)
    needed = 20 + 10 * 9.5 / 12
    assert mixed.seconds(trained, TOPKC[2], VGG19) == pytest.approx(needed / 15.2)
    assert mixed.speed_up(trained, TOPKC[2], VGG19) == pytest.approx(29.5 / 8.73 / (needed / 15.2))
    assert mixed.speed_up(trained, TOPKC[0], VGG19) == 0  # never there
    assert mixed.rounds(trained, TOPK[0]) is None  # not trained
    assert mixed.found(evidence, BERT) is None


def test_set_ups_are_not_mixed_and_the_one_with_the_settings_is_taken():
    many = [*both(), *(ending(c, 80.0) for c in NAMES)]
    few = [ending(c, q, workers=4) for c, q in (("fp16", 89.0), ("none", 89.9))]
    few += [ending(s.codec, 88.0, memory=EF, workers=4) for s in TOPKC]
    evidence = Evidence([("many", r) for r in many] + [("few", r) for r in few])
    assert evidence.task("resnet9-cifar10").files == ("many",)
    assert mixed.found(evidence, VGG19).files == ("few",)
    assert evidence.tasks["resnet9-cifar10"].files == ("many",)
    found = ALL["T-fp16-quality"].check(evidence)
    assert (found.verdict, found.files) == (CONTRADICTED, ("few",))  # 0.9 points, of four workers


def test_of_several_learning_rates_the_best_counts():
    found = Evidence([("f", ending("fp16", q, learning_rate=r)) for q, r in ((89.0, 0.1), (90.0, 0.2), (85.0, 0.4))])
    assert found.task("resnet9-cifar10").fp16.best == 90.0


def test_fp16_beside_fp32():
    assert verdict("T-fp16-quality", both()) == CONFIRMED
    assert verdict("T-fp16-quality", [ending("fp16", 90.0), ending("none", 90.6)]) == CONTRADICTED
    assert verdict("T-fp16-tta", both()) == CONFIRMED
    for half, wanted in ((1.9, CONTRADICTED), (2.05, OPEN), (2.15, OPEN), (2.3, CONFIRMED)):  # limit 2.1, and its noise
        rates = {"FP32": (2.0, True), "FP16": (half, True)}
        assert verdict("T-fp16-throughput", throughput=lambda m, s, rates=rates: rates.get(s.label)) == wanted


def test_topkc_beside_topk():
    errors = [
        ending(s.codec, 90.0, memory=EF, nmse=[e] * 3) for s, e in zip(TOPKC + TOPK, (1, 2, 3, 4, 5, 6), strict=True)
    ]
    assert verdict("T-topkc-nmse", [*both(), *errors]) == CONFIRMED
    turned = [
        ending(s.codec, 90.0, memory=EF, nmse=[e] * 3) for s, e in zip(TOPKC + TOPK, (1, 2, 9, 4, 5, 6), strict=True)
    ]
    found = judged("T-topkc-nmse", [*both(), *turned])
    assert found.verdict == CONTRADICTED
    assert "resnet9-cifar10, TopKC, b = 8: 9 against 6" in found.measured
    permuted = [ending(s.codec, 90.0, memory=EF, nmse=[0.9] * 3) for s in throughput.PERMUTED]
    lower = [ending(s.codec, 90.0, memory=EF, nmse=[0.1] * 3) for s in TOPKC]
    assert verdict("T-locality", [*both(), *lower, *permuted]) == CONFIRMED
    assert verdict("T-locality", [*both(), *lower]) == OPEN


def test_who_beats_fp16():
    only = settings(*((s, 70.0) for s in (*TOPK, *TOPKC[:2])), (TOPKC[2], 90.0), memory=EF)
    found = judged("T-topkc-fp16", [*both(), *only])
    assert found.verdict == CONFIRMED
    assert found.measured.startswith("sooner than FP16: resnet9-cifar10: TopKC, b = 8 (1.74")
    assert verdict("T-topk-fp16", [*both(), *only]) == CONFIRMED
    assert verdict("T-topkc-tta", [*both(), *only]) == CONFIRMED
    more = settings((TOPKC[0], 90.0), (TOPK[0], 90.0), (TOPKC[2], 90.0), memory=EF)
    assert verdict("T-topkc-fp16", [*both(), *more]) == CONTRADICTED
    assert verdict("T-topk-fp16", [*both(), *more]) == CONTRADICTED
    assert verdict("T-small-b", [*both(), *only]) == CONFIRMED


def test_throughput_is_no_proxy():
    slow = settings((TOPKC[0], 70.0), (TOPKC[2], 90.0), memory=EF)  # the fastest never arrives
    found = judged("T-proxy", [*both(), *slow])
    assert found.verdict == CONFIRMED
    assert "most rounds a second TopKC, b = 0.5, soonest TopKC, b = 8" in found.measured
    assert verdict("T-proxy", [*both(), *settings((TOPKC[0], 90.0), (TOPKC[2], 90.0), memory=EF)]) == CONTRADICTED


def test_thc():
    full, partial, exact = of_throughput.FULL, of_throughput.PARTIAL, of_throughput.EXACT_SUMS
    good = settings((full, 89.8), (partial, 89.9), (exact, 90.0))
    assert verdict("T-saturation-quality", [*both(), *good]) == CONFIRMED
    assert verdict("T-partial-quality", [*both(), *good]) == CONFIRMED
    assert verdict("T-thc-tta", [*both(), *good]) == CONFIRMED
    assert verdict("T-saturation-quality", [*both(), *settings((full, 89.0), (exact, 90.0))]) == CONTRADICTED
    two = [perplexity(), perplexity(of_throughput.TWO_BITS.codec, (300.0, 200.0, 150.0))]
    assert judged("T-two-bits", two).measured == "bert-small-wikitext2: never there"
    assert verdict("T-two-bits", two) == CONFIRMED
    same = [perplexity(), perplexity(of_throughput.TWO_BITS.codec)]
    assert verdict("T-two-bits", same) == CONTRADICTED
    rates = {full.label: 3.0, partial.label: 3.3, exact.label: 2.0}
    sure = {"throughput": lambda m, s: (rates[s.label], True)}
    guess = {"throughput": lambda m, s: (rates[s.label], False)}
    assert verdict("T-saturation-throughput", **sure) == CONFIRMED
    assert verdict("T-partial-throughput", **sure) == CONFIRMED
    assert verdict("T-partial-throughput", **guess) == OPEN


def test_powersgd():
    ranks = settings((POWERSGD[0], 85.0), (POWERSGD[2], 90.0), (POWERSGD[3], 90.5), memory=EF)
    assert verdict("T-powersgd-quality", [*both(), *ranks]) == CONFIRMED
    assert verdict("T-powersgd-quality", [*both(), *ranks[:2], ending("powersgd(rank=64)", 84.0)]) == CONTRADICTED
    found = judged("T-powersgd-fp16", [*both(), *ranks])
    assert found.verdict == CONFIRMED
    assert found.measured.startswith("resnet9-cifar10: 2.3")
    assert (
        verdict("T-powersgd-throughput", throughput=lambda m, s: (11.0 if "64" in s.label else 21.0, True)) == CONFIRMED
    )
    assert verdict("T-powersgd-throughput", throughput=lambda m, s: (11.0 if "64" in s.label else 21.0, False)) == OPEN


# -------------------------------------------------------------------- Accordion


def steered(quality, floats, controller=f"accordion({LEVELS})", **outcome):
    sent = [floats / 3, floats / 2, floats]
    place = {"task": "vgg19bn-cifar10", "model": "vgg19bn-cifar10", "memory": EF, "floats_sent": sent}
    codec, name = (controller, None) if controller.startswith("powersgd") else ("powersgd", controller)
    return ending(codec, quality, controller=name, **place, **outcome)


def test_accordion():
    low, high = steered(93.0, 6e9, "powersgd(rank=4)"), steered(70.0, 2e9, "powersgd(rank=1)")
    good = [low, high, steered(92.6, 3e9)]
    assert {verdict(f"A-vgg19bn-cifar10-{what}", good) for what in ("accuracy", "floats", "high")} == {CONFIRMED}
    told = judged("A-vgg19bn-cifar10-floats", good).measured
    assert told.startswith("3000.0 M floats against 6000.0 M: 2.00 times less (3 epochs of 300, accordion(low=")
    bad = [low, steered(92.9, 2e9, "powersgd(rank=1)"), steered(92.4, 5.9e9)]
    assert {verdict(f"A-vgg19bn-cifar10-{what}", bad) for what in ("accuracy", "floats", "high")} == {CONTRADICTED}
    other = [low, steered(92.6, 3e9, "accordion(low='powersgd(rank=8)', high='powersgd(rank=1)')")]
    assert verdict("A-vgg19bn-cifar10-accuracy", other) == OPEN  # between other levels
    switch = {"epoch": 1, "parameter": "*", "from": "powersgd(rank=1)", "to": "powersgd(rank=2)", "why": "MSDR fell"}
    assert verdict("A-adaqs", [*good, steered(92.0, 4e9, "adaqs(factor=0.5)", switches=[switch])]) == CONFIRMED
    assert verdict("A-adaqs", [*good, steered(92.0, 1e9, "adaqs(factor=0.5)", switches=[switch])]) == CONTRADICTED
    assert verdict("A-adaqs", [*good, steered(92.0, 4e9, "adaqs(factor=0.5)")]) == OPEN  # it never did anything
    swapped = "accordion(low='powersgd(rank=1)', high='powersgd(rank=4)')"
    assert verdict("A-critical", [*good, steered(90.0, 3e9, swapped)]) == CONFIRMED
    assert verdict("A-critical", [*good, steered(93.2, 3e9, swapped)]) == CONTRADICTED
    assert verdict("A-critical", good) == OPEN
    again = dataclasses.replace(steered(91.0, 3e9, f"accordion({LEVELS}, every=2)"), time="2026-01-03T00:00:00+00:00")
    assert verdict("A-vgg19bn-cifar10-accuracy", [again, *good]) == CONTRADICTED  # the latest counts


def test_the_longest_schedule_counts():
    """Low, high and Accordion of 60 epochs, beside shorter ones that say the opposite."""
    swapped = "accordion(low='powersgd(rank=1)', high='powersgd(rank=4)')"
    short = [
        steered(93.0, 6e9, "powersgd(rank=4)"),
        steered(92.9, 2e9, "powersgd(rank=1)"),
        steered(85.0, 3e9),
        steered(84.0, 3e9, swapped),
    ]
    long = [
        steered(93.0, 12e9, "powersgd(rank=4)", epochs=60),
        steered(70.0, 4e9, "powersgd(rank=1)", epochs=60),
        steered(92.9, 6e9, epochs=60),
    ]
    for order in ([*short, *long], [*long, *short]):
        assert {verdict(f"A-vgg19bn-cifar10-{what}", order) for what in ("accuracy", "high")} == {CONFIRMED}
        assert "(60 epochs of 300" in judged("A-vgg19bn-cifar10-accuracy", order).measured
        critical = judged("A-critical", order)  # no longer one has its levels swapped
        assert (critical.verdict, "85.00 % and 3000.0 M floats as it should be" in critical.measured) == (
            CONFIRMED,
            True,
        )
        assert critical.measured.endswith("(3 epochs of 300)")


def test_a_claim_on_adaqs_has_to_hold_for_both_networks():
    switch = {"epoch": 1, "parameter": "*", "from": "powersgd(rank=1)", "to": "powersgd(rank=2)", "why": "MSDR fell"}
    adaqs = {"controller": "adaqs(factor=0.5)", "switches": [switch]}
    vgg = [steered(93.0, 6e9, "powersgd(rank=4)"), steered(92.6, 3e9), steered(92.0, 4e9, **adaqs)]
    place = {"task": "resnet18-cifar10", "model": "resnet18-cifar10", "memory": EF}
    levels = "low='powersgd(rank=2)', high='powersgd(rank=1)'"

    def resnet(quality):
        return [
            ending("powersgd(rank=2)", 94.0, floats_sent=[1e9, 2e9, 3e9], **place),
            ending("powersgd", 93.9, controller=f"accordion({levels})", floats_sent=[1e9, 2e9, 2.5e9], **place),
            ending("powersgd", quality, floats_sent=[1e9, 2e9, 2.6e9], **adaqs, **place),
        ]

    assert verdict("A-adaqs", [*vgg, *resnet(93.0)]) == CONFIRMED
    found = judged("A-adaqs", [*vgg, *resnet(94.5)])
    assert found.verdict == CONTRADICTED
    assert [part.partition(":")[0] for part in found.measured.split("); ")] == ["resnet18-cifar10", "vgg19bn-cifar10"]


def test_accordion_for_the_batch():
    vgg = {"task": "vgg19bn-cifar10", "model": "vgg19bn-cifar10"}
    plain = ending("none", 93.9, **vgg)

    def grown(quality, factor, **changes):
        name = f"accordion_batch(factor={factor})"
        return ending("none", quality, controller=name, batch_sizes=[512, 512 * factor, 512], **vgg, **changes)

    both = [plain, grown(93.5, 8), grown(92.0, 32)]
    told = judged("A-batch", both).measured
    assert told == "vgg19bn-cifar10: 93.50 % at best, 93.50 at the end, against 93.90 %: -0.40 points (3 epochs of 300)"
    assert "92.00 %" in judged("A-16384", both).measured
    assert {verdict("A-batch", both), verdict("A-16384", both)} == {CONFIRMED}
    other = [plain, grown(92.0, 8), grown(93.5, 32)]
    assert {verdict("A-batch", other), verdict("A-16384", other)} == {CONTRADICTED}
    assert {verdict("A-batch", [grown(93.5, 8)]), verdict("A-16384", both[:2]), verdict("A-16384", both[1:])} == {OPEN}
    apart = [plain, grown(80.0, 8), grown(80.0, 32)]
    assert {verdict("A-batch", apart), verdict("A-16384", apart)} == {OPEN}  # such runs say nothing of the study's
    longer = [ending("none", 94.0, epochs=60, **vgg), grown(92.0, 8, epochs=60)]
    for order in ([*both, *longer], [*longer, *both]):
        assert verdict("A-batch", order) == CONTRADICTED  # the longest counts
    assert verdict("A-batch", [*both, longer[1]]) == CONFIRMED  # of those with a small batch beside them


def test_large_batches():
    vgg = {"task": "vgg19bn-cifar10", "model": "vgg19bn-cifar10"}
    plain, large = ending("none", 93.9, **vgg), ending("none", 92.0, batch=1024, **vgg)
    told = "vgg19bn-cifar10, 1024 against 64 a worker: -1.90 points"
    assert judged("A-large-batch", [plain, large]).measured == f"{told} (3 epochs of 300)"
    assert verdict("A-large-batch", [plain, large]) == CONFIRMED
    assert verdict("A-large-batch", [plain]) == OPEN
    assert verdict("A-large-batch", [plain, ending("none", 80.0, batch=1024, **vgg)]) == OPEN  # it fell apart
    worse = ending("none", 50.0, batch=1024, learning_rate=9.0, **vgg)
    grown = ending(None, 91.0, batch=1024, controller="accordion_batch(factor=8)", **vgg)  # is none of the rates
    both = judged("A-large-batch", [plain, worse, large, grown]).measured
    assert both == f"{told}, the best of 2 learning rates (3 epochs of 300)"
    alone = ending("none", 80.0, epochs=60, batch=1024, **vgg)  # has no small batch of its length
    assert judged("A-large-batch", [alone, plain, large]).measured == f"{told} (3 epochs of 300)"
    longer = [alone, ending("none", 80.1, epochs=60, **vgg)]
    assert judged("A-large-batch", [plain, large, *longer]).measured.endswith("-0.10 points (60 epochs of 300)")


# -------------------------------------------------------------------- Utility, and the page


@pytest.fixture(scope="module")
def page():
    sys.path.insert(0, str(ROOT / "docs"))
    try:
        spec = importlib.util.spec_from_file_location("findings", ROOT / "docs" / "findings.py")
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module
    finally:
        sys.path.remove(str(ROOT / "docs"))


def test_claims_of_the_study_are_listed_with_its_verdicts():
    lines = of_utility.lines(study())
    assert len({id for id, *_ in lines}) == len(lines) > 40
    assert {v for *_, v, _ in lines} == {CONFIRMED, CONTRADICTED, OPEN}


def test_the_page_without_records_says_what_is_open(page):
    text = page.write(Evidence(), study())
    assert "- `G-baseline`, **open: no record yet: trainings of resnet9-cifar10.**" in text
    assert "Open: no record yet of resnet9-cifar10." in text
    assert all(f"`{id}`" in text for id in ALL)
    assert "`U-A1`" in text
    assert "| VGG-19bn, table 3.1 | Accordion | 92.9 | 2,945.1 | 2.29 | open | - | - |" in text
    assert "No training is recorded yet" in page._sources(ROOT, [], None)


def test_the_page_sets_ours_beside_theirs(page):
    records = [*both(), ending("topk", 89.0, memory=EF), *settings((TOPKC[2], 92.0), memory=EF)]
    rates = {"throughput": lambda m, s: (4.0, s.label == "FP16")}
    text = page.write(Evidence([("some.jsonl", r) for r in records], **rates), study())
    assert "| topk | error_feedback | 89.00 | 1 | -1.00 | no | -2.67 | 16 | 0.25 |" in text
    assert "| fp16 | none | 90.00 | 1 | +0.00 | yes | -1.67 | 16 | 0.25 |" in text
    assert "3 of 4 are within 0.5 points of our own baseline" in text
    row = next(line for line in text.splitlines() if line.startswith("| TopKC, b = 8 | tables 2, 3 and 5 | 8 | 15.2 |"))
    assert row.endswith("| 4.00 * | 92.00 % | +2.00 points | 28 | 1.84 |")
    assert "| FP16 | table 1 | 16 | 8.73 | 4.00 | 90.00 % | +0.00 points | 30 | 1.00 |" in text
    assert "- `G-baseline`, **contradicted.** " in text
    assert "Records: [some.jsonl](../results/some.jsonl)." in text
    assert "### resnet9-cifar10, modelled: h200, 16 GPUs, 10 Gbit/s" in text
    told = page._sources(ROOT, [("a.jsonl", r) for r in records[:2]], lambda path, r: f"{path.name}: {r.command}\n")
    assert told.count("- a.jsonl: gradwire bench accuracy --task resnet9-cifar10") == 1


def test_figures_have_their_labels_and_pace_and_tell_when_they_are_old(page, tmp_path):
    figures = page.figures
    assert figures.figures(Evidence()) == {}
    records = [*both(), *settings((TOPKC[2], 92.0), memory=EF)]
    drawn = figures.figures(Evidence([("some.jsonl", r) for r in records]))
    assert list(drawn) == ["topkc"]
    (chart,) = drawn["topkc"]
    assert chart.title == "Figure 1: resnet9-cifar10 for VGG19"
    curve = next(s for s in chart.series if s.label == "TopKC, b = 8")
    assert curve.xs[-1] == pytest.approx(30 / 15.2)  # 30 rounds of ours at their rounds a second
    path = tmp_path / "new" / "topkc.svg"
    assert figures.outdated(path, drawn["topkc"])
    figures.write(path, drawn["topkc"])
    assert not figures.outdated(path, drawn["topkc"])
    series = [dataclasses.replace(s, ys=[y and y + 1 for y in s.ys]) for s in chart.series]
    assert figures.outdated(path, [dataclasses.replace(chart, series=series)])


def test_the_model_of_their_testbed(page):
    sure = page.modelled(VGG19, mixed.FP16)
    guess = page.modelled(VGG19, dataclasses.replace(TOPK[0], codec="topk(ratio=0.3)"))
    assert sure[1] is True
    assert guess[1] is False  # of another ratio
    assert 5 < sure[0] < throughput.compute_seconds(VGG19) ** -1
    assert all(page.modelled(VGG19, s)[1] for s in throughput.SETTINGS)  # each was timed on the GPU of the profile
