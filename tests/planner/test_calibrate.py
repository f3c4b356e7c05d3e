"""Records made from a known profile give that profile back; what cannot be calibrated is refused."""

from __future__ import annotations

import dataclasses

import pytest

from gradwire.core.baselines import CODEC_OF
from gradwire.core.errors import ConfigError
from gradwire.core.records import Quantiles, Record
from gradwire.planner import calibrate
from gradwire.planner.calibrate import LAUNCH_SECONDS, PASS_BYTES_PER_SECOND, Place, fit, solve
from gradwire.planner.cluster import Link
from gradwire.planner.plausible import MOST_ERROR, judge
from gradwire.planner.profile import CodecCost, Device, Law, Network, Profile, Times
from gradwire.planner.timeline import Overlap
from gradwire.planner.validate import Errors, accuracy, by, family
from gradwire.planner.workload import shipped

PLACE = Place(4, 1, 1e9)
MODELS = {"resnet20": (0.02, 0.05, 0.001), "ncf-ml1m": (0.001, 0.002, 0.002), "lstm-ptb": (0.03, 0.06, 0.01)}
CODECS = ("efsignsgd", "powersgd", "topk", "blockint(bits=8)")


def known():
    law = {
        c: CodecCost(encode=Law(launches=50, passes=8), decode=Law(launches=20, passes=5), source="measured: x")
        for c in CODECS
    }
    law["none"] = CodecCost(encode=Law(), decode=Law(), source="assumed: x")
    law["fp16"] = CodecCost(encode=Law(launches=10, passes=4), decode=Law(), source="assumed: x")
    return Profile(
        name="known",
        description="",
        device=Device(
            memory_bytes=4e9,
            launch_seconds=LAUNCH_SECONDS,
            pass_bytes_per_second=PASS_BYTES_PER_SECOND,
            source="measured: x",
            handling={m: Law(launches=100, passes=1) for m in ("overlap", "after_backward")},
        ),
        network=Network(
            latency_seconds=2e-4,
            start_seconds=3e-4,
            efficiency=0.94,
            source="measured: x",
            kinds={"gather": {"efficiency": 0.8}, "scatter": {"efficiency": 0.9}},
        ),
        inside=Link(latency_seconds=0.0, bits_per_second=1e9),
        inside_source="assumed: x",
        overlap=Overlap(),
        overlap_source="assumed: x",
        models={
            m: (Times(batch=4, forward_seconds=f, backward_seconds=b, optimizer_seconds=o, source="measured: x"),)
            for m, (f, b, o) in MODELS.items()
        },
        codecs=law,
    )


def find(what):
    codec = CODEC_OF.get(what["configuration"], what["configuration"])
    return shipped().workload(what["model"], codec, "auto", what.get("mode", "overlap"), what["hosts"])


def record(what, seconds, parts):
    return Record(
        kind="step",
        what=what,
        command="x",
        time="2026-01-01T00:00:00+00:00",
        commit="c",
        dirty=False,
        environment={"memory_bytes": 16e9, "cpu": "cpu", "cores": 4, "torch": "2"},
        unit="s",
        quantiles=Quantiles(p20=seconds, p50=seconds, p80=seconds),
        samples=(seconds,),
        outcome={"parts_seconds": parts},
    )


def measured(profile, place, models=MODELS):
    """Step records as the profile has them, without any noise."""
    found = []
    for model in models:
        forward, backward, optimizer = MODELS[model]
        base = {"hosts": place.hosts, "ranks_per_host": 1, "bits_per_second": place.bits_per_second}
        common = base | {"model": model, "batch": 4}
        alone = {"forward": forward, "backward": backward, "wait": 0.0, "optimizer": optimizer}
        none = dict.fromkeys(("encode", "communicate", "decode"))
        found.append(record(common | {"configuration": "no exchange"}, forward + backward + optimizer, alone | none))
        settings = [{"configuration": c} for c in ("fp32 DDP", "fp16 DDP")]
        settings += [
            {"configuration": c, "mode": m, "strategy": "auto"} for c in CODECS for m in ("overlap", "after_backward")
        ]
        for setting in settings:
            what = common | setting
            made = calibrate.predict_record(record(what, 1.0, {}), find(what), profile)
            parts = alone | {"wait": made.parts["wait"]}
            own = {
                "encode": made.parts["encode"],
                "communicate": made.parts["exchange"],
                "decode": made.parts["decode"],
            }
            found.append(record(what, made.step_seconds, parts | (own if "mode" in setting else none)))
    return found


def test_a_known_profile_is_found_again():
    made = fit(measured(known(), PLACE), find, name="x", description="")
    assert made.network.efficiency == pytest.approx(0.94, rel=0.02)
    assert made.network.start_seconds + 3 * made.network.latency_seconds == pytest.approx(3e-4 + 6e-4, rel=0.1)
    for codec in CODECS:
        law = made.codecs[codec].encode
        assert law.passes == pytest.approx(8, rel=0.02)
        assert law.launches == pytest.approx(50, rel=0.1)
    assert made.times("resnet20", 4).backward_seconds == 0.05
    assert made.about["place"] == "4 hosts at 1 Gbit/s"


def test_it_predicts_other_places_blind():
    profile = fit(measured(known(), PLACE), find, name="x", description="")
    for hosts, rate in ((4, 1e8), (8, 1e9), (16, 5e8)):
        for one in measured(known(), Place(hosts, 1, rate)):
            if calibrate.modelled(one):
                found = calibrate.predict_record(one, find(one.what), profile).step_seconds
                assert found == pytest.approx(one.quantiles.p50, rel=0.05), one.what


def test_a_model_that_was_held_out():
    profile = fit(measured(known(), PLACE), find, name="x", description="", held_out=("lstm-ptb",))
    assert all("lstm-ptb" not in cost.models for cost in profile.codecs.values())
    for one in measured(known(), PLACE, ["lstm-ptb"]):
        if calibrate.modelled(one):
            found = calibrate.predict_record(one, find(one.what), profile).step_seconds
            assert found == pytest.approx(one.quantiles.p50, rel=0.08), one.what


def test_the_slowest_rank_counts():
    records = measured(known(), PLACE)
    late = [
        dataclasses.replace(r, quantiles=Quantiles(p20=1, p50=r.quantiles.p50 + 0.01, p80=1)) if i == 0 else r
        for i, r in enumerate(records)
    ]
    times = fit(late, find, name="x", description="").times("resnet20", 4)
    assert times.slowest(4) == pytest.approx(0.01)
    assert times.slowest(8) > times.slowest(4) > times.slowest(2) > 0


def test_what_cannot_be_calibrated():
    with pytest.raises(ConfigError, match="records of one place are wanted, got: none; choose one with --place"):
        fit([], find, name="x", description="")
    two = [*measured(known(), PLACE), *measured(known(), Place(8, 1, 1e8))]
    with pytest.raises(ConfigError, match="got: 4 hosts at 1 Gbit/s; 8 hosts at 100 Mbit/s; choose one"):
        fit(two, find, name="x", description="")
    with pytest.raises(ConfigError, match="there is no record of 2 hosts at 1 Gbit/s"):
        fit(two, find, name="x", description="", place=Place(2, 1, 1e9))
    alone = [r for r in measured(known(), PLACE) if r.what["configuration"] == "no exchange"]
    with pytest.raises(ConfigError, match="no record says what exchanges cost; measure at least one codec there"):
        fit(alone, find, name="x", description="")


def test_least_squares():
    assert solve([[1.0, 0.0], [1.0, 2.0], [1.0, 5.0]], [3.0, 7.0, 13.0]) == pytest.approx([3.0, 2.0], rel=1e-3)
    assert solve([[1.0, 1.0], [1.0, 2.0]], [2.0, 1.0])[1] == 0.0  # would be negative
    assert solve([[0.0, 1.0]], [2.0]) == [0.0, 2.0]


def test_errors_are_summed_up():
    def prediction(label, error, **what):
        made = record({"configuration": label, **what}, 1.0, {})
        outcome = {"error": error, "spread": 0.01, "calibrated_on": {"place": "p", "cpu": "c", "cores": 2}}
        return dataclasses.replace(made, outcome=outcome)

    found = [
        prediction("fp32 DDP", 0.01),
        prediction("topk", -0.10, mode="overlap"),
        prediction("topk", 0.02, mode="overlap"),
        prediction("qsgd", -0.04, mode="overlap"),
    ]
    codecs, plain = by(found, family)
    assert codecs == Errors("codecs", 3, 0.04, 0.10, -0.04, 0.01)
    assert plain.what == "fp32 DDP"
    assert accuracy(found)["codecs"] == {"settings": 3, "median": 0.04, "max": 0.1}


# -------------------------------------------------------------------- whether a fit can be believed


def with_probe(records, share):
    """As if the links had carried that share of their rate in the probe before the run."""
    network = {"payload_bits_per_second_together": [share * 1e9] * 4}
    return [dataclasses.replace(r, outcome={**r.outcome, "network": network}) for r in records]


def slowed(record, factor):
    """As on a machine that is busy with something else."""
    q = record.quantiles
    return dataclasses.replace(record, quantiles=Quantiles(p20=q.p20, p50=factor * q.p50, p80=2 * factor * q.p80))


def test_a_fit_of_an_idle_machine_is_believed():
    found = with_probe(measured(known(), PLACE), 0.94)
    judged = judge(fit(found, find, name="x", description="", place=PLACE), found, find)
    assert judged.problems == ()
    assert judged.settings == 30  # three models: FP32 DDP, FP16 DDP, and four codecs in two modes
    assert judged.median_error < 0.02
    assert judged.spread == 0


def test_a_network_far_slower_than_the_probe_saw_it_is_not_believed():
    profile = known()
    slow = dataclasses.replace(profile, network=dataclasses.replace(profile.network, efficiency=0.41))
    found = with_probe(measured(slow, PLACE), 0.9)
    judged = judge(fit(found, find, name="x", description="", place=PLACE), found, find)
    assert judged.problems == ("payloads got 0.41 of the rate in steps, and 0.9 in the probe before",)


def test_steps_that_no_law_fits_are_not_believed():
    found = [slowed(r, 1 + 2 * (at % 3)) for at, r in enumerate(measured(known(), PLACE))]
    judged = judge(fit(found, find, name="x", description="", place=PLACE), found, find)
    assert judged.median_error > MOST_ERROR
    assert judged.problems == (f"the steps it was fitted to are predicted {judged.median_error:.0%} off",)
    assert judged.sentence == (
        f"the 30 steps it was fitted to are predicted {judged.median_error:.0%} off in the median, "
        f"{judged.largest_error:.0%} at most; repeated steps differ by {judged.spread:.0%}"
    )


def test_constants_that_no_network_has_are_not_believed():
    profile = known()
    network = dataclasses.replace(profile.network, latency_seconds=0.08)
    found = measured(dataclasses.replace(profile, network=network), PLACE)
    judged = judge(fit(found, find, name="x", description="", place=PLACE), found, find)
    assert judged.problems == ("a message takes 79 ms by the fit",)
