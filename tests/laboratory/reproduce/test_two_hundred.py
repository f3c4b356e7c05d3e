"""The two hundred set-ups."""

from __future__ import annotations

import pytest
from stand_in import ENCODING, stand_in, study

from gradwire.laboratory.reproduce.exhibits.safe import candidates, safe
from gradwire.laboratory.reproduce.exhibits.sensitivity import WORLDS, World
from gradwire.laboratory.reproduce.grid import (
    FREE,
    METHODS,
    V100_MEMORY,
    Comparison,
    constant_sign,
    formula_cases,
    hierarchical,
    model_cases,
    setups,
    tally,
    with_our_encoding,
)
from gradwire.laboratory.reproduce.inputs import MEASURED, m_set
from gradwire.laboratory.reproduce.ours import Ours, shipped_predict
from gradwire.laboratory.reproduce.setup import usual
from gradwire.planner import quality
from gradwire.planner.profile import Profile


def test_there_are_two_hundred():
    over = setups()
    assert len(over) * len(METHODS) == 200
    assert len(set(over)) == len(over)
    assert {s.bits_per_second for s in over} == {10e9, 12.5e9}


def test_wins_are_counted_over_both_baselines():
    setup = usual("resnet50", 8)
    played = [Comparison(setup, "x", seconds, fp32=1.0, fp16=0.8) for seconds in (0.7, 0.78, 0.9, 0.97, 1.1)]
    counted = tally(played)
    assert (counted.of, counted.fp32, counted.clear_fp32, counted.fp16, counted.clear_fp16) == (5, 4, 3, 2, 1)
    assert counted.median == pytest.approx(0.8 / 0.9)
    assert counted.where == "ResNet-50 b64 4"
    assert tally(played[-1:]).where == "none"


def test_the_formula_says_about_what_was_worked_out_before():
    """There: 34 and 46 wins over FP32 with the fitted and the nominal network, none over FP16; 69 and 95 by nodes."""
    counted = {case.name: case.tally(setups()) for case in formula_cases()}
    assert all(t.of == 200 and (t.fp16 == 0 or "(i')" in name) for name, t in counted.items())
    fitted, nominal = counted["(i) formula, M-set"], counted["(i) formula, nominal"]
    assert (fitted.fp32, nominal.fp32) == (32, 41)
    by_table_3 = [counted[f"(i) formula, {s}, table 3's sign"].fp32 for s in ("M-set", "nominal")]
    assert by_table_3 == [38, 48]
    per_node = [counted[f"(i') formula, {s}"] for s in ("M-set", "nominal")]
    assert [(t.fp32, t.fp16) for t in per_node] == [(56, 3), (69, 4)]
    assert "ResNet-50" not in fitted.where
    assert "b64" not in fitted.where


def test_a_constant_time_of_signs_does_not_depend_on_peers():
    few, many = (constant_sign(m_set()).encode_decode(usual("resnet101", p), "signsgd") for p in (8, 96))
    assert few == many == pytest.approx(16.34e-3 * 170 / 97)


def test_our_encoding_brings_its_device_but_not_its_memory():
    v100, other = Profile.load(MEASURED), Profile.load(ENCODING)
    mixed = with_our_encoding(v100, other)
    assert (mixed.codecs, mixed.device.launch_seconds) == (other.codecs, other.device.launch_seconds)
    assert (mixed.models, mixed.network, mixed.device.memory_bytes) == (v100.models, v100.network, 16e9)


def test_cases_ask_ddp_with_the_same_profile():
    asked = []

    def predict(**question):
        asked.append(question)
        return stand_in(**question)

    cases = model_cases(predict, ENCODING)
    assert len(cases) == 10
    for case in cases:
        case.tally(setups((10e9,))[:1])
    ddp = [q for q in asked if q["codec"] in ("none", "fp16")]
    assert {q["hardware"].name for q in ddp} == {MEASURED}
    assert len(ddp) == 2  # asked once, for all cases
    signs = [(q["strategy"], q["mode"]) for q in asked if q["codec"] == "signsgd"]
    ours = [(s, m) for s in ("auto", "hierarchical") for m in ("after_backward", "overlap")]
    assert signs == [("all_gather", "after_backward"), ("hierarchical", "after_backward"), *ours, *2 * ours[1::2]]
    speeds = [q["encode_speed"] for q in asked if q["codec"] == "signsgd"]
    assert speeds == [1.0] * 6 + [V100_MEMORY] * 2 + [FREE] * 2
    assert hierarchical("none") == "auto"


def test_worlds_change_one_thing_at_a_time():
    names = ("rate", "latency", "encode_speed", "compute_speed", "gpus_per_node", "profile")
    for _, _, world in WORLDS:
        assert sum(getattr(world, n) != getattr(World(), n) for n in names) <= 1


def test_latency_and_encode_speed_reach_formula_and_model():
    base, late, quick = (
        w.tallies(study()) for w in (World(), World(latency=1e-4), World(encode_speed=10, gpus_per_node=8))
    )
    assert base[0].of == 100
    assert late[0].fp32 != base[0].fp32
    assert quick[0].fp32 > base[0].fp32
    assert quick[1].fp32 > base[1].fp32


def test_slower_encoding_never_wins_more():
    """Our own model, whose FP16 has to cast: those casts are no codec's, so that they stay as fast as they are."""
    over = setups((10e9,))[:2]
    sources = [case for case in model_cases(shipped_predict, "h200") if case.name == "(ii) flat, after"]
    clear = [sources[0].tally([s.at(encode_speed=f) for s in over]).clear_fp16 for f in (0.01, 0.1, 1.0, 10.0)]
    assert clear == sorted(clear)
    ours = Ours(Profile.load(MEASURED))
    slow, as_ever = (ours.seconds(over[0].at(encode_speed=f), "fp16") for f in (0.1, 1.0))
    assert slow == as_ever


def planted(codec, loss, kind):
    return quality.Quality("planted", kind, codec, "none", loss, quality.POINTS, 0.1, 3, 100)


def test_only_codecs_that_kept_their_quality_are_counted_with_losses(monkeypatch):
    """As fast as a published method may be: what it lost in our trainings takes its wins away."""
    sends_little = "signsgd"
    kinds = (quality.IMAGES, quality.LANGUAGE)

    def wins():
        return [row[4:] for row in safe(study()).rows]

    monkeypatch.setattr(quality, "shipped", lambda: tuple(planted(sends_little, 0.0, kind) for kind in kinds))
    assert candidates("resnet50") == candidates("bert-base") == [sends_little]
    kept = wins()
    assert {named for _, named, _ in kept} == {f"{sends_little} 50"}
    monkeypatch.setattr(quality, "shipped", lambda: tuple(planted(sends_little, 3.0, kind) for kind in kinds))
    assert candidates("resnet50") == []
    assert [(0, "none", published) for *_, published in kept] == wins()
    assert "signsgd lossy (-3.0 ± 0.1 points, planted, 3 seeds)" in safe(study()).notes[-1]


def test_ddps_own_widths_are_no_codecs(monkeypatch):
    monkeypatch.setattr(quality, "shipped", lambda: (planted("bf16", 0.0, quality.IMAGES),))
    assert candidates("resnet50") == []
