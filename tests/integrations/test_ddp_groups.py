"""Several process groups, several models, and the way back to plain DDP."""

from __future__ import annotations

import gc
import threading
from typing import Any

import pytest
import torch
import torch.distributed as dist
from given import SHAPES, agree, buckets, gradients, kept, message, network, reduced, same, train, weights, wrap
from ranks import Pool
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

import gradwire

pytestmark = pytest.mark.dist
STEPS = 4


def follow(results: list[list[tuple[list, dict]]], members: list[int], codec: str, seed: int) -> None:
    """The ranks `members` have done what virtual workers do with their gradients."""
    cluster = gradwire.VirtualCluster(len(members), codec, seed=seed, tensors="matrices")
    for step in range(STEPS):
        given = [gradients(SHAPES, r, step) for r in members]
        units = results[members[0]][step][0]
        expected = cluster.reduce({n: [g[n] for g in given] for n in SHAPES}, units=units)
        assert agree([results[rank][step][1] for rank in members]), step
        for name, got in results[members[0]][step][1].items():
            compressed = got.dim() > 1 and got.numel() >= 1024  # all else is summed by the backend
            assert same(got, expected[name]) if compressed else close(got, expected[name]), (step, name)


def close(got: Tensor, expected: Tensor) -> bool:
    return torch.allclose(got, expected, atol=1e-6)


def steps(model: DistributedDataParallel, rank: int) -> list[tuple[list, dict]]:
    out = []
    for step in range(STEPS):
        result = reduced(model, gradients(SHAPES, rank, step))
        out.append((buckets(model), result))
    return out


def reduce_in_halves(rank: int, members: list[list[int]], codecs: list[str]) -> list[tuple[list, dict]]:
    groups = [dist.new_group(ranks) for ranks in members]
    mine = next(i for i, ranks in enumerate(members) if rank in ranks)
    model = wrap(process_group=groups[mine])
    gradwire.attach(model, codecs[mine], seed=mine)
    return steps(model, rank)


def test_disjoint_groups_do_not_meet(pool: Pool) -> None:
    members, codecs = [[0, 2], [1, 3]], ["topk(ratio=0.05)", "efsignsgd"]
    results = pool.run(4, reduce_in_halves, members, codecs)
    for i in (0, 1):
        follow(results, members[i], codecs[i], seed=i)


def reduce_in_subgroup(rank: int, members: list[int]) -> list[tuple[list, dict]]:
    group = dist.new_group(members)
    if rank not in members:
        return []
    model = wrap(process_group=group)
    gradwire.attach(model, "topk(ratio=0.05)", seed=3)
    return steps(model, rank)


@pytest.mark.parametrize("members", [[1, 3], [1, 2, 3]], ids=str)
def test_ranks_outside_a_subgroup_need_not_attach(pool: Pool, members: list[int]) -> None:
    follow(pool.run(4, reduce_in_subgroup, members), members, "topk(ratio=0.05)", seed=3)


def reduce_overlapping(rank: int) -> tuple[list, list]:
    """A model over the world and one over a pair of ranks, at the same time."""
    pairs = [dist.new_group([0, 1]), dist.new_group([2, 3])]
    world, pair = wrap(), wrap(process_group=pairs[rank // 2])
    gradwire.attach(world, "topk(ratio=0.05)", seed=1)
    gradwire.attach(pair, "efsignsgd", seed=2)
    out: tuple[list, list] = ([], [])
    for step in range(STEPS):
        given = gradients(SHAPES, rank, step)
        world.zero_grad(), pair.zero_grad()
        (world(given) + pair(given)).backward()
        for model, seen in zip((world, pair), out, strict=True):
            seen.append((buckets(model), {n: p.grad.clone() for n, p in model.module.named_parameters()}))
    return out


def test_one_backward_pass_through_models_of_two_groups(pool: Pool) -> None:
    results = pool.run(4, reduce_overlapping)
    follow([r[0] for r in results], [0, 1, 2, 3], "topk(ratio=0.05)", seed=1)
    for members in ([0, 1], [2, 3]):
        follow([r[1] for r in results], members, "efsignsgd", seed=2)


def reduce_in_chain(rank: int) -> tuple[list, list]:
    """Groups of ranks 0 and 1, and of 1 and 2: rank 1 attaches twice, the others once."""
    out: tuple[list, list] = ([], [])
    groups = [dist.new_group(members) for members in ([0, 1], [1, 2])]
    for i, (group, members) in enumerate(zip(groups, ([0, 1], [1, 2]), strict=True)):
        if rank in members:
            model = wrap(process_group=group)
            gradwire.attach(model, "topk(ratio=0.05)", seed=i)
            out[i].extend(steps(model, rank))
    return out


def test_groups_that_share_a_rank_keep_apart(pool: Pool) -> None:
    results = pool.run(3, reduce_in_chain)
    for i, members in enumerate(([0, 1], [1, 2])):
        follow([r[i] for r in results], members, "topk(ratio=0.05)", seed=i)


def reduce_two_models(rank: int, codecs: list[str], joint: bool) -> tuple[list, list]:
    models = [wrap(), wrap()]
    for seed, (model, codec) in enumerate(zip(models, codecs, strict=True)):
        gradwire.attach(model, codec, seed=seed)
    out: tuple[list, list] = ([], [])
    for step in range(STEPS):
        given = gradients(SHAPES, rank, step)
        for model in models:
            model.zero_grad()
        losses = [model(given) for model in models]
        if joint:
            sum(losses).backward()
        else:
            for loss in losses:
                loss.backward()
        for model, seen in zip(models, out, strict=True):
            seen.append((buckets(model), {n: p.grad.clone() for n, p in model.module.named_parameters()}))
    return out


@pytest.mark.parametrize("joint", [False, True], ids=["one_after_the_other", "in_one_backward"])
def test_two_models_on_one_group_keep_apart(pool: Pool, joint: bool) -> None:
    codecs = ["topk(ratio=0.05)", "topk(ratio=0.2)"]
    results = pool.run(3, reduce_two_models, codecs, joint)
    for i, codec in enumerate(codecs):
        follow([r[i] for r in results], [0, 1, 2], codec, seed=i)


def count_threads(rank: int) -> tuple[int, int]:
    """Threads of ours while two models are attached, and once their group is gone."""
    models = [wrap(), wrap()]
    for model in models:
        gradwire.attach(model, "topk")
        reduced(model, gradients(SHAPES, rank, 0))
    running = len(lanes())
    del model
    models.clear()
    dist.destroy_process_group()
    gc.collect()
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    left = lanes()
    for thread in left:
        thread.join(5)
    return running, sum(t.is_alive() for t in left)


def lanes() -> list[threading.Thread]:
    return [t for t in threading.enumerate() if t.name in ("gradwire-0", "gradwire-1")]


def test_models_of_one_group_share_threads_which_end_with_the_group(pool: Pool) -> None:
    pool.stop()  # threads of earlier tests
    assert pool.run(2, count_threads) == [(2, 0), (2, 0)]


# ---------------------------------------------------------------- and back


def train_in_parts(rank: int, parts: list[str | None], options: dict) -> Any:
    """10 steps a part: under a codec, or detached."""
    model = DistributedDataParallel(network(), bucket_cap_mb=0.001, **options)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    for i, codec in enumerate(parts):
        handle = gradwire.attach(model, codec) if codec else None
        train(model, optimizer, range(10 * i, 10 * i + 10))
        if handle:
            handle.detach()
    return weights(model)


@pytest.mark.parametrize(
    "options",
    [{}, {"static_graph": True}, {"find_unused_parameters": True}, {"gradient_as_bucket_view": True}],
    ids=lambda o: "".join(o) or "plain",
)
def test_a_detached_model_is_plain_ddp(pool: Pool, options: dict) -> None:
    plain = pool.run(3, train_in_parts, [None, None], options)
    assert agree(plain + pool.run(3, train_in_parts, ["none", None], options))


def test_a_model_can_be_attached_again_with_another_codec(pool: Pool) -> None:
    ends = [pool.run(3, train_in_parts, ["topk", codec], {}) for codec in (None, "none", "powersgd")]
    assert agree(ends[0] + ends[1])
    assert agree(ends[2])
    assert not same(ends[0][0], ends[2][0])


def attach_again(rank: int) -> tuple[dict, dict]:
    """A second handle starts without memory, also where it has the first one's codec."""
    model = wrap()
    first = gradwire.attach(model, "topk(ratio=0.05)", mode="after_backward")
    reduced(model, gradients(SHAPES, rank, 0))
    first.detach()
    first.detach()  # twice does no harm
    second = gradwire.attach(model, "topk(ratio=0.05)", mode="after_backward")
    first.detach()  # nor does an old handle
    reduced(model, gradients(SHAPES, rank, 0))
    return kept(first.state_dict()), kept(second.state_dict())


def test_a_new_handle_starts_afresh(pool: Pool) -> None:
    for first, second in pool.run(3, attach_again):
        assert same(first, second)


# ---------------------------------------------------------------- a group that changes


def notice_a_changed_group(rank: int) -> str:
    pairs = [dist.new_group([0, 1]), dist.new_group([2, 3])]
    model = wrap()
    gradwire.attach(model, "topk(ratio=0.05)")
    reduced(model, gradients(SHAPES, rank, 0))
    model._update_process_group(pairs[rank // 2])
    return message(gradwire.Incompatible, reduced, model, gradients(SHAPES, rank, 1))


def test_a_changed_group_is_noticed(pool: Pool) -> None:
    told = "gradwire: DDP's process group has changed since attach; detach and attach again"
    assert pool.run(4, notice_a_changed_group) == 4 * [told]


def change_group(rank: int, codec: str | None) -> list[tuple[list, dict]]:
    """From the world to pairs of ranks, and there with a codec, or without."""
    pairs = [dist.new_group([0, 1]), dist.new_group([2, 3])]
    model = wrap()
    handle = gradwire.attach(model, "topk(ratio=0.05)")
    reduced(model, gradients(SHAPES, rank, 0))
    handle.detach()
    model._update_process_group(pairs[rank // 2])
    if codec is not None:
        gradwire.attach(model, codec, seed=4)
    return steps(model, rank)


def test_a_changed_group_can_be_attached_to(pool: Pool) -> None:
    results = pool.run(4, change_group, "topk(ratio=0.05)")
    for members in ([0, 1], [2, 3]):
        follow(results, members, "topk(ratio=0.05)", seed=4)


def test_a_detached_model_follows_ddp_to_a_changed_group(pool: Pool) -> None:
    results = pool.run(4, change_group, None)
    for members in ([0, 1], [2, 3]):
        follow(results, members, "none", seed=0)
