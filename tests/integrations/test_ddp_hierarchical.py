"""Four ranks as two nodes of two: the numbers of virtual workers, checkpoints, bytes, and groups inside groups."""

from __future__ import annotations

import os
import warnings
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from given import SHAPES, agree, buckets, gradients, message, network, owed, reduced, same, train, weights, wrap
from ranks import Pool
from test_ddp import compare, reduce_given
from test_ddp_state import Run
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

import gradwire
from gradwire.tracing import trace

pytestmark = pytest.mark.dist
PAIRS = "hierarchical(per_node=2)"
STEPS = 4

# ---------------------------------------------------------------- against virtual workers

# two nodes: what is summed between them is a sum of two numbers, which no backend can round differently
CASES = [
    ("none", "default", PAIRS),
    ("topk(ratio=0.05)", "default", PAIRS),
    ("efsignsgd(block=64)", "default", "hierarchical(per_node=2, across='scatter_reduce_gather')"),
    ("powersgd(rank=2)", "default", PAIRS),
    ("qsgd", "none", PAIRS),
    ("variance", "default", PAIRS),
]


@pytest.mark.parametrize("mode", ["overlap", "after_backward"])
@pytest.mark.parametrize("codec, memory, strategy", CASES)
def test_ranks_match_virtual_workers(pool: Pool, codec: str, memory: str, strategy: str, mode: str) -> None:
    ranks = pool.run(4, reduce_given, codec, memory, strategy, mode)
    compare(ranks, codec, memory, strategy, mode == "overlap" or codec == "none", None)


LARGE = {"w": (160, 120), "v": (90, 70), "b": (90,)}


def reduce_large(rank: int, codec: str, strategy: str) -> list[dict]:
    model = wrap(LARGE)
    gradwire.attach(model, codec, strategy=strategy, mode="after_backward")
    return [reduced(model, gradients(LARGE, rank, step)) for step in range(3)]


@pytest.mark.parametrize("codec, strategy", [("topk(ratio=0.05)", PAIRS), CASES[2][::2]])
def test_tensors_that_are_cut_match_virtual_workers(pool: Pool, codec: str, strategy: str) -> None:
    ranks = pool.run(4, reduce_large, codec, strategy)
    cluster = gradwire.VirtualCluster(4, codec, strategy=strategy, tensors="matrices")
    assert agree(ranks)
    for step, result in enumerate(ranks[0]):
        given = [gradients(LARGE, r, step) for r in range(4)]
        assert same(result, cluster.reduce({n: [g[n] for g in given] for n in LARGE}))
    assert all("w" in state["state"]["error"] for state in cluster.state_dicts())


def train_unused(rank: int) -> list[tuple[Tensor, dict]]:
    """Parameters `a` and `b` have no gradient in every second step."""
    model = wrap(find_unused_parameters=True)
    handle = gradwire.attach(model, "efsignsgd(block=64)", strategy=PAIRS)
    out = []
    for step in range(STEPS):
        given = gradients(SHAPES, rank, step)
        if step % 2:
            del given["a"], given["b"]
        result = reduced(model, given)
        out.append((result, owed(handle, SHAPES)))
    return out


def test_unused_parameters_keep_their_memory(pool: Pool) -> None:
    ranks = pool.run(4, train_unused)
    assert agree([[result for result, _ in rank] for rank in ranks])
    for rank in ranks:
        assert "a" not in rank[1][0] or not rank[1][0]["a"].any()
        assert same(rank[0][1]["a"], rank[1][1]["a"])
    for name in ("a", "c"):  # one rank of each node keeps it
        assert [bool(rank[0][1][name].any()) for rank in ranks] in ([True, False] * 2, [False, True] * 2)
    assert any(not same(rank[0][1]["c"], rank[1][1]["c"]) for rank in ranks)


# ---------------------------------------------------------------- bytes


def count(rank: int, codec: str) -> tuple[dict, list]:
    model = wrap()
    handle = gradwire.attach(model, codec, strategy=PAIRS, nmse_every=3)
    seen = []
    for step in range(STEPS):
        reduced(model, gradients(SHAPES, rank, step))
        seen.append(buckets(model))
    return handle.stats(), seen


def test_stats_tell_the_network_from_the_node(pool: Pool) -> None:
    ranks = pool.run(4, count, "topk(ratio=0.05)")
    cluster = gradwire.VirtualCluster(4, "topk(ratio=0.05)", strategy=PAIRS, tensors="matrices", nmse_every=3)
    sent = inside = 0
    for step, units in enumerate(ranks[0][1]):
        given = [gradients(SHAPES, r, step) for r in range(4)]
        cluster.reduce({n: [g[n] for g in given] for n in SHAPES}, units=units)
        sent += cluster.sent_bytes
        inside += cluster.node_bytes
    stats = [s for s, _ in ranks]
    assert (stats[0]["sent_bytes"], stats[0]["node_bytes"]) == (sent, inside)
    assert stats[0]["sent_bytes_per_step"] == sent / STEPS
    assert all(0 < s["sent_bytes"] < s["node_bytes"] for s in stats)
    assert all(s["encode_seconds"] > 0 and s["decode_seconds"] > 0 for s in stats)
    assert [s["nmse"] for s in stats] == pytest.approx([cluster.nmse()] * 4, rel=1e-5)


def test_the_busiest_rank_sends_what_the_tracer_says(pool: Pool) -> None:
    ranks = pool.run(4, count_once)
    traced = trace("qsgd", list(LARGE.items()), workers=4, strategy=PAIRS)
    assert max(s["sent_bytes"] for s in ranks) == traced.sent_bytes
    assert max(s["payload_bytes"] for s in ranks) == traced.payload_bytes
    assert {s["node_bytes"] for s in ranks} == {traced.node_bytes}


def count_once(rank: int) -> dict:
    model = wrap(LARGE)
    handle = gradwire.attach(model, "qsgd", strategy=PAIRS, mode="after_backward")
    reduced(model, gradients(LARGE, rank, 0))
    return handle.stats()


# ---------------------------------------------------------------- bad steps, checkpoints, the way back


def meet_nan(rank: int) -> list:
    """Rank 3 has a NaN in one parameter; it lies in the share of one of the two ranks of each node."""
    model = wrap()
    handle = gradwire.attach(model, "topk(ratio=0.05)", strategy=PAIRS)
    reduced(model, gradients(SHAPES, rank, 0))
    before = owed(handle, SHAPES)
    given = gradients(SHAPES, rank, 1)
    if rank == 3:
        given["a"][-1, -1] = float("nan")
    result = reduced(model, given)
    return [result, same(before, owed(handle, SHAPES)), handle.stats()["skipped_steps"]]


def test_a_nan_is_seen_by_all_ranks_and_remembered_by_none(pool: Pool) -> None:
    ranks = pool.run(4, meet_nan)
    assert agree([r[0] for r in ranks])
    for result, untouched, skipped in ranks:
        assert result["a"].isnan().any()
        assert untouched
        assert skipped == 1


def train_and_save(rank: int, folder: Path, *setup: str) -> list[Tensor]:
    run = Run(*setup, {})
    run.train(range(4))
    run.save(folder / f"{rank}.pt")
    run.train(range(4, 8))
    return run.seen[4:]


def load_and_train(rank: int, folder: Path, *setup: str) -> list[Tensor]:
    run = Run(*setup, {})
    run.load(folder / f"{rank}.pt")
    run.train(range(4, 8))
    return run.seen


@pytest.mark.parametrize("codec, mode", [("efsignsgd(block=64)", "overlap"), ("dgc", "after_backward")])
def test_a_resumed_run_is_the_uninterrupted_one(pool: Pool, tmp_path: Path, codec: str, mode: str) -> None:
    setup = (codec, PAIRS, mode)
    whole = pool.run(4, train_and_save, tmp_path, *setup)
    pool.stop()  # the second half runs in new processes
    assert same(whole, pool.run(4, load_and_train, tmp_path, *setup))
    assert agree(whole)


def load_elsewhere(rank: int, states: list, strategy: str) -> tuple:
    """What the ranks owe after loading all states of other ranks and one more step, and the result of that step."""
    model = wrap()
    handle = gradwire.attach(model, "topk(ratio=0.05)", strategy=strategy)
    told = message(gradwire.StateMismatch, handle.load_state_dict, states[1])
    handle.load_state_dict(states)
    return told, reduced(model, gradients(SHAPES, rank, 1)), owed(handle, SHAPES)


def save_state(rank: int) -> tuple[dict, dict]:
    """A rank's state, and what it owes."""
    model = wrap()
    handle = gradwire.attach(model, "topk(ratio=0.05)", strategy=PAIRS)
    reduced(model, gradients(SHAPES, rank, 0))
    return handle.state_dict(), owed(handle, SHAPES)


def test_what_is_owed_survives_the_loss_of_a_node(pool: Pool) -> None:
    """Four ranks as two nodes go on as two ranks without nodes."""
    states, owing = zip(*pool.run(4, save_state), strict=True)
    ranks = pool.run(2, load_elsewhere, list(states), "auto")
    for rank, (told, result, _) in enumerate(ranks):
        assert told == (
            f"gradwire: this state was saved by rank 1 of 4 (2 on each node), and this is rank {rank} of 2. Memories "
            "belong to a rank: load this rank's own file, or, after a change of the number of workers or of those on a "
            "node, pass the list of all 4 ranks' state dicts."
        )
        for name in ("a", "c", "g"):
            before = torch.stack([debts[name] for debts in owing]).mean(0)
            now = torch.stack([r[2][name] for r in ranks]).mean(0)
            mean = torch.stack([gradients(SHAPES, r, 1)[name] for r in range(2)]).mean(0)
            torch.testing.assert_close(result[name] + now, before + mean, rtol=0, atol=1e-5)


def other_model(rank: int, states: list) -> str:
    handle = gradwire.attach(wrap(SHAPES | {"a": (30, 40)}), "topk(ratio=0.05)", strategy=PAIRS)
    return message(gradwire.StateMismatch, handle.load_state_dict, states[rank])


def test_the_state_of_another_model_is_refused(pool: Pool) -> None:
    states = [state for state, _ in pool.run(4, save_state)]
    assert pool.run(4, other_model, states) == 4 * [
        "gradwire: this state was saved with 2173 elements of 'a', which has 1200 elements in this model; load the "
        "state that was saved with this model"
    ]


def detach_and_train(rank: int) -> tuple[Tensor, Tensor]:
    ends = []
    for attached in (True, False):
        model = DistributedDataParallel(network(), bucket_cap_mb=0.001)
        if attached:
            gradwire.attach(model, "topk", strategy=PAIRS).detach()
        train(model, torch.optim.SGD(model.parameters(), lr=0.1), range(3))
        ends.append(weights(model))
    return ends[0], ends[1]


def test_detached_it_is_plain_ddp(pool: Pool) -> None:
    for detached, plain in pool.run(4, detach_and_train):
        assert torch.equal(detached, plain)


# ---------------------------------------------------------------- groups


def reduce_in_subgroup(rank: int) -> list:
    """Three models: over a group of all ranks, over the world, and with the number of ranks that torchrun tells."""
    dist.new_group([0, 2])
    group = dist.new_group([0, 1, 2, 3])
    out = []
    for model in (wrap(process_group=group), wrap()):
        gradwire.attach(model, "topk(ratio=0.05)", strategy=PAIRS, seed=7)
        out.append([reduced(model, gradients(SHAPES, rank, step)) for step in range(2)])
    os.environ["LOCAL_WORLD_SIZE"] = "2"
    try:
        model = wrap()
        gradwire.attach(model, "topk(ratio=0.05)", strategy="hierarchical", seed=7)
    finally:
        del os.environ["LOCAL_WORLD_SIZE"]
    out.append([reduced(model, gradients(SHAPES, rank, step)) for step in range(2)])
    return out


def test_groups_whose_ranks_are_in_different_numbers_of_groups(pool: Pool) -> None:
    ranks = pool.run(4, reduce_in_subgroup)
    assert agree(ranks)
    assert agree(ranks[0])


def one_node(rank: int) -> tuple[list[str], Tensor, int, int]:
    model = wrap()
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        handle = gradwire.attach(model, "topk(ratio=0.05)", strategy=PAIRS)
    result = reduced(model, gradients(SHAPES, rank, 0))["a"]
    return [str(t.message) for t in told], result, handle.stats()["sent_bytes"], handle.stats()["node_bytes"]


def test_one_node_is_told_that_nothing_is_compressed(pool: Pool) -> None:
    mean = torch.stack([gradients(SHAPES, r, 0)["a"] for r in range(2)]).mean(0)
    for told, result, sent, inside in pool.run(2, one_node):
        assert told == [
            "gradwire: all ranks are on one node, so nothing crosses the network, and nothing is compressed"
        ]
        assert torch.allclose(result, mean, atol=1e-6)
        assert sent == 0 < inside


def disagree(rank: int) -> str:
    strategy = f"hierarchical(per_node={1 if rank == 2 else 2})"
    return message(gradwire.Incompatible, gradwire.attach, wrap(), "topk", strategy=strategy)


def test_ranks_that_disagree_about_their_nodes_are_told(pool: Pool) -> None:
    for told in pool.run(4, disagree):
        assert "Rank 0 has codec topk, memory error_feedback, strategy hierarchical(per_node=2), " in told
        assert "; rank 2 has codec topk, memory error_feedback, strategy hierarchical(per_node=1), " in told


# ---------------------------------------------------------------- local steps


def local_steps(rank: int) -> tuple[list[Tensor], dict]:
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    local = gradwire.LocalSteps(model, optimizer, "qsparse(ratio=0.1)", steps=2, strategy=PAIRS, tensors="all")
    seen = []
    for step in range(6):
        generator = torch.Generator().manual_seed(10 * step + rank)
        optimizer.zero_grad()
        model(torch.randn(8, 24, generator=generator)).square().mean().backward()
        optimizer.step()
        if local.step():
            seen.append(weights(model))
    return seen, local.stats()


def test_local_steps_average_on_two_levels(pool: Pool) -> None:
    ranks = pool.run(4, local_steps)
    assert agree([seen for seen, _ in ranks])
    assert len(ranks[0][0]) == 3
    assert all(0 < stats["sent_bytes"] < stats["node_bytes"] for _, stats in ranks)
