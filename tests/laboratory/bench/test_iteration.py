"""`bench iteration`: who takes turns, what an echo answers, and what is recorded."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import gradwire
from gradwire.collectives import c10d
from gradwire.core import intervals
from gradwire.core.baselines import BASELINES, NOTHING, PLAIN
from gradwire.core.errors import ConfigError
from gradwire.core.records import Record
from gradwire.laboratory.bench import iteration
from gradwire.laboratory.bench.echo import echo


@pytest.fixture
def quick(monkeypatch):
    monkeypatch.setattr(iteration, "TURN", 1)
    monkeypatch.setattr(iteration, "WARM", 0)


def test_all_take_turns_in_one_process(quick):
    plan = iteration.Plan(model="shapes", batch=2, codecs=("blockint(bits=8)", "topk"), turns=2)
    turns = []
    found = iteration.measure(plan, lambda: turns.append(1))
    assert [m.configuration for m in found] == [*BASELINES, "blockint(bits=8)", "topk"]
    assert all(len(m.samples) == 2 and min(m.samples) > 0 for m in found)
    assert [m.graphs is None for m in found] == [True] * 4 + [False] * 2
    assert not dist.is_initialized()
    records = iteration.to_records(plan, found)
    assert all(Record.from_json(r.to_json()) == r for r in records)
    over = {r.what["configuration"]: r.outcome for r in records}
    assert over[NOTHING]["over_no_exchange"] == over[PLAIN]["over_ddp"] == 1
    assert over["topk"]["over_ddp"] == intervals.ratio(found[5].samples, found[1].samples).middle
    assert len(turns) == iteration.rounds(plan) == 2


@pytest.mark.sweep
def test_processes_share_a_device():
    plan = iteration.Plan(model="shapes", batch=2, codecs=("efsignsgd",), exchange="gloo", workers=2, turns=1)
    turns = []
    found = iteration.measure(plan, lambda: turns.append(1))
    assert [m.configuration for m in found] == [*BASELINES, "efsignsgd"]
    assert len(turns) == iteration.rounds(plan)


def test_the_command_repeats_the_measurement():
    plan = iteration.Plan(model="shapes", batch=2, codecs=("topk",), turns=1)
    wanted = (
        '--model shapes --batch 2 --codec "topk" --exchange echo --workers 4 --precision fp32 --device cpu --turns 1'
    )
    assert plan.command == f"gradwire bench iteration {wanted}"


@pytest.mark.parametrize(
    "wrong", [{"exchange": "nccl"}, {"workers": 1}, {"turns": 0}, {"precision": "fp8"}, {"device": "tpu"}]
)
def test_what_cannot_be_measured_is_refused(wrong):
    with pytest.raises(ConfigError):
        iteration.Plan(**({"model": "shapes", "batch": 2} | wrong))


def test_an_echo_answers_as_if_all_had_sent_the_same():
    with echo(3):
        x = torch.arange(6.0)
        rows = x.new_empty(18)
        c10d._all_gather(rows, x)
        assert rows.equal(x.repeat(3))
        swapped = torch.empty_like(x)
        dist.all_to_all_single(swapped, x)
        assert swapped.equal(x)
        dist.all_reduce(x)
        assert x.equal(torch.arange(6.0))
        with pytest.raises(ConfigError, match="already"), echo(2):
            pass
    assert not dist.is_initialized()


def test_a_lossless_codec_changes_nothing_under_an_echo():
    gradients = []
    for codec in (None, "none"):
        with echo(2):
            torch.manual_seed(0)
            model = DistributedDataParallel(torch.nn.Linear(40, 40))
            if codec is not None:
                gradwire.attach(model, codec)
            model(torch.ones(2, 40)).square().sum().backward()
            gradients.append(model.module.weight.grad.clone())
    assert gradients[0].equal(gradients[1])
