"""Distributed checkpoints: every rank's own state, saved and restored, also by another number of ranks."""

from __future__ import annotations

import pytest
import torch
import torch.distributed.checkpoint as dcp
from given import gradients, owed, reduced, same, wrap
from ranks import Pool

import gradwire
from gradwire.core.errors import ConfigError
from gradwire.integrations.dcp import RankState

pytestmark = pytest.mark.dist
SHAPES = {"a": (41, 53), "b": (53,), "c": (37, 67)}


def steps(model, rank, numbers):
    return [reduced(model, gradients(SHAPES, rank, step)) for step in numbers]


def saved(rank, folder, later):
    model = wrap(SHAPES)
    handle = gradwire.attach(model, "topk(ratio=0.05)")
    steps(model, rank, range(3))
    state = {"gradwire": RankState(handle)}
    if later:
        dcp.async_save(state, checkpoint_id=folder).result()
    else:
        dcp.save(state, checkpoint_id=folder)
    return owed(handle, SHAPES), steps(model, rank, range(3, 5))


def restored(rank, folder, saved_by=None):
    model = wrap(SHAPES)
    handle = gradwire.attach(model, "topk(ratio=0.05)")
    dcp.load({"gradwire": RankState(handle, saved_by)}, checkpoint_id=folder)
    return owed(handle, SHAPES), steps(model, rank, range(3, 5))


@pytest.mark.parametrize("later", [False, True], ids=["now", "async"])
def test_each_rank_goes_on_bit_for_bit(pool: Pool, tmp_path, later):
    before, after = pool.run(3, saved, str(tmp_path), later), pool.run(3, restored, str(tmp_path))
    for (owed_then, next_then), (owed_now, next_now) in zip(before, after, strict=True):
        assert same(owed_then, owed_now)
        assert all(same(a, b) for a, b in zip(next_then, next_now, strict=True))
    assert not same(before[0][0], before[1][0])  # DCP would have saved one of them for all


@pytest.mark.parametrize("now", [2, 4])
def test_another_number_of_ranks_owes_the_same_in_sum(pool: Pool, tmp_path, now):
    before = pool.run(3, saved, str(tmp_path), False)
    after = pool.run(now, restored, str(tmp_path), 3)
    for name in SHAPES:
        wanted = torch.stack([owed_then[name] for owed_then, _ in before]).mean(0)
        found = torch.stack([owed_now[name] for owed_now, _ in after]).mean(0)
        assert torch.allclose(found, wanted, atol=1e-6)


def test_a_rank_that_saved_nothing_is_told_so(pool: Pool, tmp_path):
    pool.run(2, saved, str(tmp_path), False)
    failures = pool.outcomes(3, restored, str(tmp_path))
    assert all("Missing key in checkpoint state_dict: gradwire.rank2" in f.message for f in failures)


@pytest.mark.parametrize("wrong", [0, -1, True, "3"])
def test_a_number_of_ranks_is_checked(wrong):
    with pytest.raises(ConfigError, match="RankState: `saved_by` must be a number of ranks"):
        RankState(None, wrong)
