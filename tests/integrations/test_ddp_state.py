"""Saving and loading: a resumed run must not notice, another world size must lose nothing, other states are refused."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp
from given import SHAPES, agree, buckets, gradients, kept, message, network, owed, reduced, same, train, weights, wrap
from ranks import Pool
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

import gradwire

pytestmark = pytest.mark.dist
MODES = ["overlap", "after_backward"]
CODECS = [
    ("topk(ratio=0.05)", "all_gather"),
    ("topk(ratio=0.05)", "scatter_reduce_gather"),
    ("efsignsgd(block=64)", "scatter_reduce_gather"),
    ("powersgd(rank=2)", "auto"),
    ("signsgd", "scatter_reduce_gather"),
]

# ---------------------------------------------------------------- resume


class Run:
    """One rank's training, which can be saved to a file and continued from it."""

    def __init__(self, codec: str, strategy: str, mode: str, options: dict, memory: str = "default") -> None:
        self.model = DistributedDataParallel(network(), bucket_cap_mb=0.001, **options)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.02, momentum=0.9)
        self.handle = gradwire.attach(
            self.model, codec, strategy=strategy, mode=mode, memory=memory, tensors="all", seed=5
        )
        self.seen: list[Tensor] = []

    def train(self, steps: range) -> None:
        train(self.model, self.optimizer, steps, lambda step: self.seen.append(weights(self.model)))

    def save(self, path: Path) -> None:
        parts = {"model": self.model.module, "optimizer": self.optimizer, "gradwire": self.handle}
        torch.save({name: part.state_dict() for name, part in parts.items()}, path)

    def load(self, path: Path) -> None:
        saved = torch.load(path, weights_only=True)
        self.model.module.load_state_dict(saved["model"])
        self.optimizer.load_state_dict(saved["optimizer"])
        self.handle.load_state_dict(saved["gradwire"])


def train_and_save(rank: int, folder: Path, at: int, total: int, *setup: Any) -> tuple[list[Tensor], dict]:
    run = Run(*setup)
    run.train(range(at))
    run.save(folder / f"{rank}.pt")
    run.train(range(at, total))
    return run.seen[at:], run.handle.state_dict()


def load_and_train(rank: int, folder: Path, at: int, total: int, *setup: Any) -> tuple[list[Tensor], dict]:
    run, file = Run(*setup), folder / f"{rank}.pt"
    run.load(file)
    run.save(file)  # before its first step it has all that it was given
    run.load(file)
    run.train(range(at, total))
    return run.seen, run.handle.state_dict()


def check_resume(pool: Pool, folder: Path, at: int, total: int, *setup: Any) -> None:
    whole = pool.run(3, train_and_save, folder, at, total, *setup)
    pool.stop()  # the second half runs in new processes
    resumed = pool.run(3, load_and_train, folder, at, total, *setup)
    for (wanted, end), (got, resumed_end) in zip(whole, resumed, strict=True):
        assert len(wanted) == len(got) == total - at
        for step, (a, b) in enumerate(zip(wanted, got, strict=True), start=at):
            assert torch.equal(a, b), f"step {step}"
        assert same(end, resumed_end)


@pytest.mark.parametrize(
    "codec, strategy, mode", [(*c, "overlap") for c in CODECS] + [(*c, "after_backward") for c in CODECS[1:4]]
)
def test_a_resumed_run_is_the_uninterrupted_one(
    pool: Pool, tmp_path: Path, codec: str, strategy: str, mode: str
) -> None:
    check_resume(pool, tmp_path, 5, 10, codec, strategy, mode, {})


@pytest.mark.parametrize(
    "options",
    [{"static_graph": True}, {"find_unused_parameters": True}, {"gradient_as_bucket_view": True}],
    ids=lambda o: "".join(o),
)
@pytest.mark.parametrize("mode", MODES)
def test_a_resumed_run_is_the_uninterrupted_one_whatever_ddp_does_with_buckets(
    pool: Pool, tmp_path: Path, options: dict, mode: str
) -> None:
    check_resume(pool, tmp_path, 5, 10, "efsignsgd(block=64)", "scatter_reduce_gather", mode, options)


UNSETTLED = pytest.mark.xfail(reason="after its first step DDP has not chosen yet which buckets come next")


@pytest.mark.parametrize(
    "at, mode",
    [pytest.param(1, "overlap", marks=UNSETTLED), (2, "overlap"), (1, "after_backward"), (2, "after_backward")],
)
def test_a_run_saved_after_its_first_steps_is_resumed_exactly(pool: Pool, tmp_path: Path, at: int, mode: str) -> None:
    check_resume(pool, tmp_path, at, 6, "efsignsgd(block=64)", "scatter_reduce_gather", mode, {})


def test_stochastic_codecs_and_momentum_correction_resume_exactly(pool: Pool, tmp_path: Path) -> None:
    check_resume(pool, tmp_path, 4, 8, "qsgd", "auto", "overlap", {})
    check_resume(pool, tmp_path, 4, 8, "topk(ratio=0.05)", "auto", "overlap", {}, "momentum_correction(momentum=0.5)")


def start_from_nothing(rank: int, loads: bool) -> list[dict]:
    """A state of before the first step, which knows no units yet."""
    model = wrap()
    handle = gradwire.attach(model, "topk(ratio=0.05)")
    if loads:
        handle.load_state_dict(handle.state_dict())
    return [reduced(model, gradients(SHAPES, rank, step)) for step in range(3)]


def test_a_state_of_before_the_first_step_changes_nothing(pool: Pool) -> None:
    assert agree(pool.run(3, start_from_nothing, False) + pool.run(3, start_from_nothing, True))


def save_small_buckets(rank: int) -> dict:
    model = wrap()
    handle = gradwire.attach(model, "topk(ratio=0.05)")
    for step in range(3):
        reduced(model, gradients(SHAPES, rank, step))
    return handle.state_dict()


def resume_with_large_ones(rank: int, states: list[dict]) -> tuple[list, list]:
    """The units of three steps, and DDP's buckets at the end."""
    model = wrap(bucket_cap_mb=0.02)
    handle = gradwire.attach(model, "topk(ratio=0.05)")
    handle.load_state_dict(states[rank])
    plans = []
    for step in range(3, 6):
        reduced(model, gradients(SHAPES, rank, step))
        plans.append(handle.state_dict()["plan"])
    return plans, buckets(model)


def test_saved_units_hold_until_ddp_has_rebuilt_its_buckets(pool: Pool) -> None:
    states = pool.run(2, save_small_buckets)
    for plans, now in pool.run(2, resume_with_large_ones, states):
        assert plans[0] == states[0]["plan"]
        assert len(plans[0]) > len(now)
        assert plans[-1] == now


def load_in_place(rank: int) -> tuple[list[dict], list[dict]]:
    """Four steps, and again the last two of them after going back."""
    model = wrap()
    handle = gradwire.attach(model, "topk(ratio=0.05)")
    first = [reduced(model, gradients(SHAPES, rank, step)) for step in (0, 1)]
    saved = copy.deepcopy(handle.state_dict())
    first += [reduced(model, gradients(SHAPES, rank, step)) for step in (2, 3)]
    handle.load_state_dict(saved)
    return first[2:], [reduced(model, gradients(SHAPES, rank, step)) for step in (2, 3)]


def test_a_handle_can_go_back(pool: Pool) -> None:
    for first, again in pool.run(3, load_in_place):
        assert same(first, again)


def mutate_saved(rank: int) -> tuple[dict, dict]:
    model = wrap()
    handle = gradwire.attach(model, "topk(ratio=0.05)", strategy="scatter_reduce_gather")
    reduced(model, gradients(SHAPES, rank, 0))
    saved = handle.state_dict()
    before = copy.deepcopy(saved)
    reduced(model, gradients(SHAPES, rank, 1))
    handle.load_state_dict(saved)
    reduced(model, gradients(SHAPES, rank, 1))
    return before, saved


def test_training_on_leaves_a_saved_state_as_it_is(pool: Pool) -> None:
    for before, saved in pool.run(2, mutate_saved):
        assert same(before, saved)


# ---------------------------------------------------------------- what is saved


def save(rank: int, codec: str, strategy: str) -> dict:
    model = wrap()
    handle = gradwire.attach(model, codec, strategy=strategy)
    for step in range(3):
        reduced(model, gradients(SHAPES, rank, step))
    return handle.state_dict()


def leaves(value: Any) -> list[Any]:
    if isinstance(value, dict):
        return [*value, *(leaf for v in value.values() for leaf in leaves(v))]
    return [leaf for v in value for leaf in leaves(v)] if isinstance(value, list) else [value]


@pytest.mark.parametrize("codec, strategy", CODECS)
def test_a_state_holds_tensors_and_plain_values_by_parameter_name(pool: Pool, codec: str, strategy: str) -> None:
    for rank, state in enumerate(pool.run(3, save, codec, strategy)):
        assert {type(leaf) for leaf in leaves(state)} <= {str, int, float, Tensor}
        assert (state["rank"], state["workers"], state["step"]) == (rank, 3, 3)
        assert sorted(n for unit in state["plan"] for n in unit) == sorted(SHAPES)
        for entries in kept(state).values():
            assert set(entries) <= set(SHAPES)


@pytest.mark.parametrize("codec, strategy", CODECS[:4])
def test_memories_differ_by_rank(pool: Pool, codec: str, strategy: str) -> None:
    errors = [state["state"]["error"] for state in pool.run(3, save, codec, strategy)]
    for name in ("a", "c", "g"):
        assert not torch.equal(errors[0][name]["tensor"], errors[1][name]["tensor"])
        assert not torch.equal(errors[1][name]["tensor"], errors[2][name]["tensor"])


def checkpoint(rank: int, folder: Path) -> tuple[dict, dict]:
    """Through torch's distributed checkpoint, under a key of this rank's own."""
    state = save(rank, "topk(ratio=0.05)", "scatter_reduce_gather")["state"]
    back = {
        kind: {n: {"tensor": torch.zeros_like(e["tensor"])} for n, e in kept.items()} for kind, kept in state.items()
    }
    dcp.save({f"gradwire.{rank}": state}, checkpoint_id=folder)
    dcp.load({f"gradwire.{rank}": back}, checkpoint_id=folder)
    return state, back


@pytest.mark.filterwarnings("default")
def test_a_distributed_checkpoint_brings_each_rank_its_own_memory(pool: Pool, tmp_path: Path) -> None:
    for state, back in pool.run(3, checkpoint, tmp_path):
        for kind, entries in state.items():
            for name, entry in entries.items():
                assert torch.equal(entry["tensor"], back[kind][name]["tensor"])


# ---------------------------------------------------------------- another world size


def continue_from(rank: int, codec: str, strategy: str, states: Sequence[dict] | None, steps: range) -> tuple:
    """Sums of what was applied, what is owed, and the state in the end."""
    model = wrap()
    handle = gradwire.attach(model, codec, strategy=strategy)
    if states is not None:
        handle.load_state_dict(states)
    applied = {n: torch.zeros(s, dtype=torch.float64) for n, s in SHAPES.items()}
    for step in steps:
        for name, gradient in reduced(model, gradients(SHAPES, rank, step)).items():
            applied[name] += gradient
    return applied, owed(handle, SHAPES), handle.state_dict()


@pytest.mark.parametrize("codec, strategy", [*CODECS[:4], ("randomk(ratio=0.1)", "all_reduce")])
def test_another_world_size_loses_nothing(pool: Pool, codec: str, strategy: str) -> None:
    states, applied = None, {n: torch.zeros(s, dtype=torch.float64) for n, s in SHAPES.items()}
    given = {n: torch.zeros(s, dtype=torch.float64) for n, s in SHAPES.items()}
    for workers, steps in ((2, range(3)), (4, range(3, 6)), (3, range(6, 8)), (2, range(8, 10))):
        results = pool.run(workers, continue_from, codec, strategy, states, steps)
        assert agree([r[0] for r in results])
        states = [r[2] for r in results]
        assert [s["step"] for s in states] == workers * [steps.stop]
        for name in SHAPES:
            applied[name] += results[0][0][name]
            given[name] += sum(gradients(SHAPES, r, s)[name].double() for r in range(workers) for s in steps) / workers
            left = torch.stack([r[1][name].double() for r in results]).mean(0)
            assert torch.allclose(applied[name] + left, given[name], rtol=0, atol=1e-4), (workers, name)


def load_list(rank: int, codec: str, states: Sequence[dict]) -> dict:
    handle = gradwire.attach(wrap(), codec)
    handle.load_state_dict(states)
    return handle.state_dict()


def test_the_list_of_all_ranks_gives_each_its_own_where_the_size_is_the_same(pool: Pool) -> None:
    states = pool.run(3, save, "topk(ratio=0.05)", "auto")
    for state, loaded in zip(states, pool.run(3, load_list, "topk(ratio=0.05)", states[::-1]), strict=True):
        assert same(kept(state), kept(loaded))


def keep_owner_memory_alone(rank: int, states: Sequence[dict] | None) -> dict:
    """A codec without a memory, whose shards' owners keep one."""
    model = wrap()
    handle = gradwire.attach(model, "qsgd", strategy="scatter_reduce_gather(owner_memory=True)")
    if states is None:
        reduced(model, gradients(SHAPES, rank, 0))
    else:
        handle.load_state_dict(states)
    return handle.state_dict()


def total(states: Sequence[dict]) -> dict[str, Tensor]:
    """What all owners together keep."""
    sums = {n: torch.zeros(torch.Size(s).numel()) for n, s in SHAPES.items()}
    for state in states:
        for name, entry in state["state"].get("owner_error", {}).items():
            sums[name][entry["start"] : entry["start"] + entry["tensor"].numel()] += entry["tensor"]
    return sums


def test_owners_memories_without_workers_memories_survive_another_world_size(pool: Pool) -> None:
    states = pool.run(2, keep_owner_memory_alone, None)
    assert all(total(states)[name].any() for name in ("a", "c", "g"))
    assert same(total(states), total(pool.run(3, keep_owner_memory_alone, states)))


# ---------------------------------------------------------------- what is refused


def refusals(rank: int, codec: str, states: list[Any], **options: Any) -> list[str]:
    handle = gradwire.attach(wrap(), codec, **options)
    return [message(gradwire.StateMismatch, handle.load_state_dict, state) for state in states]


def test_the_state_of_another_rank_is_refused(pool: Pool) -> None:
    states = pool.run(4, save, "topk", "auto")
    told = (
        "gradwire: this state was saved by rank {} of 4, and this is rank {} of 2. Memories belong to a rank: load "
        "this rank's own file, or, after a change of the number of workers, pass the list of all 4 ranks' state dicts."
    )
    for rank, messages in enumerate(pool.run(2, refusals, "topk", [states[1], states[3], states[:3], states[2:]])):
        assert messages == [told.format(saved, rank) for saved in (1, 3, 0, 2)]


def swap(rank: int, states: list[dict]) -> str:
    handle = gradwire.attach(wrap(), "topk")
    return message(gradwire.StateMismatch, handle.load_state_dict, states[1 - rank])


def test_the_state_of_a_neighbour_is_refused(pool: Pool) -> None:
    told = pool.run(2, swap, pool.run(2, save, "topk", "auto"))
    assert told == [
        f"gradwire: this state was saved by rank {1 - rank} of 2, and this is rank {rank} of 2. Memories belong to a "
        "rank: load this rank's own file, or, after a change of the number of workers, pass the list of all 2 ranks' "
        "state dicts."
        for rank in (0, 1)
    ]


def test_the_same_rank_twice_is_no_list_of_all_ranks(pool: Pool) -> None:
    states = pool.run(2, save, "topk(ratio=0.05)", "auto")
    for rank, told in enumerate(pool.run(3, refusals, "topk(ratio=0.05)", [[states[0], states[0]]])):
        assert told == [
            f"gradwire: this state was saved by rank 0 of 2, and this is rank {rank} of 3. Memories belong to a rank: "
            "load this rank's own file, or, after a change of the number of workers, pass the list of all 2 ranks' "
            "state dicts."
        ]


def test_the_state_of_another_codec_or_memory_is_refused(pool: Pool) -> None:
    states = pool.run(2, save, "topk(ratio=0.05)", "auto")
    for messages in pool.run(2, refusals, "powersgd(rank=2)", [states, states[0]]):
        assert messages == 2 * [
            "gradwire: this state belongs to topk(ratio=0.05) with memory error_feedback, and this run uses "
            "powersgd(rank=2) with memory error_feedback; attach with the saved ones, or start without it"
        ]


def test_what_is_no_state_of_ours_is_refused(pool: Pool) -> None:
    states = pool.run(2, save, "topk", "auto")
    for messages in pool.run(2, refusals, "topk", [[], {}, states[0] | {"format_version": 99}]):
        assert messages == [
            "gradwire: load_state_dict was given an empty list; pass the state dicts of all ranks",
            "gradwire: what handle.state_dict() returned was wanted, and this has the keys []; load that",
            "gradwire: this state has format 99, and this version reads 2 and 3; install the version that wrote it, or "
            "start without the state",
        ]


def save_of_another_model(rank: int, shapes: dict) -> dict:
    model = wrap(shapes)
    handle = gradwire.attach(model, "topk")
    reduced(model, gradients(shapes, rank, 0))
    return handle.state_dict()


@pytest.mark.parametrize(
    "other, told",
    [
        ({"a": (30, 40)}, "1200 elements of error for 'a', which has 2173 elements"),
        ({"z": (30, 40)}, "1200 elements of error for 'z', which does not exist"),
    ],
    ids=["shape", "name"],
)
def test_the_state_of_another_model_is_refused(pool: Pool, other: dict, told: str) -> None:
    states = pool.run(2, save_of_another_model, SHAPES | other)
    for messages in pool.run(2, refusals, "topk", [states, states[0]]):
        assert messages == 2 * [
            f"gradwire: this state holds {told} in this model; load the state that was saved with this model"
        ]
