"""Lightning's checkpoint holds a list of all ranks' states: each finds its own, or they are put together."""

from __future__ import annotations

import importlib.util
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist
from given import gradients, owed, reduced, same, wrap
from ranks import Pool

pytestmark = [
    pytest.mark.dist,
    pytest.mark.trainers,
    pytest.mark.skipif(importlib.util.find_spec("lightning") is None, reason="needs lightning"),
]
SHAPES = {"a": (41, 53), "b": (53,), "c": (37, 67)}


def trained(rank, saved):
    """What the callback does in a run that begins with a checkpoint, or with none, and writes one."""
    from gradwire.trainers.lightning import Compression

    model, callback = wrap(SHAPES), Compression("topk(ratio=0.05)")
    trainer = SimpleNamespace(world_size=dist.get_world_size(), strategy=SimpleNamespace(model=model))
    callback.on_load_checkpoint(trainer, None, saved)
    callback.on_train_start(trainer, None)
    if not saved:
        for step in range(3):
            reduced(model, gradients(SHAPES, rank, step))
    written = {}
    callback.on_save_checkpoint(trainer, None, written)
    return owed(callback.handle, SHAPES), written


@pytest.mark.parametrize("now", [2, 3, 4])
def test_a_list_goes_to_as_many_ranks_and_to_others(pool: Pool, now: int) -> None:
    before = pool.run(3, trained, {})
    assert [len(written.get("gradwire", [])) for _, written in before] == [3, 0, 0]
    after = pool.run(now, trained, before[0][1])
    if now == 3:
        assert all(same(owed_now, owed_then) for (owed_now, _), (owed_then, _) in zip(after, before, strict=True))
    for name in SHAPES:
        wanted = torch.stack([found[name] for found, _ in before]).mean(0)
        assert torch.allclose(torch.stack([found[name] for found, _ in after]).mean(0), wanted, atol=1e-6)
