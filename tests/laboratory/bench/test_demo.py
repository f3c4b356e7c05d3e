"""The demo with two workers and few steps, from the command line to the record and back."""

from __future__ import annotations

import json

import pytest

from gradwire.cli import main
from gradwire.core import records
from gradwire.core.baselines import CODEC_OF
from gradwire.core.errors import ConfigError
from gradwire.laboratory.bench import demo
from gradwire.laboratory.bench.tasks import shapes
from gradwire.laboratory.hosts.namespace import missing
from gradwire.tracing import trace


@pytest.mark.dist
def test_a_short_demo(capsys, tmp_path):
    path = tmp_path / "demo.jsonl"
    arguments = ["--workers", "2", "--steps", "12", "--codec", "topk(ratio=0.1)", "--codec", "signsgd"]
    assert main(["demo", "--loopback", *arguments, "--record", str(path)]) == 0
    shown = json.loads(capsys.readouterr().out)
    found = {c["configuration"]: c for c in shown["configurations"]}
    assert list(found) == ["fp32 DDP", "fp16 DDP", "topk(ratio=0.1)", "signsgd"]

    tensors = [(name, tuple(p.shape)) for name, p in shapes.model(0).named_parameters()]
    sent = {label: c["sent_bytes_per_step"] for label, c in found.items()}
    assert sent["fp32 DDP"] == trace("none", tensors, workers=2).sent_bytes
    for label in ("fp16 DDP", "topk(ratio=0.1)", "signsgd"):  # buckets are rounded one by one
        assert sent[label] == pytest.approx(trace(CODEC_OF.get(label, label), tensors, workers=2).sent_bytes, rel=1e-3)
    assert found["fp32 DDP"]["shares"] is found["fp16 DDP"]["shares"] is None
    for configuration in shown["configurations"]:
        seconds = configuration["step_seconds"]["loopback"]
        assert 0 < seconds["p20"] <= seconds["p80"]
        assert 0.0 <= configuration["accuracy"] <= 1.0
    assert found["fp16 DDP"]["loss"] == pytest.approx(found["fp32 DDP"]["loss"], rel=0.02)  # same start, same batches
    assert len(shown["verdict"]) == 3

    kept = records.load(path)
    assert [r.what["configuration"] for r in kept] == list(found)
    assert all(len(r.samples) == 12 - demo.DROPPED for r in kept)
    assert kept[0].command == (
        'gradwire demo --workers 2 --steps 12 --seed 0 --loopback --codec "topk(ratio=0.1)" --codec "signsgd"'
    )
    assert str(tmp_path) not in path.read_text()
    assert [o.accuracy for o in demo.from_records(kept)] == [c["accuracy"] for c in found.values()]


@pytest.mark.dist
@pytest.mark.skipif(missing() is not None, reason=str(missing()))
def test_a_short_demo_on_emulated_links(capsys, tmp_path):
    path = tmp_path / "demo.jsonl"
    arguments = ["--workers", "2", "--steps", "12", "--codec", "signsgd", "--rate", "100mbit", "--rate", "1gbit"]
    assert main(["demo", *arguments, "--record", str(path)]) == 0
    shown = json.loads(capsys.readouterr().out)
    plain = shown["configurations"][0]
    assert list(plain["step_seconds"]) == ["100 Mbit/s", "1 Gbit/s"]
    wire = 8 * plain["sent_bytes_per_step"] / 100e6  # each way, at once; the link carries no more
    assert plain["step_seconds"]["100 Mbit/s"]["p50"] > 0.95 * wire
    assert plain["step_seconds"]["100 Mbit/s"]["p50"] > plain["step_seconds"]["1 Gbit/s"]["p50"]
    assert all(0 < rate <= 102e6 for rate in shown["network"]["100 Mbit/s"]["payload_bits_per_second"])  # less if busy
    usual = [line for line in shown["verdict"] if not line.startswith("Beware")]  # of links that a busy machine slows
    assert len(usual) == 5
    kept = records.load(path)
    assert [(r.what["configuration"], r.what["bits_per_second"]) for r in kept] == [
        (label, rate) for rate in (100e6, 1e9) for label in ("fp32 DDP", "fp16 DDP", "signsgd")
    ]
    assert [o.samples.keys() for o in demo.from_records(kept)] == [{"100 Mbit/s": 0, "1 Gbit/s": 0}.keys()] * 3


@pytest.mark.parametrize(
    "wanted, message",
    [
        ({"workers": 1}, "demo: `workers` must be from 2, else nothing is sent, to 64, got 1"),
        ({"steps": 9}, "demo: `steps` must be at least 10, because the first 5 are not timed, got 9"),
        ({"codecs": ("topk", "topk")}, "demo: name at least one codec, each once; got topk, topk"),
        ({"codecs": ()}, "demo: name at least one codec, each once; got none"),
    ],
)
def test_plans_that_cannot_be_run(wanted, message):
    with pytest.raises(ConfigError) as caught:
        demo.Plan(**wanted)
    assert str(caught.value) == message


def test_only_the_last_run_of_a_file_is_shown():
    plan = demo.Plan()
    samples = {"200 Mbit/s": (2.0,), "1 Gbit/s": (1.0,)}
    network = {link: {"latency_seconds": [1e-5]} for link in samples}
    outcome = demo.Outcome(
        label="fp16 DDP", samples=samples, sent_bytes=1.0, loss=0.0, accuracy=1.0, parts=None, network=network
    )
    first = demo.to_records(plan, [outcome])
    kept = [*(demo.Record(**(vars(r) | {"time": "2020"})) for r in first), *first]
    assert demo.from_records(kept) == [outcome]


def test_records_of_no_demo():
    with pytest.raises(ConfigError) as caught:
        demo.from_records([])
    assert str(caught.value) == ("demo: no record of a demo among these; make one with: gradwire demo --record FILE")


def test_the_learning_rate_rises_and_falls():
    rates = [demo.schedule(step, 120) for step in range(120)]
    assert max(rates) == rates[11]
    assert rates[0] < 0.1
    assert rates[-1] < 0.001
