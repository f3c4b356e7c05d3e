"""`gradwire bench overlap`: what its numbers mean. The measurement itself needs a GPU."""

from __future__ import annotations

import pytest
import torch

from gradwire.cli.bench.overlap import cells, summary
from gradwire.core.errors import ConfigError
from gradwire.laboratory.bench import overlap
from gradwire.laboratory.bench.overlap import Measured, Plan, to_records

ON_GPU = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


@pytest.mark.parametrize(
    "both, share",
    [(10.0, 1.0), (14.0, 0.0), (12.0, 0.5), (15.0, -0.25)],
)
def test_what_is_saved_over_what_the_codec_takes(both, share):
    assert Measured("topk", 3 * (10.0,), 3 * (4.0,), 3 * (both,), 7).hidden.middle == pytest.approx(share)


def test_a_line_of_the_table(monkeypatch):
    with monkeypatch.context() as patched:
        patched.setattr(torch.cuda, "is_available", lambda: True)
        plan = Plan(model="resnet20", batch=8, codecs=("topk",), turns=3)
    (record,) = to_records(plan, [Measured("topk", (0.02,) * 3, (0.01,) * 3, (0.024, 0.026, 0.028), 20)])
    assert cells(record) == ["topk", "20.00", "0.500", "0.867", "0.40 (0.20 to 0.60)"]
    assert summary(plan.command, [record])["measured"][0]["hidden"] == pytest.approx(0.4)
    assert plan.command == (
        'gradwire bench overlap --model resnet20 --batch 8 --codec "topk" --workers 4 --precision bf16 --turns 3'
    )


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_without_a_gpu_it_says_so():
    with pytest.raises(ConfigError, match="bench overlap: two streams are a GPU's, and there is no CUDA device here"):
        Plan(model="resnet20", batch=8)


@pytest.mark.gpu
@ON_GPU
def test_two_streams_are_not_slower_than_both_after_each_other_by_much():
    plan = Plan(model="resnet20", batch=64, codecs=("blockint(bits=8)", "powersgd(rank=4)"), turns=7)
    for found in overlap.measure(plan):
        assert found.count >= 1
        assert -0.5 < found.hidden.middle < 1.2


@pytest.mark.gpu
@ON_GPU
def test_a_pass_touches_nothing_but_its_own_tensors():
    """A graph reads and writes by address: of tensors that were given back, it would overwrite the next owner's."""
    passes = overlap._captured(Plan(model="resnet20", batch=8, codecs=("topk",)))
    others = [torch.full((n,), 7.0, device="cuda") for n in (16, 64, 3 * 32 * 32 * 8, 1 << 20) for _ in range(200)]
    counted = passes.module.get_buffer("bn1.num_batches_tracked")
    before = int(counted)
    passes.graph.replay()
    assert int(counted) == before + 1
    assert all(bool((t == 7).all()) for t in others)
