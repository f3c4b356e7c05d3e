"""The files that trainers save, one a rank: resumed where they were saved, on another mesh, by other ranks."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from given import agree, gradients, kept, reduced, same, wrap
from given import owed as owed_under_ddp
from ranks import Pool
from test_fsdp import REPLICAS, SCATTER, sharded, train, whole
from test_resharding import owed

import gradwire
from gradwire.trainers import rank_files

pytestmark = pytest.mark.dist
SHAPES = {"a": (41, 53), "b": (53,), "c": (37, 67)}


def resumed(rank: int, folder: Path) -> bool:
    """Whether a model and a handle made anew go on as those that saved, bit for bit."""
    model, handle = sharded("topk(ratio=0.1)", REPLICAS)
    train(model, rank, range(4))
    weights = [p.detach().clone() for p in model.parameters()]
    rank_files.save(handle, folder)
    train(model, rank, range(4, 8))
    again, other = sharded("topk(ratio=0.1)", REPLICAS)
    with torch.no_grad():
        for p, saved in zip(again.parameters(), weights, strict=True):
            p.copy_(saved)
    torch.distributed.barrier()
    rank_files.load(other, folder)
    train(again, rank, range(4, 8))
    return same(whole(again), whole(model)) and same(kept(other.state_dict()), kept(handle.state_dict()))


def test_replicas_of_shards_resume_bit_for_bit(pool: Pool, tmp_path: Path) -> None:
    """Two by two ranks: each state says two workers, and there are four files."""
    assert pool.run(4, resumed, tmp_path) == [True] * 4


def saved(rank: int, place: str, into: Path) -> dict:
    model, handle = sharded("topk(ratio=0.1)", place, tensors="all")
    train(model, rank, range(3))
    rank_files.save(handle, into)
    return handle.state_dict()


def moved(rank: int, place: str, folder: Path, into: Path) -> tuple:
    """Load, save again, and go on."""
    model, handle = sharded("topk(ratio=0.1)", place, tensors="all")
    rank_files.load(handle, folder)
    rank_files.save(handle, into)
    state = handle.state_dict()
    train(model, rank, range(3, 5))
    return state, whole(model), handle.stats()["steps"]


@pytest.mark.parametrize(
    "places",
    [
        ((SCATTER, 2), (SCATTER, 4), (SCATTER, 2)),
        ((REPLICAS, 4), (REPLICAS, 2), (REPLICAS, 4)),
        ((REPLICAS, 4), (SCATTER, 4), (REPLICAS, 4)),
        ((SCATTER, 2), (REPLICAS, 4), (SCATTER, 2)),
    ],
    ids=lambda places: " to ".join(f"{place} of {world}" for place, world in places),
)
def test_on_another_mesh_the_files_owe_the_same(pool: Pool, tmp_path: Path, places: tuple) -> None:
    folder = tmp_path / "0"
    wanted = owed(pool.run(places[0][1], saved, places[0][0], folder))
    assert all(float(found.norm()) > 0 for found in wanted.values())
    for number, (place, world) in enumerate(places[1:], 1):
        found = pool.run(world, moved, place, folder, tmp_path / str(number))
        folder = tmp_path / str(number)
        for name, now in owed([state for state, _, _ in found]).items():
            assert torch.allclose(now, wanted[name], atol=1e-6), name
        assert agree([weights for _, weights, _ in found])
        assert found[0][2] == 5


def under_ddp(rank: int, folder: Path | None, into: Path | None) -> dict:
    model = wrap(SHAPES)
    handle = gradwire.attach(model, "topk(ratio=0.05)")
    if folder is None:
        for step in range(3):
            reduced(model, gradients(SHAPES, rank, step))
    else:
        rank_files.load(handle, folder)
    if into is not None:
        rank_files.save(handle, into)
    return owed_under_ddp(handle, SHAPES)


@pytest.mark.parametrize("now", [2, 4])
def test_another_number_of_ranks_under_ddp_owes_the_same(pool: Pool, tmp_path: Path, now: int) -> None:
    before = pool.run(3, under_ddp, None, tmp_path)
    after = pool.run(now, under_ddp, tmp_path, None)
    for name in SHAPES:
        wanted = torch.stack([found[name] for found in before]).mean(0)
        assert torch.allclose(torch.stack([found[name] for found in after]).mean(0), wanted, atol=1e-6)


def refused(rank: int, folder: Path) -> str:
    _, handle = sharded("efsignsgd", SCATTER)
    with pytest.raises(gradwire.StateMismatch) as problem:
        rank_files.load(handle, folder)
    return str(problem.value)


def test_files_of_another_codec_are_refused_wherever_they_come_from(pool: Pool, tmp_path: Path) -> None:
    pool.run(2, saved, SCATTER, tmp_path)
    for world in (2, 4):
        for told in pool.run(world, refused, tmp_path):
            assert told.startswith("gradwire: this state belongs to topk(ratio=0.1) with memory error_feedback, and ")
