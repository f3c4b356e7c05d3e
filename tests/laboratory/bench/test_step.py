"""Steps on a real, shaped network: baselines in the same run, bytes counted twice, a split that adds up."""

from __future__ import annotations

import json

import pytest
import torch

from gradwire.cli import main
from gradwire.core.errors import ConfigError, UnknownName
from gradwire.laboratory.bench import step
from gradwire.laboratory.hosts.namespace import missing
from gradwire.tracing import trace

pytestmark = pytest.mark.dist
LAB = pytest.mark.skipif(missing() is not None, reason=str(missing()))


class Net(torch.nn.Linear):
    """Of somebody else."""

    def __init__(self):
        super().__init__(64, 64)

    def example(self, batch):
        return (torch.ones(batch, 64),)


@LAB
def test_a_short_sweep(tmp_path):
    sweep = step.sweep(
        codecs=("signsgd", "topk(ratio=0.1)"),
        strategies=("auto", "scatter_reduce_gather"),
        modes=("overlap", "after_backward"),
        model_names=("shapes",),
        batches=(2,),
        hosts=(2,),
        rates=("200mbit",),
        steps=8,
    )
    found = sweep.run(tmp_path / "r.jsonl")
    labels = [(r.what["configuration"], r.what.get("strategy"), r.what.get("mode")) for r in found]
    assert labels[:4] == [(b, None, None) for b in step.BASELINES]
    assert len(labels) == len(set(labels)) == 4 + 2 * 2 * 2
    by_label = dict(zip(labels, found, strict=True))

    nothing, plain, half, power = found[:4]
    assert nothing.outcome["interface_bytes"] < 2000
    assert plain.outcome["sent_bytes"] == 2 * half.outcome["sent_bytes"]
    assert power.outcome["interface_bytes"] < 0.1 * plain.outcome["interface_bytes"]
    assert plain.quantiles.p50 > 0.95 * 8 * plain.outcome["sent_bytes"] / 200e6
    for record in found[1:]:
        counted, seen = record.outcome["sent_bytes"], record.outcome["interface_bytes"]
        assert counted is None or counted <= seen <= 1.07 * counted + 15000, record.what
        assert len(record.samples) == 8 - record.outcome["dropped"] == 5
    tensors = step.tensors_of("shapes")
    whole = by_label["signsgd", "scatter_reduce_gather", "after_backward"]
    traced = trace("signsgd", tensors, workers=2, strategy="scatter_reduce_gather").sent_bytes
    assert whole.outcome["sent_bytes"] == traced

    parts = whole.outcome["parts_seconds"]
    assert parts["backward"] == nothing.outcome["parts_seconds"]["backward"] > 0
    assert parts["wait"] >= 0.5 * parts["communicate"]  # after the backward pass nothing hides it
    total = sum(parts[p] for p in ("forward", "backward", "wait", "optimizer"))
    assert 0.2 * whole.quantiles.p50 < total < 2 * whole.quantiles.p50  # means of ranks against the slowest rank


def test_a_limit_in_seconds_and_somebody_elses_model(capsys):
    arguments = ["--model", f"{__name__}:Net", "--codec", "fp16", "--hosts", "2", "--rate", "loopback", "--batch", "3"]
    assert main(["bench", "step", *arguments, "--seconds", "1e-9", "--checksum"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert [m["configuration"] for m in shown["measured"]] == [*step.BASELINES, "fp16", "fp16"]
    without, checked = shown["measured"][-2:]
    assert ("checksum" in without, checked["checksum"]) == (False, True)
    assert checked["sent_bytes"] > without["sent_bytes"]
    assert all(m["dropped"] == 3 for m in shown["measured"])
    assert shown["command"] == (
        f'gradwire bench step --codec "fp16" --strategy auto --mode overlap --model {__name__}:Net --batch 3 --hosts 2 '
        "--rate loopback --gpus-per-host 1 --steps 60 --seconds 1e-09 --checksum"
    )


def test_bad_requests():
    with pytest.raises(UnknownName, match="no model named 'resnet21'"):
        step.sweep(model_names=("resnet21",))
    with pytest.raises(ConfigError, match="`mode` must be 'overlap' or 'after_backward', got 'later'"):
        step.sweep(modes=("later",))
    with pytest.raises(ConfigError, match="`steps` must be a whole number of at least 8, got 7"):
        step.sweep(steps=7)
