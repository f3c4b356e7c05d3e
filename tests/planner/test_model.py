"""Predictions against what can be worked out, and how they must move."""

from __future__ import annotations

import dataclasses

import pytest

from gradwire import models, planner
from gradwire.core.errors import ConfigError, GradwireError
from gradwire.planner import published
from gradwire.planner.model import predict
from gradwire.planner.profile import CodecCost, Profile, Whole
from gradwire.planner.timeline import Overlap
from gradwire.planner.workload import shipped
from gradwire.tracing import trace

SETUP = {"model": "resnet50", "batch": 64, "gpus": 32, "gpus_per_node": 4, "bandwidth": "10gbit", "hardware": "h200"}


def seconds(**changes):
    return predict(**SETUP | changes).step_seconds


def test_parts_make_the_step():
    found = predict(**SETUP, codec="powersgd", mode="after_backward")
    p = found.parts
    assert found.step_seconds == pytest.approx(p["forward"] + p["backward"] + p["wait"] + p["optimizer"])
    assert found.sync_seconds == pytest.approx(p["backward"] + p["wait"])
    assert p["wait"] == pytest.approx(p["encode"] + p["exchange"] + p["decode"])  # nothing overlaps after backward


def test_the_published_formula_where_both_say_the_same():
    """PowerSGD after the backward pass on the paper's own terms: two sums, nothing else; vectors beside as a third."""
    base = Profile.load("v100-paper-simulated")
    plain = dataclasses.replace(base, overlap=Overlap(), network=dataclasses.replace(base.network, latency_seconds=0.0))
    found = predict(
        model="resnet50",
        batch=64,
        gpus=64,
        bandwidth=1e10,
        codec="powersgd(rank=4)",
        mode="after_backward",
        hardware=plain,
    )
    (unit,) = shipped().workload("resnet50", "powersgd(rank=4)", "auto", "after_backward", 64).units
    sizes = [e.num_bytes for e in unit.exchanges]
    ours = found.sync_seconds
    rate = 1e10 * plain.network.efficiency
    theirs = published.powersgd(*sizes[::2], 64, rate, backward=0.122, encode_decode=0.045)
    vectors = published.ring_all_reduce(sizes[1], 64, rate)
    assert ours == pytest.approx(theirs + vectors, rel=1e-6)


def test_it_moves_as_it_must():
    assert seconds(bandwidth="1gbit") > seconds() > seconds(bandwidth="100gbit")
    assert seconds(gpus=64) >= seconds(gpus=8)
    assert seconds(codec="fp16") < seconds()
    assert seconds(codec="topk", latency=1e-3) > seconds(codec="topk", latency=0.0)
    assert seconds(compute_speed=2.0) < seconds()
    assert seconds(codec="topk", encode_speed=4.0) < seconds(codec="topk")
    assert seconds(ratio=4.0) < seconds()
    assert seconds(batch=32) < seconds()


def test_every_unit_pays_what_is_fixed():
    """Five buckets launch five times as many kernels as one unit: overlap pays only where that is hidden."""
    once, often = (predict(**SETUP, codec="efsignsgd", mode=m).parts for m in ("after_backward", "overlap"))
    units = len(shipped().workload("resnet50", "efsignsgd", "auto", "overlap", 32).units)
    cost, device = Profile.load("h200").codecs["efsignsgd"], Profile.load("h200").device
    fixed = cost.encode.seconds(0, device)
    assert often["encode"] - once["encode"] == pytest.approx((units - 1) * fixed)


def test_accumulation_exchanges_once():
    one, four = predict(**SETUP), predict(**SETUP, accumulate=4)
    each = one.parts["forward"] + one.parts["backward"]
    assert four.step_seconds == pytest.approx(one.step_seconds + 3 * each)
    assert four.sent_bytes == one.sent_bytes


def test_one_gpu_waits_for_nobody():
    alone = predict(**SETUP | {"gpus": 1, "gpus_per_node": 1}, codec="topk")
    assert alone.sent_bytes == 0
    assert alone.parts["wait"] == 0


def test_inside_one_node_nothing_is_compressed():
    found = predict(**SETUP | {"gpus": 4}, codec="topk", strategy="hierarchical")
    assert (found.parts["encode"], found.parts["decode"], found.sent_bytes) == (0, 0, 0)
    assert found.parts["exchange"] > 0


def test_all_gather_decodes_and_holds_everybody():
    few = predict(**SETUP | {"gpus": 8}, codec="signsgd", strategy="all_gather", mode="after_backward")
    many = predict(**SETUP | {"gpus": 64}, codec="signsgd", strategy="all_gather", mode="after_backward")
    assert many.parts["decode"] == pytest.approx(8 * few.parts["decode"])
    assert many.memory_bytes > few.memory_bytes
    shared = predict(**SETUP | {"gpus": 64}, codec="signsgd", mode="after_backward")
    assert shared.parts["decode"] < many.parts["decode"] / 8
    assert shared.sent_bytes < many.sent_bytes / 8


def test_out_of_memory_is_foreseen():
    profile = Profile.load("h200")
    times = dataclasses.replace(profile.times("resnet50", 64), memory_bytes=profile.device.memory_bytes - 2e9)
    full = dataclasses.replace(profile, models={"resnet50": (times,)})
    fits = [
        predict(
            **SETUP | {"gpus": n, "hardware": full}, codec="signsgd", strategy="all_gather", mode="after_backward"
        ).fits
        for n in (8, 1024)
    ]
    assert fits == [True, False]
    assert predict(**SETUP).fits is None


def test_hierarchical_spares_the_card_and_the_encoder():
    flat = predict(**SETUP, codec="efsignsgd", mode="after_backward")
    levels = predict(**SETUP, codec="efsignsgd", mode="after_backward", strategy="hierarchical")
    assert levels.parts["encode"] < flat.parts["encode"]
    assert levels.sent_bytes < flat.sent_bytes / 3
    assert levels.step_seconds < flat.step_seconds


@pytest.mark.parametrize(("codec", "within"), [("efsignsgd", 0.01), ("topkc", 0.01), ("powersgd", 0.12)])
def test_hierarchical_bytes_are_the_tracers(codec, within):
    """The trace is of the rank that sends most: more than the mean where matrices are dealt out whole."""
    tensors = [(n, tuple(p.shape)) for n, p in models.build("resnet50").named_parameters()]
    exact = trace(codec, tensors, workers=32, strategy="hierarchical(per_node=4)")
    found = predict(**SETUP, codec=codec, strategy="hierarchical", mode="after_backward")
    assert found.sent_bytes == pytest.approx(exact.sent_bytes, rel=within)


def test_sums_take_the_fastest_way_where_the_profile_says_so():
    place = {"model": "bert-base", "batch": 12, "bandwidth": "10gbit", "codec": "fp16", "hardware": "h200"}
    for gpus, per_node, fastest in ((16, 1, "ring"), (16, 8, "hierarchical"), (1024, 1, "tree")):
        asked = {**place, "gpus": gpus, "gpus_per_node": per_node}
        own = predict(**asked).step_seconds
        each = {way: predict(**asked, sums=way).step_seconds for way in ("ring", "tree", "hierarchical")}
        assert min(each, key=each.get) == fastest
        assert own == predict(**asked, sums="auto").step_seconds <= min(each.values()) * (1 + 1e-9)
    told = {**place, "gpus": 1024, "hardware": "v100-paper-measured", "model": "resnet50", "batch": 64}
    assert predict(**told).step_seconds == predict(**told, sums="ring").step_seconds


def test_ways_of_sums():
    ring, tree, server = (seconds(sums=w) for w in ("ring", "tree", "parameter_server"))
    assert tree != ring
    assert server > 5 * ring
    assert seconds(strategy="parameter_server") == server


def test_a_slow_switch_is_a_limit():
    assert seconds(switch="80gbit") == seconds()  # eight nodes need 80 Gbit/s
    assert seconds(switch="40gbit") == pytest.approx(seconds(bandwidth="5gbit"))


def test_a_cost_by_a_law_is_an_estimate_and_tells_how_far_off_the_law_is():
    h200 = Profile.load("h200")
    law = h200.codecs["topk"].encode
    elements = sum(u.compressed for u in shipped().workload("resnet50", "topk", "auto", "overlap", 2).units)
    whole = Whole(encode_seconds=law.seconds(elements, h200.device), decode_seconds=0.0, source="measured: here")
    known = CodecCost(encode=law, decode=law, source="measured: here", models={"resnet50": whole})
    profile = dataclasses.replace(h200, codecs={**h200.codecs, "topk": known})
    told = {}
    for model in ("resnet50", "vgg19"):
        found = predict(model=model, batch=64, gpus=8, bandwidth="10gbit", codec="topk", hardware=profile, backward=0.1)
        told[model] = next(i.source for i in found.inputs if i.name == "encode and decode")
    assert told["resnet50"] == "measured: here"
    assert told["vgg19"] == "estimated: by a law of sizes, 100 % off in the median where models were measured whole (1)"


def test_inputs_name_their_sources():
    found = predict(**SETUP, codec="topk", latency=1e-4)
    sources = {i.name: i.source for i in found.inputs}
    assert sources["backward"].startswith("measured: NVIDIA H200")
    assert sources["bytes"] == "traced: exact"
    assert sources["latency"] == "assumed: as you gave it"
    estimated = predict(**SETUP, codec="threshold")
    assert estimated.estimated
    assert {i.name: i.source for i in estimated.inputs}["bytes"].startswith("estimated")


def test_a_backward_pass_of_your_own():
    found = predict(**SETUP | {"model": "unet"}, backward=0.2)
    assert found.parts["backward"] == 0.2
    assert "as you gave it" in found.inputs[0].source


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        ({"bandwidth": "10"}, "a rate needs a number above 0 and a unit, as in 100mbit or 1gbit; got '10'"),
        ({"bandwidth": "-10gbit"}, "a rate needs a number above 0 and a unit"),
        ({"gpus": 0}, "`gpus` must be a whole number of at least 1, got 0"),
        ({"gpus": 30}, "30 GPUs do not fill nodes of 4; type a multiple, such as 28 or 32, or --gpus-per-node 1"),
        ({"model": "resnet5"}, "no model named 'resnet5'; did you mean resnet50"),
        ({"model": "unet"}, "profile h200 has no times of 'unet'"),
        ({"switch": "fast"}, "a rate needs a number above 0 and a unit"),
        ({"codec": "topkk"}, "no trace of codec 'topkk'; did you mean topk"),
        ({"mode": "never"}, "`mode` must be 'overlap' or 'after_backward', got 'never'"),
        ({"ratio": 0}, "`ratio` must be a factor above 0"),
        ({"accumulate": 0}, "`accumulate` must be a whole number of at least 1"),
        ({"sums": "star"}, "`sums` must be 'ring' or 'tree'"),
        ({"hardware": "h20"}, "no hardware profile 'h20'"),
        ({"backward": -1.0}, "`backward` must be seconds"),
        ({"hardware": "v100-paper-measured", "codec": "thc"}, "does not know what thc costs"),
    ],
)
def test_wrong_questions(wrong, sentence):
    with pytest.raises((ConfigError, GradwireError)) as caught:
        predict(**SETUP | {"codec": "none"} | wrong)
    assert sentence in str(caught.value)


def test_the_front_door_traces_what_is_not_shipped(tmp_path, monkeypatch):
    monkeypatch.setenv("GRADWIRE_CACHE", str(tmp_path))
    own = planner.predict(**SETUP, codec="powersgd(rank=3)")
    near = planner.predict(**SETUP, codec="powersgd(rank=4)")
    assert own.codec == "powersgd(rank=3)"
    assert 0.6 * near.sent_bytes < own.sent_bytes < near.sent_bytes
