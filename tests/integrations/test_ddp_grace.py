"""A compressor written against GRACE's interface under DDP, and rows that travel from worker to worker."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from given import SHAPES, agree, gradients, reduced, same, wrap
from ranks import Pool

import gradwire
from gradwire.collectives.c10d import ProcessGroupDriver
from gradwire.core.exchange import Payload, Route
from gradwire.grace import adapt

pytestmark = pytest.mark.dist


class Bounded:
    """What exceeds a bound, as it is: sizes differ between workers."""

    tensors_size_are_same = False

    def compress(self, tensor, name):
        flat = tensor.flatten()
        (chosen,) = torch.where(flat.abs() > 1.5)
        return [flat[chosen], chosen], tensor.shape

    def decompress(self, tensors, ctx):
        values, chosen = tensors
        return torch.zeros(ctx.numel()).scatter_(0, chosen, values).view(ctx)


class Residual:
    def __init__(self):
        self.left = {}

    def compensate(self, tensor, name):
        return tensor + self.left.get(name, 0)

    def update(self, tensor, name, compressor, tensors, ctx):
        self.left[name] = tensor - compressor.decompress(tensors, ctx)


def reduce_adapted(rank: int) -> list:
    model = wrap()
    handle = gradwire.attach(model, adapt(Bounded(), Residual()))
    steps = [reduced(model, gradients(SHAPES, rank, step)) for step in range(3)]
    return [steps, handle.stats()["codec"]]


def test_a_foreign_compressor_under_ddp_gives_what_virtual_workers_give(pool: Pool) -> None:
    ranks = pool.run(4, reduce_adapted)  # a quarter is exact, so what is not compressed is too
    assert agree(ranks)
    cluster = gradwire.VirtualCluster(4, adapt(Bounded(), Residual()), tensors="matrices")
    for step, got in enumerate(ranks[0][0]):
        given = [gradients(SHAPES, r, step) for r in range(4)]
        expected = cluster.reduce({n: [g[n] for g in given] for n in SHAPES})
        assert same(got, expected)
    assert ranks[0][1] == "grace(Bounded)"


class LowRank:
    """PowerSGD of rank 2: its factors are summed on the default process group, inside `compress`."""

    def compress(self, tensor, name):
        if tensor.dim() < 2:
            return [tensor], None
        matrix = tensor.view(len(tensor), -1)
        p = matrix @ torch.randn(matrix.shape[1], 2)
        dist.all_reduce(p)
        p, _ = torch.linalg.qr(p)
        q = matrix.T @ p
        dist.all_reduce(q)
        return [], (p, q / dist.get_world_size(), tensor.shape)

    def decompress(self, tensors, ctx):
        if ctx is None:
            return tensors[0]
        p, q, shape = ctx
        return (p @ q.T).view(shape)


def reduce_with_own_collectives(rank: int) -> list:
    """Every second step leaves tensors out, so DDP exchanges which were used, on its own group, meanwhile."""
    model = wrap(find_unused_parameters=True)
    handle = gradwire.attach(model, adapt(LowRank()))
    steps = []
    for step in range(4):
        given = gradients(SHAPES, rank, step)
        steps.append(reduced(model, {n: g for n, g in given.items() if step % 2 == 0 or n in "abc"}))
    return [steps, handle.stats()["payload_bytes"]]


def test_a_compressor_with_collectives_of_its_own_does_not_meet_those_of_ddp(pool: Pool) -> None:
    ranks = pool.run(2, reduce_with_own_collectives)
    assert agree(ranks)
    steps, sent = ranks[0]
    for step, got in enumerate(steps):
        exact = sum(gradients(SHAPES, r, step)["a"] for r in range(2)) / 2
        kept = torch.linalg.svdvals(got["a"])
        assert (kept[:2] > 1e-3).all()
        assert (kept[2:] < 1e-3).all()
        assert (got["a"] - exact).norm() < exact.norm()  # a projection of it: factors of one random matrix
    factors = sum(2 * (SHAPES[n][0] + SHAPES[n][1]) for n in "acg")
    assert sent > 4 * 4 * factors


class Uneven(Bounded):
    tensors_size_are_same = True


def reduce_unevenly(rank: int) -> None:
    model = wrap({"w": (64, 64)})
    gradwire.attach(model, adapt(Uneven()))
    reduced(model, gradients({"w": (64, 64)}, rank, 0))


def test_sizes_that_differ_although_declared_equal_end_all_ranks_with_a_sentence(pool: Pool) -> None:
    for outcome in pool.outcomes(3, reduce_unevenly, deadline=60.0):
        assert outcome.kind == "CodecError"
        assert "declares that their sizes are the same; set tensors_size_are_same = False" in outcome.message


def meet_a_bad_gradient(rank: int) -> list:
    """Under a loss scaler: rank 1 has one infinite element in step 1. Its threshold would send it as a number."""
    shapes = {"w": (64, 64), "v": (80, 40)}
    model = wrap(shapes)
    handle = gradwire.attach(model, adapt(Bounded(), Residual()))
    results = []
    for step in range(3):
        given = gradients(shapes, rank, step)
        if (rank, step) == (1, 1):
            given["v"][0, 0] = torch.nan  # compares as not larger than any bound
        results.append(reduced(model, given))
    return [[{n: g.isfinite().all().item() for n, g in r.items()} for r in results], handle.stats()["skipped_steps"]]


def test_a_bad_gradient_of_one_rank_is_seen_by_all(pool: Pool) -> None:
    for finite, skipped in pool.run(2, meet_a_bad_gradient):
        assert finite[0] == finite[2] == {"w": True, "v": True}
        assert not finite[1]["v"]
        assert skipped == 1


def pass_on(rank: int, numel: int) -> list:
    """Three programs: once round the ring, a swap in pairs, and one row from the last rank to the first."""
    driver, n = ProcessGroupDriver(dist.group.WORLD), dist.get_world_size()
    row = Payload(torch.full((1, numel), rank, dtype=torch.uint8))

    def ring():
        held, seen = row, []
        for hop in range(n):
            held = yield Route(held, ((rank + 1) % n,), ((rank - 1) % n,), relay=hop > 0)
            seen.append(held.data.tolist())
        return seen

    def swap():
        partner = rank ^ 1
        return (yield Route(row, (partner,), (partner,)) if partner < n else Route(row, (None,), (None,)))

    def home():
        return (yield Route(row, (0 if rank == n - 1 else None,), (n - 1 if rank == 0 else None,)))

    out = [driver.run(ring()), driver.run(swap()), driver.run(home())]
    return [out[0], *(p.data.tolist() for p in out[1:]), driver.meter.sent_bytes]


@pytest.mark.parametrize("numel", [5, 0])
def test_rows_travel_from_worker_to_worker(pool: Pool, numel: int) -> None:
    n = 3
    for rank, (ring, swap, home, sent) in enumerate(pool.run(n, pass_on, numel)):
        assert ring == [[[(rank - 1 - hop) % n] * numel] for hop in range(n)]
        assert swap == [[rank if rank == 2 else rank ^ 1] * numel]  # without a partner: the own row
        assert home == [[n - 1 if rank == 0 else rank] * numel]
        assert sent == numel * (n + (rank < 2) + (rank == 2))
