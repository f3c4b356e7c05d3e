"""The two who are asked: the formula with a set of inputs, and our model."""

from __future__ import annotations

import pytest
from stand_in import stand_in, study

from gradwire.core.errors import Incompatible, UnknownName
from gradwire.laboratory.reproduce.formula import Formula
from gradwire.laboratory.reproduce.inputs import MEASURED, m_set, s_set
from gradwire.laboratory.reproduce.ours import Ours
from gradwire.laboratory.reproduce.setup import SYNC, Setup, saving, speedup, usual, wins
from gradwire.planner.profile import Profile

R4 = "powersgd(rank=4)"
RN50 = usual("resnet50", 64)


def test_a_setup_of_the_s_set_gives_section_8s_values():
    formula = Formula(s_set())
    assert 1e3 * formula.seconds(RN50, SYNC) == pytest.approx(165.19)
    assert 1e3 * formula.without_overlap(RN50) == pytest.approx(274.775)
    assert 1e3 * formula.seconds(RN50, R4) == pytest.approx(169.0788, abs=1e-4)
    assert formula.crossover(RN50, R4) == pytest.approx(9.0237e9, rel=1e-5)


def test_fp16_halves_every_bucket():
    slow = RN50.at(bits_per_second=1e8)  # the network alone counts
    formula = Formula(s_set())
    assert formula.seconds(slow, "fp16") == pytest.approx(formula.seconds(slow, SYNC) / 2)
    assert formula.seconds(slow.at(ratio=2), SYNC) == formula.seconds(slow, "fp16")


def test_gamma_while_sending_costs_nothing_on_an_endless_network():
    endless = RN50.at(bits_per_second=1e18)
    assert Formula(s_set()).seconds(endless, SYNC) == pytest.approx(1.07 * 0.122)
    assert Formula(s_set(), True).seconds(endless, SYNC) == pytest.approx(0.122)


def test_gamma_while_sending_is_as_printed_where_the_network_is_busy_all_along():
    slow = RN50.at(bits_per_second=1e9)
    assert Formula(s_set(), True).seconds(slow, SYNC) == Formula(s_set()).seconds(slow, SYNC)


def test_faster_compute_and_encoding_and_smaller_payloads():
    formula = Formula(s_set())
    plain = formula.seconds(RN50, R4)
    assert plain - formula.seconds(RN50.at(compute_speed=2), R4) == pytest.approx(0.061)
    assert plain - formula.seconds(RN50.at(encode_speed=3), R4) == pytest.approx(0.030)
    exchange = plain - 0.167
    assert formula.seconds(RN50.at(ratio=1 / 4), R4) == pytest.approx(0.167 + 4 * exchange)


def test_decoding_of_signs_is_once_a_peer():
    few, many = (m_set().encode_decode(usual("resnet101", p), "signsgd") for p in (8, 96))
    assert many / few == pytest.approx(97 / 9)


def test_all_gathered_codecs_are_known():
    formula = Formula(s_set())
    qsgd = formula.seconds(RN50, "qsgd(levels=1)")
    assert qsgd == pytest.approx(0.122 + 0.039 + 63 * 97e6 * 8 / 16 / 10e9)
    assert formula.seconds(RN50, "topk(ratio=0.01)") == pytest.approx(0.122 + 0.273 + 63 * 0.02 * 97e6 * 8 / 10e9)


def test_an_unknown_codec_names_near_ones():
    with pytest.raises(UnknownName, match=r"the published study has no formula for 'signsg'; did you mean signsgd\?"):
        Formula(s_set()).seconds(RN50, "signsg")


def test_savings_speedups_and_wins():
    formula = Formula(m_set())
    slow, fast = (usual("resnet101", 96).at(batch=b) for b in (16, 64))
    assert saving(formula, slow, R4) == pytest.approx(100 * (1 - 1 / speedup(formula, slow, R4)))
    assert wins(formula, [slow, fast], R4) == [slow]


class Asked:
    """Remembers what our model is asked."""

    def __init__(self):
        self.questions = []

    def __call__(self, **question):
        self.questions.append(question)
        return stand_in(**question)


def test_our_model_is_asked_as_the_study_ran():
    asked = Asked()
    ours = Ours(Profile.load(MEASURED), asked)
    for codec in (SYNC, R4, "signsgd"):
        ours.seconds(usual("resnet101", 96), codec)
        ours.seconds(usual("resnet101", 96), codec)  # kept, not asked again
    assert [q["strategy"] for q in asked.questions] == ["auto", "auto", "all_gather"]
    assert [q["mode"] for q in asked.questions] == ["overlap", "after_backward", "after_backward"]
    assert {(q["gpus"], q["gpus_per_node"], q["bandwidth"], q["batch"]) for q in asked.questions} == {(96, 4, 10e9, 64)}
    assert all(q["hardware"].name == MEASURED for q in asked.questions)


def test_berts_network_is_faster_in_the_m_set():
    asked = Asked()
    ours = Ours(Profile.load(MEASURED), asked)
    ours.seconds(usual("bert-base", 96), SYNC)
    ours.seconds(usual("bert-base", 96).at(face_value=True), SYNC)
    assert [q["bandwidth"] for q in asked.questions] == pytest.approx([10e9 * 12.223 / 10.274, 10e9])


def test_our_model_answers_the_same_questions():
    formula, ours = study().simulated_pair
    assert ours.crossover(RN50, R4) == pytest.approx(formula.crossover(RN50, R4), rel=1e-3)
    small = Setup(model="resnet101", batch=16, gpus=64)
    assert ours.required(small, 0.1) == pytest.approx(formula.required(small, 0.1), rel=1e-3)
    assert ours.backward(small) == formula.backward(small)
    assert ours.without_overlap(small) == pytest.approx(0.076 + 0.1)
    with pytest.raises(Incompatible, match="our model plays single buckets"):
        ours.required(small, None)


def test_no_ratio_is_enough_where_the_backward_pass_is_slowed_too_much():
    ours = study().ours_s
    assert ours.required(RN50.at(bits_per_second=1e15), 0.1) == 1.0
    assert ours.required(RN50, -0.5) == float("inf")
