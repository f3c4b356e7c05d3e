"""Every rule can say yes and no: planted evidence for and against each claim of each paper."""

from __future__ import annotations

import dataclasses
import doctest
import re
import sys
from contextlib import suppress
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2]))
from planted import (
    BOTH,
    BY_SHAPES,
    EIGENVALUE,
    NEITHER,
    NORM,
    PLANTED,
    VGG,
    curved,
    ending,
    evidence,
    grown,
    images,
    kept,
    line,
    own,
    plain,
    seeds,
    shared,
    steered,
    stepping,
    times,
    with_and_without,
)
from stand_in import study

from gradwire.core.codec import codecs
from gradwire.core.errors import Incompatible
from gradwire.laboratory.reproduce import accordion, claim, grace, throughput
from gradwire.laboratory.reproduce import evidence as of_evidence
from gradwire.laboratory.reproduce.catalogue import CLAIMS, EXHIBITS, PAPERS
from gradwire.laboratory.reproduce.claim import Basis, Claim, Judged, Verdict, judge, tally
from gradwire.laboratory.reproduce.claims import accordion as of_accordion
from gradwire.laboratory.reproduce.claims import throughput_model
from gradwire.laboratory.reproduce.claims.grace_feedback import SPARSE, effects
from gradwire.laboratory.reproduce.claims.numbers import Asked, Numbers
from gradwire.laboratory.reproduce.claims.throughput import CLAIMS as OF_THROUGHPUT
from gradwire.memory.error_feedback import ErrorFeedback
from gradwire.planner.spec import keeps

REPRODUCED, CONTRADICTED, NOT_REPRODUCED, OPEN = Verdict
RULED = {id for id, c in CLAIMS.items() if c.rule != "-"}
UTILITY = {id for id in RULED if isinstance(CLAIMS[id].check, Numbers)}


def judged(id, records=(), **more):
    return CLAIMS[id].check(evidence(records, **more))


def verdict(id, records=(), **more):
    return judged(id, records, **more).verdict


@pytest.mark.parametrize("id", PLANTED)
def test_a_rule_says_yes(id):
    found = CLAIMS[id].check(PLANTED[id][0])
    assert found.verdict == REPRODUCED, found


@pytest.mark.parametrize("id", PLANTED)
def test_a_rule_says_no(id):
    found = CLAIMS[id].check(PLANTED[id][1])
    assert found.verdict in (CONTRADICTED, NOT_REPRODUCED), found


def test_every_rule_has_its_evidence():
    assert set(PLANTED) | BY_SHAPES | UTILITY == RULED


@pytest.mark.parametrize("id", sorted(RULED - UTILITY - BY_SHAPES))
def test_without_records_a_rule_is_open(id):
    found = judged(id)
    assert (found.verdict, found.why.startswith("no record yet: ")) == (OPEN, True)


@pytest.mark.parametrize("id", sorted(set(CLAIMS) - RULED))
def test_what_nothing_can_tell_is_open_and_says_what_is_missing(id):
    found = CLAIMS[id].check(PLANTED["G-no-winner"][0])
    assert found.verdict == OPEN
    assert re.match(r"no record yet: \w.*\.$", found.why)


def test_shapes_speak_against_what_they_tell(monkeypatch):
    assert {verdict(id) for id in BY_SHAPES} == {REPRODUCED}
    assert judged("A-schedule").found == "58.99 epochs at low compression"
    monkeypatch.setattr(of_accordion, "floats", lambda model, codec: 1.0 if "rank=1" in codec else 3.0)
    monkeypatch.setattr(throughput_model, "bits", lambda model, codec: 1.0)
    assert {verdict(id) for id in BY_SHAPES} == {CONTRADICTED}


# -------------------------------------------------------------------- the study's rule


VALUES = [-1000.0, -6.3, -0.1, 0, 0.01, 0.5, 0.96, 1, 1.1, 1.75, 2, 4, 6, 8.2, 9, 15, 19, 25.7, 37, 46, 63, 72, 97, 122]
VALUES += [170.0, 262, 200, 418, 470, 1042, 1e5, *range(10, 50)]


@pytest.mark.parametrize("id", sorted(UTILITY))
def test_the_studys_rule_says_yes_and_no(id):
    """Whoever decides about a claim: some answer of it reproduces the claim, and some does not."""
    rule, found = CLAIMS[id].check, {}
    answers = rule.ask(study())
    if not answers.formula_m and answers.ours is None:
        assert CLAIMS[id].check(evidence()).verdict == OPEN
        return
    for value in VALUES:
        both = (value,) * len(answers.formula_m)
        asked = Asked(formula_m=both, formula_s=both, near=both[:1], ours=value)
        found[rule.decide(asked).verdict] = value
    against = {CONTRADICTED} if rule.kind in ("simulated", "table", "prose") else {NOT_REPRODUCED}
    assert set(found) == {REPRODUCED} | against


def test_the_study_is_open_where_inputs_readings_or_the_model_decide():
    simulated = CLAIMS["U-D1"].check
    assert simulated.decide(Asked(formula_m=(8.2,), formula_s=(19.0,))).verdict == OPEN
    assert simulated.decide(Asked(formula_m=(9.6,), formula_s=(8.2,))).verdict == OPEN
    assert simulated.decide(Asked(formula_m=(8.3,), formula_s=(8.2,))).verdict == REPRODUCED
    assert simulated.decide(Asked(formula_m=(9.6,), formula_s=(19.0,))).verdict == CONTRADICTED
    readings = CLAIMS["U-H-RN50"].check
    assert readings.decide(Asked(formula_m=(3.0, 9.0), formula_s=(3.0, 9.0))).verdict == OPEN
    assert readings.decide(Asked(formula_m=(3.0, 9.0), formula_s=(3.0, 3.0))).verdict == OPEN
    measured = CLAIMS["U-E1"].check
    assert measured.decide(Asked(formula_m=(39.0,), ours=46.0)).verdict == OPEN
    assert measured.decide(Asked(formula_m=(39.0,), ours=39.0)).verdict == NOT_REPRODUCED
    assert CLAIMS["U-J4"].check.decide(Asked(formula_m=(0,), near=(0, 1))).verdict == OPEN


def test_faster_compute_is_read_in_both_ways():
    """At 3.5 times the compute, 1.75 comes out if encoding is as slow as before, and not if it is faster, too."""
    rule = CLAIMS["U-G1"].check
    found = rule.ask(study())
    assert [rule.holds(value) for value in found.formula_m] == [False, True]
    assert rule(evidence()).verdict == OPEN
    assert rule.decide(dataclasses.replace(found, formula_m=(3.0, 3.0), formula_s=(3.0, 3.0))).verdict == CONTRADICTED


# -------------------------------------------------------------------- counting, and what is covered


def test_fitted_and_derived_claims_are_counted_apart():
    found = {
        basis: Claim(id="X", says="", where="", rule="", check=lambda e: judge(True, "", ""), basis=basis)
        for basis in Basis
    }
    counted = tally((c, Judged(REPRODUCED, "", "")) for c in found.values())
    assert {basis: n[REPRODUCED] for basis, n in counted.items()} == dict.fromkeys(Basis, 1)
    apart = {c.id for c in CLAIMS.values() if c.basis != Basis.TESTED}
    assert {"U-A1", "U-C4", "U-K3-4", "U-L1", "A-schedule"} <= apart


def named(text):
    """The tables and figures that a place in a paper names."""
    found = set()
    for kind, listed in re.findall(r"(table|figure)s? ((?:[\dIVX.]+[a-d]?(?:, | and | to )?)+)", text):
        numbers = [n.rstrip("abcd.") for n in re.findall(r"[\dIVX.]+[a-d]?", listed)]
        if " to " in listed:
            numbers = [str(n) for n in range(int(numbers[0]), int(numbers[-1]) + 1)]
        found |= {f"{kind} {n}" for n in numbers}
    return found


@pytest.mark.parametrize("paper", PAPERS.values(), ids=list(PAPERS))
def test_every_table_and_figure_has_an_entry(paper):
    covered = {what for c in paper.claims for what in named(c.where)}
    if paper.id == "utility":
        covered |= {re.sub(r"^fig(?=\d)", "figure ", re.sub(r"^table(?=\d)", "table ", id)) for id in EXHIBITS}
    assert set(paper.shows) <= covered
    assert len({c.id for c in paper.claims}) == len(paper.claims)
    assert all(c.says and c.where and c.rule for c in paper.claims)


def test_doctests():
    assert doctest.testmod(claim).failed == doctest.testmod(of_evidence).failed == 0


# -------------------------------------------------------------------- noise, and what is no evidence


def test_what_is_nearer_than_seeds_is_open():
    near = [own("fp16", 90.0), own("topk", 89.4), own("qsgd", 89.4), own("natural", 89.4)]
    assert verdict("G-comparable", near) == OPEN
    many = [*seeds(own, "fp16", 90.0), *(r for c in ("topk", "qsgd") for r in seeds(own, c, 89.8))]
    assert verdict("G-comparable", many) == REPRODUCED  # three seeds tell more
    assert verdict("T-fp16-quality", [ending("fp16", 89.6), ending("none", 90.0)]) == OPEN
    assert verdict("A-vgg19bn-cifar10-accuracy", line(VGG, between=92.6)) == OPEN
    assert verdict("G-ef-sparse", with_and_without(["topk"], 0.1)) == OPEN
    assert verdict("G-above", [*seeds(own, "fp16", 90.0), own("topk", 92.0)]) == OPEN  # one seed is chance


def test_what_gradients_share_is_open_where_pairs_differ():
    assert verdict("A-overlap", [shared(0.95, 0.93, 0.99)]) == REPRODUCED
    assert verdict("A-overlap", [shared(0.95, 0.4, 0.99)]) == OPEN
    assert verdict("A-overlap", [shared(0.95), shared(0.4)]) == OPEN
    assert verdict("A-overlap", [shared(0.4, share=0.01)]) == OPEN  # not the largest tenth
    assert verdict("A-overlap", [shared(0.4, data="synthetic: coloured patterns")]) == OPEN
    found = judged("A-overlap", [shared(0.4, 0.3, 0.5)])
    assert (found.verdict, found.files) == (NOT_REPRODUCED, ("some.jsonl",))
    assert "epoch 1 of 300; the study does not say which" in found.why


def test_critical_regimes_are_compared_over_the_longest_training():
    assert verdict("A-hessian", curved(*3 * [BOTH], NEITHER)) == REPRODUCED
    assert verdict("A-hessian", curved(BOTH, NORM)) == OPEN  # half of two, give or take one
    assert verdict("A-hessian", curved(*4 * [NEITHER])) == OPEN  # nothing is critical
    assert verdict("A-hessian", curved(*3 * [BOTH], data="synthetic: coloured patterns")) == OPEN
    assert verdict("A-hessian", curved(*5 * [EIGENVALUE], BOTH, *20 * [NEITHER])) == NOT_REPRODUCED
    short = curved(*4 * [EIGENVALUE], BOTH, epochs=30)
    found = judged("A-hessian", short)
    assert (found.verdict, found.files) == (NOT_REPRODUCED, ("some.jsonl",))
    assert "30 epochs of 300, both by Accordion's rule" in found.why
    assert "5 windows of 10 epochs 1 are critical by the norm, 5 by the eigenvalue, 1 by both" in found.found
    assert verdict("A-hessian", [*short, *curved(*3 * [BOTH])]) == REPRODUCED


def test_what_is_nearer_than_the_models_error_is_open():
    assert verdict("G-rarely-pays", **stepping(times(0.97))) == OPEN
    wrong = {"throughput": lambda m, s: (2 * s.rounds_per_second[m] ** 0.9, True)}
    assert evidence(**wrong).model_error > 0.3
    assert verdict("T-fp16-throughput", **wrong) == OPEN
    assert verdict("G-slow-links", **stepping(times(2.0, at_1=0.8)), **wrong) == OPEN
    assert verdict("T-partial-throughput", throughput=lambda m, s: (1.0, False)) == OPEN  # of inferred costs


def test_a_codec_that_we_scaled_is_no_evidence():
    for name in grace.SCALED:
        with pytest.warns(UserWarning, match="scaled by"):
            ErrorFeedback().fit(codecs.build(name))
    for name in {*grace.METHODS, *SPARSE} - set(grace.SCALED):
        with suppress(Incompatible):  # such as votes, which have no error to feed back
            assert ErrorFeedback().fit(codecs.build(name)) == codecs.build(name)
    trained = evidence(with_and_without(["qsgd", "topk"], 5.0)).task("resnet9-cifar10")
    assert set(effects(trained, ("qsgd", "topk"))) == {"topk"}


def test_a_paper_is_contradicted_in_its_own_set_up_alone():
    recipe = [own("none", 91.67), own("fp16", 91.67), *(own(c, 80.0) for c in ("topk", "qsgd", "natural"))]
    assert verdict("G-comparable", recipe) == CONTRADICTED
    found = judged("G-comparable", [own("none", 95.0), *recipe[1:]])
    assert found.verdict == NOT_REPRODUCED
    assert "ends at 95.00 without compression by our recipe, not 91.67" in found.why
    long = [dataclasses.replace(r, what={**r.what, "epochs": 300}) for r in line(VGG, between=90.0)]
    assert verdict("A-vgg19bn-cifar10-accuracy", long) == CONTRADICTED
    assert judged("A-vgg19bn-cifar10-accuracy", line(VGG, between=90.0)).why.startswith(
        "our set-up differs: 3 epochs of 300."
    )


def test_methods_count_with_graces_optimiser():
    with_momentum = [own("fp16", 90.0), own("powersgd", 80.0, momentum=0.9)]
    assert verdict("G-comparable", with_momentum) == OPEN
    assert verdict("G-comparable", [*with_momentum, own("powersgd", 90.2)]) == REPRODUCED


# -------------------------------------------------------------------- which trainings count


def test_set_ups_are_not_mixed_and_the_one_with_the_settings_is_taken():
    many = [*images(), *(kept(c, 80.0) for c in ("qsgd", "natural", "signsgd", "dgc"))]
    few = [ending(c, q, workers=4) for c, q in (("fp16", 88.0), ("none", 89.9))]
    few += [kept(s.codec, 88.0, workers=4) for s in throughput.TOPKC]
    found = of_evidence.Evidence([("many", r) for r in many] + [("few", r) for r in few], study())
    assert found.task("resnet9-cifar10").files == found.tasks["resnet9-cifar10"].files == ("many",)
    quality = CLAIMS["T-fp16-quality"].check(found)
    assert (quality.verdict, quality.files) == (NOT_REPRODUCED, ("few",))  # 1.9 points, of four workers


def test_of_several_learning_rates_the_best_counts():
    found = evidence([ending("fp16", q, learning_rate=r) for q, r in ((89.0, 0.1), (90.0, 0.2), (85.0, 0.4))])
    assert found.task("resnet9-cifar10").fp16.best == 90.0


def test_the_longest_schedule_and_the_latest_run_count():
    long = [dataclasses.replace(r, what={**r.what, "epochs": 60}) for r in line(VGG)]
    for order in ([*line(VGG, between=85.0), *long], [*long, *line(VGG, between=85.0)]):
        assert verdict("A-vgg19bn-cifar10-accuracy", order) == REPRODUCED
        assert "60 epochs of 300" in judged("A-vgg19bn-cifar10-accuracy", order).found
    again = dataclasses.replace(steered(VGG, 90.0), time="2026-02-01T00:00:00+00:00")
    again.what["controller"] = again.what["controller"].removesuffix(")") + ", every=2)"
    assert verdict("A-vgg19bn-cifar10-accuracy", [again, *line(VGG)]) == NOT_REPRODUCED


def test_where_accordion_itself_fails_nothing_follows():
    broken = line(VGG, between=85.0)
    assert verdict("A-critical", [*broken, steered(VGG, 84.0, swapped=True)]) == OPEN
    task = "resnet18-cifar10"
    switch = {"name": "adaqs", "switches": [{"epoch": 1}]}
    assert verdict("A-adaqs", [*line(task, between=85.0), steered(task, 84.0, 4e9, **switch)]) == OPEN
    assert verdict("A-adaqs", [*line(task), steered(task, 84.0, 4e9, "adaqs")]) == OPEN  # it never did anything


def test_what_takes_for_granted_that_accordion_keeps_up_is_open_where_that_is():
    task = "resnet18-cifar10"
    near = line(task, between=92.2)
    other = steered(task, 90.0, 4e9, "adaqs", switches=[{"epoch": 1}])
    assert verdict("A-resnet18-cifar10-accuracy", near) == verdict("A-adaqs", [*near, other]) == OPEN
    assert verdict("A-critical", [*near, steered(task, 88.0, swapped=True)]) == OPEN


def test_batches_that_fell_apart_say_nothing():
    assert {verdict("A-batch", [plain(93.9), grown(80.0, 8)]), verdict("A-16384", [plain(93.9), grown(80.0, 32)])} == {
        OPEN
    }
    assert verdict("A-large-batch", [plain(93.9), plain(80.0, batch=1024)]) == OPEN
    rates = [plain(93.9), plain(92.6, batch=1024), plain(50.0, batch=1024, learning_rate=9.0)]
    told = judged("A-large-batch", rates).found
    assert told.endswith("1024 against 64 a worker: -1.30 points, the best of 2 learning rates (3 epochs of 300)")


# -------------------------------------------------------------------- what is published


def test_the_specs_are_those_that_the_tables_mean():
    assert len(throughput.SPECS) == len(set(throughput.SPECS)) == 22
    for spec in throughput.SPECS:
        codecs.build(spec)
    for setting in throughput.TOPK:
        assert 48 * codecs.build(setting.codec).ratio == pytest.approx(setting.bits[throughput.BERT], rel=1e-5)
    for setting in throughput.TOPKC:
        codec, numel = codecs.build(setting.codec), 1 << 24
        bits = 16 * (codec.kept_chunks(numel) * codec.chunk / numel + 1 / codec.chunk)
        assert bits == pytest.approx(setting.bits[throughput.BERT], rel=1e-3)


def test_tables_hold_together():
    """The paper's own ratios: 29.6 % by saturation, 5.5 % by partial rotation, TopKC twice Top-k, a half by r = 64."""
    full, partial, exact = throughput_model.FULL, throughput_model.PARTIAL, throughput.THC[-1]
    topk, topkc, powersgd = throughput.TOPK, throughput.TOPKC, throughput.POWERSGD
    rounds = {s: s.rounds_per_second[throughput.VGG19] for s in (full, partial, exact, topk[2], topkc[2], *powersgd)}
    assert rounds[full] / rounds[exact] == pytest.approx(1.296, abs=5e-4)
    assert rounds[partial] / rounds[full] == pytest.approx(1.055, abs=1e-3)
    assert rounds[topkc[2]] / rounds[topk[2]] == 2.0
    assert rounds[powersgd[3]] / rounds[powersgd[0]] == pytest.approx(0.52, abs=5e-3)
    assert throughput.compute_seconds(throughput.VGG19) == pytest.approx(1 / 24.9)
    assert [line.saved for line in accordion.LINES[:2]] == pytest.approx([1.54, 2.29], abs=5e-3)
    assert len(grace.METHODS) == len(set(grace.METHODS)) == 16
    assert len(OF_THROUGHPUT) == len({c.id for c in OF_THROUGHPUT})


def test_defaults_of_memory_are_the_codecs_own():
    for spec in ("topk", "powersgd(rank=64)", "qsgd", "signsgd", "fp16", "thc"):
        assert keeps(spec) is (codecs.build(spec).traits.memory != "none"), spec
