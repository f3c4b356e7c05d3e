"""Reduce-scatter: each worker's shard of the mean, with nothing lost over many steps."""

from __future__ import annotations

from contextlib import nullcontext

import pytest
import torch

import gradwire
from gradwire import checkpoint
from gradwire.collectives import local
from gradwire.conformance import lockstep
from gradwire.core.layout import Layout
from gradwire.engine import Engine
from gradwire.kernels import backend
from gradwire.sharded import reduce_scatter

LAYOUT = Layout.of([("a", (40, 30)), ("b", (16,)), ("c", (25, 40))])
WORKERS, SHARD = 4, LAYOUT.numel // 4
CODECS = ["bf16", "blockint", "blockint(bits=8, block=64)", "efsignsgd", "topk(ratio=0.1)", "natural"]


def normal(seed):
    return torch.randn(WORKERS, LAYOUT.numel, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("kernels", [nullcontext, backend.plain_torch])
@pytest.mark.parametrize("codec", CODECS)
def test_shards_and_what_is_owed_add_up_to_the_mean_gradients(codec, kernels):
    engine = Engine(codec, memory="error_feedback", ranks=range(WORKERS), workers=WORKERS, tensors="all")
    sent, wanted = torch.zeros(LAYOUT.numel, dtype=torch.float64), torch.zeros(LAYOUT.numel, dtype=torch.float64)
    for step in range(8):
        x, out = normal(step), torch.empty(WORKERS, SHARD)
        before = x.clone()
        with kernels():  # rows of no multiple of a block
            result = local.run(reduce_scatter(engine, x, LAYOUT, out), WORKERS)
            engine.finish_step([result])
        assert x.equal(before)
        sent += out.reshape(-1).double()
        wanted += x.double().mean(0)
    owed = [
        torch.cat([checkpoint.owed(engine, s.name, s.shape, rank).reshape(-1) for s in LAYOUT.segments])
        for rank in range(WORKERS)
    ]
    assert torch.stack(owed).abs().max() > 0
    torch.testing.assert_close(sent + torch.stack(owed).double().mean(0), wanted, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("codec", CODECS)
def test_ranks_apart_get_what_rows_get(codec):
    rows = Engine(codec, memory="error_feedback", ranks=range(WORKERS), workers=WORKERS, tensors="all")
    apart = lockstep.engines(WORKERS, codec, memory="error_feedback", tensors="all")
    for step in range(3):
        x, out, each = normal(step), torch.empty(WORKERS, SHARD), torch.empty(WORKERS, SHARD)
        rows.finish_step([local.run(reduce_scatter(rows, x, LAYOUT, out), WORKERS)])
        programs = [reduce_scatter(e, x[i : i + 1], LAYOUT, each[i : i + 1]) for i, e in enumerate(apart)]
        for engine, result in zip(apart, lockstep.run(programs), strict=True):
            engine.finish_step([result])
        assert out.equal(each)


def test_a_bad_element_of_one_shard_stops_all_memories():
    engines = lockstep.engines(WORKERS, "efsignsgd", tensors="all")
    for step in range(2):
        x = normal(step)
        if step:
            x[1, -1] = float("nan")
        outs = torch.empty(WORKERS, SHARD)
        before = [checkpoint.owed(e, "a", (40, 30)) for e in engines]
        programs = [reduce_scatter(e, x[i : i + 1], LAYOUT, outs[i : i + 1]) for i, e in enumerate(engines)]
        for engine, result in zip(engines, lockstep.run(programs), strict=True):
            engine.finish_step([result])
    assert outs[-1].isnan().any()
    assert [e.skipped_steps for e in engines] == [1] * WORKERS
    assert all(old.equal(checkpoint.owed(e, "a", (40, 30))) for old, e in zip(before, engines, strict=True))


def test_what_cannot_be_scattered_is_refused_with_the_reason():
    engine = Engine("powersgd", workers=WORKERS, tensors="all")
    with pytest.raises(gradwire.Incompatible, match=r"^powersgd cannot run in a reduce-scatter: a shard"):
        next(reduce_scatter(engine, torch.zeros(1, LAYOUT.numel), LAYOUT, torch.zeros(1, SHARD)))
    engine = Engine("blockint", workers=WORKERS, tensors="all")
    with pytest.raises(gradwire.Incompatible, match=r"need an output of 554 elements each, got 3; pad the gradient"):
        next(reduce_scatter(engine, torch.zeros(1, LAYOUT.numel), LAYOUT, torch.zeros(1, 3)))
