"""A sharded model, its optimizer and its handle in one distributed checkpoint, on the mesh that saved it."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp
from ranks import Pool
from test_fsdp import REPLICAS, SCATTER, batch, sharded, whole
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict

from gradwire.integrations.dcp import RankState

pytestmark = pytest.mark.dist
CODEC = "topk(ratio=0.1)"


def made(place: str) -> tuple[nn.Module, torch.optim.Optimizer, Any]:
    model, handle = sharded(CODEC, place)
    return model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9), handle


def steps(model: nn.Module, optimizer: torch.optim.Optimizer, rank: int, numbers: range) -> torch.Tensor:
    for step in numbers:
        optimizer.zero_grad()
        x, y = batch(rank, step)
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
    return whole(model)


def everything(model: nn.Module, optimizer: torch.optim.Optimizer, handle: Any) -> dict[str, Any]:
    weights, moments = get_state_dict(model, optimizer)
    return {"model": weights, "optimizer": moments, "gradwire": RankState(handle)}


def saved(rank: int, place: str, folder: str, later: bool) -> torch.Tensor:
    model, optimizer, handle = made(place)
    steps(model, optimizer, rank, range(3))
    state = everything(model, optimizer, handle)
    if later:
        dcp.async_save(state, checkpoint_id=folder).result()
    else:
        dcp.save(state, checkpoint_id=folder)
    return steps(model, optimizer, rank, range(3, 6))


def restored(rank: int, place: str, folder: str, with_handle: bool = True) -> torch.Tensor:
    model, optimizer, handle = made(place)
    state = everything(model, optimizer, handle)
    if not with_handle:
        del state["gradwire"]
    dcp.load(state, checkpoint_id=folder)
    set_state_dict(model, optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"])
    return steps(model, optimizer, rank, range(3, 6))


@pytest.mark.parametrize("later", [False, True], ids=["now", "async"])
@pytest.mark.parametrize(("place", "world"), [(SCATTER, 2), (REPLICAS, 4)])
def test_a_training_goes_on_bit_for_bit(pool: Pool, tmp_path, place, world, later):
    wanted = pool.run(world, saved, place, str(tmp_path), later)
    found = pool.run(world, restored, place, str(tmp_path))
    assert all(torch.equal(one, wanted[0]) for one in (*wanted, *found))
    without = pool.run(world, restored, place, str(tmp_path), False)  # what was owed is not in the model
    assert not torch.equal(without[0], wanted[0])
