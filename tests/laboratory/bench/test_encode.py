"""`bench encode`: what the clock sees, what is compared, and what is recorded."""

from __future__ import annotations

import time

import pytest
import torch

import gradwire
from gradwire.collectives import trace
from gradwire.core.records import Record
from gradwire.kernels import backend
from gradwire.laboratory.bench import encode, hooks
from gradwire.tracing import trace as traced

SIZE = 1 << 14


def measured(*codecs, **options):
    plan = encode.Plan(codecs, **({"sizes": (SIZE,), "repeats": 3, "seconds": 0.1} | options))
    return plan, list(encode.run(plan))


def test_every_codec_is_measured_in_three_phases():
    plan, found = measured(*gradwire.codec_names(), repeats=1)
    assert [m.codec for m in found] == gradwire.codec_names()
    for m in found:
        assert m.elements == SIZE
        assert m.median("encode") > 0
        assert m.median("decode") > 0
        assert m.copy_seconds > 0
        assert m.median("total", "reference") > 0
        if gradwire.codec(m.codec).traits.fixed_size:
            shape = (SIZE // 1024, 1024)
            options = {"workers": plan.workers, "tensors": "all"}
            settled = gradwire.codec(m.codec).steady_from_step == 0
            assert not settled or m.payload_bytes == traced(m.codec, [("matrix", shape)], **options).payload_bytes


def test_the_phases_follow_the_exchanges():
    _, (sums, gathers, scatters) = measured("fp16", "efsignsgd", "efsignsgd", sizes=(SIZE,))
    assert sums.strategy == "all_reduce"
    assert sums.kernels["reduce"] == (0.0,) * len(sums.copy)
    assert gathers.strategy == "all_gather"
    plan = encode.Plan(("efsignsgd",), sizes=(1 << 20,), repeats=1, workers=16, seconds=0.1)
    scatters = encode.measure("efsignsgd", 1 << 20, plan)
    assert scatters.strategy == "scatter_reduce_gather"
    assert all(s > 0 for s in scatters.kernels["reduce"])


def test_the_clock_does_not_run_while_peers_answer(monkeypatch):
    def slow(exchange, workers, echo=trace.echo):
        time.sleep(0.2)
        return echo(exchange, workers)

    monkeypatch.setattr(trace, "echo", slow)
    start = time.perf_counter()
    _, (m,) = measured("fp16", sizes=(64,), repeats=1)
    assert time.perf_counter() - start > 6 * 0.2
    assert max(encode.total(m.kernels) + encode.total(m.reference)) < 0.2


def test_kernels_and_reference_take_turns(monkeypatch):
    seen, codec = [], type(gradwire.codec("fp16"))

    def spy(self, source, *given, encode=codec.encode_part):
        seen.append(backend.numpy(source.buffer))
        return encode(self, source, *given)

    monkeypatch.setattr(codec, "encode_part", spy)
    measured("fp16", repeats=2)
    assert seen[:8] == [True, False] * 4


def test_threads_are_put_back():
    before = torch.get_num_threads()
    measured("fp16", threads=before + 1, repeats=1)
    assert torch.get_num_threads() == before


def test_records_hold_what_was_measured_and_how_to_repeat_it():
    plan, found = measured("fp16", "topk(ratio=0.1)")
    lines = [Record.from_json(r.to_json()) for r in encode.to_records(plan, found)]
    assert [r.what["codec"] for r in lines] == ["fp16", "topk(ratio=0.1)"]
    for record, m in zip(lines, found, strict=True):
        assert record.kind == "encode"
        assert record.samples == encode.total(m.kernels)
        assert record.outcome["copy_seconds"] == m.copy_seconds
        assert record.outcome["payload_bytes"] == m.payload_bytes
        assert set(record.outcome["seconds"]) == {"encode", "reduce", "decode"}
    assert lines[0].command == (
        'gradwire bench encode --codec "fp16" --codec "topk(ratio=0.1)" --size 16384 --workers 4 --threads 1 '
        "--repeats 3 --seconds 0.1 --memory default --device cpu"
    )


@pytest.mark.parametrize(
    "options, message",
    [
        ({"workers": 0}, "^bench encode: `workers` must be a whole number of at least 1, got 0$"),
        ({"sizes": (0,)}, "^bench encode: `size` must be a whole number of at least 1, got 0$"),
        ({"device": "tpu"}, "^bench encode: there is no device 'tpu' here; use cpu$"),
        ({"memory": "momentum_correction"}, "^fp16 cannot run under momentum_correction"),
    ],
)
def test_bad_plans_are_refused(options, message):
    with pytest.raises(gradwire.GradwireError, match=message):
        encode.Plan(("fp16",), **options)


@pytest.mark.parametrize("name", hooks.HOOKS)
def test_torchs_hooks_are_measured_on_a_model(name):
    plan = encode.Plan(("fp16",), sizes=(), models=("resnet20",), repeats=2, seconds=0.1)
    seconds = encode.measure_hook(name, "resnet20", plan)
    assert len(seconds) == 2
    assert min(seconds) > 0
    record = encode.hook_record(plan, name, "resnet20", seconds)
    assert Record.from_json(record.to_json()) == record
    assert encode.from_records([record]) == []


@pytest.mark.sweep
@pytest.mark.filterwarnings("ignore")
def test_the_plain_form_can_be_compiled():
    plan, (m,) = measured("efsignsgd", compile=True, repeats=1)
    assert m.compiled is not None
    assert m.median("total", "compiled") > 0
    assert plan.command.endswith(" --compile")
    (again,) = encode.from_records(encode.to_records(plan, [m]))
    assert again.median("decode", "compiled") == m.median("decode", "compiled")
