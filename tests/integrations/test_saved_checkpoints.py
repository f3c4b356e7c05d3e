"""Saved states of real runs: of another model, cut short, mixed up between ranks, and whatever was attached."""

from __future__ import annotations

import copy
import io
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from given import agree, gradients, message, network, reduced, same, train, wrap
from ranks import Failure, Pool
from test_fsdp import REPLICAS, SCATTER, sharded
from test_fsdp import train as train_sharded
from torch.nn.parallel import DistributedDataParallel

import gradwire
from gradwire.integrations.dcp import read_state
from gradwire.trainers import rank_files

pytestmark = pytest.mark.dist
SHAPES = {"a": (41, 53), "b": (37, 67), "c": (5,)}


def attached(kind: str) -> tuple[Any, Any]:
    """What has a state, and what makes a step of it."""
    if kind in (REPLICAS, SCATTER):
        model, handle = sharded("topk(ratio=0.1)", kind, tensors="all")
        return handle, lambda rank, step: train_sharded(model, rank, range(step, step + 1))
    if kind == "local steps":
        model = network()
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        local = gradwire.LocalSteps(model, optimizer, "qsparse(ratio=0.1)", steps=2)
        return local, lambda rank, step: (train(model, optimizer, range(step, step + 1)), local.step())
    model = DistributedDataParallel(network())
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    options: dict[str, Any] = {
        "topk": {"codec": "topk(ratio=0.05)"},
        "autopilot": {"codec": "auto"},
        "controller": {"controller": gradwire.Warmup(codec="topk(ratio=0.05)"), "optimizer": optimizer},
        "momentum": {"codec": "dgc", "optimizer": optimizer},
        "measured": {"codec": "qsgd", "strategy": "measured"},
        "powersgd": {"codec": "powersgd"},
    }[kind]
    return gradwire.attach(model, **options), lambda rank, step: train(model, optimizer, range(step, step + 1))


def save_and_lose(rank: int, kind: str) -> list:
    """What `weights_only` gives back, and what becomes of a state without one of its keys."""
    handle, step = attached(kind)
    for n in range(3):
        step(rank, n)
    state, file = handle.state_dict(), io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    back = torch.load(file, weights_only=True)
    lost = {}
    for key in state.keys() - {"format_version"}:
        lost[key] = message(gradwire.StateMismatch, handle.load_state_dict, {k: v for k, v in back.items() if k != key})
    handle.load_state_dict(back)
    again = handle.state_dict()
    return [lost, again["outline"] == state["outline"], state["step"], again["step"]]


KINDS = ["topk", "autopilot", "controller", "momentum", "measured", "powersgd", "local steps", SCATTER, REPLICAS]


@pytest.mark.parametrize("kind", KINDS)
def test_every_state_is_plain_and_no_key_of_it_can_be_missing(pool: Pool, kind: str) -> None:
    world = 4 if kind == REPLICAS else 2
    for lost, whole, step, again in pool.run(world, save_and_lose, kind):
        for key, told in lost.items():
            assert f"has no {key!r}: it was cut short" in told
        assert whole
        assert step == again


def save(rank: int, shapes: dict, steps: int) -> dict:
    model = wrap(shapes)
    handle = gradwire.attach(model, "topk(ratio=0.05)")
    for step in range(steps):
        reduced(model, gradients(shapes, rank, step))
    return handle.state_dict()


def load(rank: int, states: list[dict]) -> str:
    return message(
        gradwire.StateMismatch, gradwire.attach(wrap(SHAPES), "topk(ratio=0.05)").load_state_dict, states[rank]
    )


@pytest.mark.parametrize(
    "other, told",
    [
        ({"d": (3,)}, "has [3] for 'd', and this one does not have it"),
        ({"c": (6,)}, "has [6] for 'c', and this one has [5] for it"),
        ({"a": None}, "does not have 'a', and this one has [41, 53] for it"),
    ],
    ids=["one more", "another shape", "one less"],
)
def test_a_model_is_another_also_where_its_memories_would_fit(pool: Pool, other: dict, told: str) -> None:
    """Vectors have no memory, and a parameter that is new here has none yet: that must not pass for the same model."""
    shapes = {name: shape for name, shape in (SHAPES | other).items() if shape is not None}
    for refused in pool.run(2, load, pool.run(2, save, shapes, 1)):
        assert refused == (
            f"gradwire: this state was saved with a model that {told}; load the state that was saved with this model, "
            "or start without it"
        )


def go_on(rank: int, states: list[dict | None]) -> dict:
    model = wrap(SHAPES)
    handle = gradwire.attach(model, "topk(ratio=0.05)")
    if states[rank] is not None:
        handle.load_state_dict(states[rank])
    return reduced(model, gradients(SHAPES, rank, 9))


@pytest.mark.parametrize("mixed", ["steps", "only one"])
def test_ranks_that_loaded_different_checkpoints_do_not_go_on(pool: Pool, mixed: str) -> None:
    """Each rank's own file is whole, and of its own rank: only together they are wrong."""
    early, late = pool.run(2, save, SHAPES, 1), pool.run(2, save, SHAPES, 2)
    states = [early[0], late[1]] if mixed == "steps" else [None, late[1]]
    here, low = ([1, 2], 1) if mixed == "steps" else ([0, 2], 0)
    for rank, outcome in enumerate(pool.outcomes(2, go_on, states)):
        assert isinstance(outcome, Failure)
        assert outcome.kind == "StateMismatch"
        assert outcome.message == (
            f"gradwire: the ranks go on from different states: this one from step {here[rank]}, all of them from steps "
            f"{low} to 2; load the states of one checkpoint on all ranks, or on none"
        )
    assert agree(pool.run(2, go_on, late))


def tear(rank: int, folder: Path) -> list[str]:
    """A file that ends in the middle, one with a swapped name, one with code in it; and one that was not finished."""
    model = wrap(SHAPES)
    handle = gradwire.attach(model, "topk(ratio=0.05)")
    reduced(model, gradients(SHAPES, rank, 0))
    mine = folder / str(rank)
    for name in (f"gradwire_rank{r}.pt" for r in range(2)):
        mine.mkdir(exist_ok=True)
        torch.save(handle.state_dict() | {"rank": int(name[-4])}, mine / name)
    rank_files.save(handle, mine)
    rank_files.load(handle, mine)
    file = mine / f"gradwire_rank{rank}.pt"
    whole, told = file.read_bytes(), []
    for cut in (0, 10, len(whole) // 2, len(whole) - 1):
        file.write_bytes(whole[:cut])
        told.append(message(gradwire.StateMismatch, rank_files.load, handle, mine))
    torch.save(copy.deepcopy(handle.state_dict()) | {"rank": 1 - rank}, file)
    told.append(message(gradwire.StateMismatch, rank_files.load, handle, mine))
    torch.save({"code": print, "workers": 2}, file)
    told.append(message(gradwire.StateMismatch, rank_files.load, handle, mine))
    return [*told, str([f.suffix for f in mine.iterdir() if f.suffix != ".pt"])]


def test_files_that_were_cut_short_or_swapped_are_refused(pool: Pool, tmp_path: Path) -> None:
    for rank, (*cuts, swapped, code, left) in enumerate(pool.run(2, tear, tmp_path)):
        for told in cuts:
            assert told.startswith(f"gradwire: {tmp_path}/{rank}/gradwire_rank{rank}.pt cannot be read (")
            assert told.endswith("it was cut short, or is no saved state; resume from another checkpoint")
        assert f"was saved by rank {1 - rank} of 2, and this is rank {rank} of 2" in swapped
        assert "cannot be read (Weights only load failed" in code
        assert left == "[]"  # what was written half has its own name, and none is left


def share_a_folder(rank: int, folder: Path) -> tuple[list[str], bool]:
    model = wrap(SHAPES)
    handle = gradwire.attach(model, "topk(ratio=0.05)")
    reduced(model, gradients(SHAPES, rank, 0))
    before = handle.state_dict()
    rank_files.save(handle, folder)
    reduced(model, gradients(SHAPES, rank, 1))
    dist.barrier()
    rank_files.load(handle, folder)
    return sorted(file.name for file in folder.iterdir()), same(before["state"], handle.state_dict()["state"])


def test_ranks_have_a_file_each_in_one_folder(pool: Pool, tmp_path: Path) -> None:
    names = [f"gradwire_rank{rank}.pt" for rank in range(3)]
    assert pool.run(3, share_a_folder, tmp_path) == [(names, True)] * 3


def test_a_write_that_fails_leaves_the_checkpoint_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Handle:
        def state_dict(self) -> dict:
            return {"step": 1}

    monkeypatch.setattr("torch.distributed.get_rank", lambda: 0)
    rank_files.save(Handle(), tmp_path)
    before = (tmp_path / "gradwire_rank0.pt").read_bytes()

    def full(state: object, path: Path) -> None:
        path.write_bytes(b"half of it")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("torch.save", full)
    with pytest.raises(OSError, match="No space left"):
        rank_files.save(Handle(), tmp_path)
    assert (tmp_path / "gradwire_rank0.pt").read_bytes() == before
    assert read_state(tmp_path / "gradwire_rank0.pt", "it") == {"step": 1}
