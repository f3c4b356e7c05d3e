"""What the formula is fed with: sizes follow from shapes, fitted entries from the claims they were fitted to."""

from __future__ import annotations

import math

import pytest

from gradwire import models
from gradwire.core.errors import UnknownName
from gradwire.laboratory.reproduce.fit import solve
from gradwire.laboratory.reproduce.inputs import MEASURED, SIMULATED, SIZES, m_set, nominal, s_set
from gradwire.laboratory.reproduce.setup import usual
from gradwire.planner.profile import Profile


@pytest.mark.parametrize("name", SIZES)
def test_sizes_follow_from_shapes(name):
    shapes = [tuple(p.shape) for p in models.build(name).parameters()]
    matrices = [(s[0], math.prod(s[1:])) for s in shapes if len(s) > 1]
    size = SIZES[name]
    assert size.elements == sum(map(math.prod, shapes))
    assert size.matrices == len(matrices)
    assert size.vector_elements == sum(s[0] for s in shapes if len(s) == 1)
    for rank in (4, 8, 16):
        p, q = (4 * sum(side * min(n, m, rank) for side, n, m in sides) for sides in _sides(matrices))
        assert size.low_rank(rank) == (p, q)


def _sides(matrices):
    return [(n, n, m) for n, m in matrices], [(m, n, m) for n, m in matrices]


def test_the_m_set_is_the_fit():
    fitted, profile = solve(), Profile.load(MEASURED)
    rates = profile.about["formula_bits_per_second"]
    assert rates["resnet50"] == rates["resnet101"] == pytest.approx(fitted.cnn_rate, rel=1e-4)
    assert rates["bert-base"] == pytest.approx(fitted.bert_rate, rel=1e-4)
    backward = {(m, b): profile.times(m, b).backward_seconds for m, b in (("resnet101", 16), ("resnet101", 64))}
    assert backward["resnet101", 16] == pytest.approx(fitted.resnet101_batch16, rel=1e-3)
    assert backward["resnet101", 64] == pytest.approx(fitted.resnet101_batch64, rel=1e-3)
    assert profile.times("bert-base", 12).backward_seconds == pytest.approx(fitted.bert_backward, rel=1e-3)
    costs = {c: profile.codecs[c].models for c in ("powersgd(rank=4)", "mstopk(ratio=0.001)", "signsgd")}
    assert costs["powersgd(rank=4)"]["bert-base"].encode_seconds == pytest.approx(fitted.bert_powersgd, rel=1e-3)
    assert costs["mstopk(ratio=0.001)"]["bert-base"].encode_seconds == pytest.approx(fitted.bert_top_k, rel=1e-3)
    assert costs["signsgd"]["resnet101"].decode_seconds == pytest.approx(fitted.sign_per_peer, rel=1e-3)


def test_the_efficiency_makes_a1_hold_for_real_bytes():
    real = SIZES["resnet101"].bytes / SIZES["resnet101"].formula_bytes
    assert Profile.load(MEASURED).network.efficiency == pytest.approx(real * solve().cnn_rate / 10e9, rel=1e-3)


@pytest.mark.parametrize("name", [MEASURED, SIMULATED])
def test_published_entries_are_the_tables(name):
    profile = Profile.load(name)
    milliseconds = {
        codec: 1e3 * cost.models["resnet50"].encode_seconds
        for codec, cost in profile.codecs.items()
        if cost.models and cost.models["resnet50"].source.startswith("published")
    }
    assert milliseconds == pytest.approx(
        {
            "powersgd(rank=4)": 45,
            "powersgd(rank=8)": 64,
            "powersgd(rank=16)": 130,
            "mstopk(ratio=0.01)": 103,
            "mstopk(ratio=0.001)": 104,
            "qsgd(levels=1)": 39,
            "topk(ratio=0.01)": 273,
            "dgc(ratio=0.01)": 221,
            "randomk(ratio=0.01)": 163,
            "terngrad": 94,
            "atomo(budget=4)": 1586,
        }
    )
    times = profile.times("resnet50", 64)
    assert (times.backward_seconds, times.source.partition(":")[0]) == (0.122, "published")
    assert profile.device.memory_bytes == 16e9


def test_rates_are_scaled_unless_taken_at_face_value():
    bert = usual("bert-base", 64)
    assert m_set().rate(bert) == 12.223e9
    assert m_set().rate(bert.at(bits_per_second=20e9)) == 2 * 12.223e9
    assert m_set().rate(bert.at(face_value=True)) == 10e9
    assert nominal(m_set(), 15e-6).rate(bert) == s_set().rate(bert) == 10e9


def test_an_unknown_codec_is_not_guessed():
    with pytest.raises(UnknownName, match="M-set: the study says nothing about encoding resnet50 with efsignsgd"):
        m_set().encode_decode(usual("resnet50", 8), "efsignsgd")
