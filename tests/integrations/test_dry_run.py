"""`attach(..., dry_run=True)`: what it says is what then happens, and it touches nothing."""

from __future__ import annotations

import dataclasses
import json

import pytest
import torch
from given import buckets, message, train
from ranks import Pool
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import gradwire
from gradwire.integrations.dry_run import DryRun


def model() -> nn.Sequential:
    return nn.Sequential(nn.Linear(24, 640), nn.Tanh(), nn.Linear(640, 640), nn.Linear(640, 10))


def kept_by(handle: gradwire.Handle) -> int:
    """Bytes of all slots of a handle's engine, both buffers."""
    slots = [slot for kinds in handle.engine.store._slots.values() for slot in kinds.values()]
    commons = [common for kinds in handle.engine.store._commons.values() for common in kinds.values()]
    return sum(2 * slot.current.nbytes for slot in (*slots, *commons) if slot.current is not None)


def attach_for_real(rank: int, codec: str, mode: str) -> tuple[DryRun, dict, int, list]:
    torch.manual_seed(0)
    ddp = DistributedDataParallel(model())
    said = gradwire.attach(torch.compile(ddp, backend="eager"), codec, mode=mode, dry_run=True)
    train(ddp, torch.optim.SGD(ddp.parameters(), lr=0.1), range(2))  # no hook is in the way, and buckets are rebuilt
    handle = gradwire.attach(ddp, codec, mode=mode)
    train(ddp, torch.optim.SGD(ddp.parameters(), lr=0.1), range(3))
    return said, handle.stats(), kept_by(handle), buckets(ddp)


@pytest.mark.dist
@pytest.mark.parametrize("mode", ["overlap", "after_backward"])
@pytest.mark.parametrize("codec", ["eightbit", "topk(ratio=0.05)", "powersgd(rank=2)"])
def test_what_is_said_is_what_happens(pool: Pool, codec: str, mode: str) -> None:
    said, stats, kept, units = pool.run(2, attach_for_real, codec, mode)[0]
    assert said.sent_bytes == stats["sent_bytes_per_step"]
    assert said.kept_bytes == kept
    assert said.memory == stats["memory"]
    assert (said.workers, said.mode, said.exact) == (2, mode, True)
    if mode == "overlap":
        assert [sorted(unit.tensors) for unit in said.units] == [sorted(unit) for unit in units]
    else:
        assert len(said.units) == 1


def test_without_a_process_group_the_ranks_are_told() -> None:
    said = gradwire.attach(model(), "eightbit", dry_run=True, workers=8)
    assert said.ratio == pytest.approx(said.plain_bytes / said.sent_bytes)
    assert 3.5 < said.ratio < 4.0
    lines = str(said).splitlines()
    assert lines[0] == "dry run: eightbit, memory error_feedback, strategy auto, mode overlap, 8 ranks"
    assert lines[1].startswith("each rank would send ")
    assert lines[1].endswith(f"times less than plain DDP, in {len(said.units)} units")
    assert len(lines) == 4 + len(said.units)
    assert json.loads(json.dumps(dataclasses.asdict(said)))["units"][0]["tensors"][0] == "3.bias"


def test_sixteen_bit_gradients_are_half_as_long() -> None:
    wide, narrow = (gradwire.attach(m, "none", dry_run=True, workers=4) for m in (model(), model().bfloat16()))
    assert narrow.plain_bytes == narrow.sent_bytes == wide.sent_bytes // 2


def test_a_size_that_depends_on_the_data_is_an_estimate() -> None:
    said = gradwire.attach(model(), "threshold", dry_run=True, workers=4)
    assert not said.exact
    assert "it depends on the data" in str(said)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({}, "attach: without a process group, say for how many ranks the dry run is: workers=8"),
        ({"workers": 0}, "attach: `workers` must be a whole number of at least 1, got 0"),
        (
            {"workers": 2, "codec": None},
            "attach: a dry run is of one codec, and the autopilot tries several; name a codec",
        ),
        (
            {"workers": 2, "dry_run": False},
            "attach: `workers` is for a dry run; the ranks of a training are those of its process group",
        ),
    ],
)
def test_bad_dry_runs_get_a_sentence(options: dict, sentence: str) -> None:
    asked = {"codec": "topk", "dry_run": True} | options
    assert message(gradwire.ConfigError, gradwire.attach, model(), **asked) == sentence
