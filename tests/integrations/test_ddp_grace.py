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
