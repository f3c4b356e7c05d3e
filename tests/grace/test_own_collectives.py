"""A compressor that asks torch.distributed for collectives: they travel among our workers, and are counted."""

from __future__ import annotations

import threading

import pytest
import torch
import torch.distributed as dist
from compressors import Largest, LowRank

import gradwire
from gradwire.grace import adapt

WORKERS = 3


@pytest.fixture
def _group():
    """Of one rank: functions of torch.distributed want one. Virtual workers are behind it."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def matrices(rank=1):
    """Of each worker; their mean has the given rank."""
    normal = torch.Generator().manual_seed(0)
    left = torch.randn(12, rank, generator=normal)
    return [left @ torch.randn(rank, 8, generator=normal) for _ in range(WORKERS)]


@pytest.mark.usefixtures("_group")
def test_factors_are_summed_over_our_workers_and_counted():
    cluster = gradwire.VirtualCluster(WORKERS, adapt(LowRank(WORKERS)))
    found = matrices()
    mean = cluster.reduce({"w": found, "b": [torch.full((5,), float(i)) for i in range(WORKERS)]})
    torch.testing.assert_close(mean["w"], sum(found) / WORKERS)
    assert mean["b"].tolist() == [1.0] * 5
    assert cluster.payload_bytes == 24 + 4 * (12 + 8 + 5)
    assert threading.active_count() < 10
    assert not [t for t in threading.enumerate() if t.name == "gradwire-grace"]


@pytest.mark.usefixtures("_group")
def test_mean_maximum_minimum_and_gathering():
    class Asks(Largest):
        def compress(self, tensor, name):
            found = [tensor.clone() for _ in range(3)]
            for t, op in zip(found, (dist.ReduceOp.AVG, dist.ReduceOp.MAX, dist.ReduceOp.MIN), strict=True):
                work = dist.all_reduce(t, op=op, async_op=True)
                work.wait()
            each = [torch.empty_like(tensor) for _ in range(WORKERS)]
            dist.all_gather(each, tensor)
            return [], torch.stack([*found, *each])

        def decompress(self, tensors, ctx):
            seen.append(ctx)
            return ctx[0]

    seen = []
    gradwire.VirtualCluster(WORKERS, adapt(Asks(0.1))).reduce({"w": [torch.tensor([1.0 * i, -i]) for i in range(3)]})
    wanted = [[1.0, -1.0], [2.0, 0.0], [0.0, -2.0], [0.0, 0.0], [1.0, -1.0], [2.0, -2.0]]
    assert seen[0].tolist() == wanted


@pytest.mark.usefixtures("_group")
@pytest.mark.parametrize(
    "ask, told",
    [
        (lambda t: dist.broadcast(t, 0), r"grace\(Asks\): asks torch.distributed for broadcast_; all_reduce \(sum, "),
        (lambda t: dist.all_reduce(t, op=dist.ReduceOp.PRODUCT), "asks torch.distributed for an all_reduce by PRODUCT"),
        (lambda t: dist.all_gather([t.clone()], t), "for a all_gather among 1 ranks, and 3 workers exchange here"),
        (lambda t: t[0] > 0 and dist.all_reduce(t), r"its workers ask for different collectives: \[None, 'sum of"),
    ],
)
def test_what_cannot_be_run_is_refused_with_a_sentence(ask, told):
    class Asks(Largest):
        def compress(self, tensor, name):
            ask(tensor)
            return super().compress(tensor, name)

    cluster = gradwire.VirtualCluster(WORKERS, adapt(Asks(0.5)))
    with pytest.raises(gradwire.CodecError, match=told):
        cluster.reduce({"w": [torch.tensor([1.0 * i, 1.0]) for i in range(3)]})
    assert not [t for t in threading.enumerate() if t.name == "gradwire-grace"]


@pytest.mark.usefixtures("_group")
def test_workers_that_exchange_inside_draw_the_same_numbers_and_others_do_not():
    """Factors of different random matrices would add up to nothing."""
    drawn = []

    class Draws(Largest):
        exchanges = True

        def compress(self, tensor, name):
            drawn.append(torch.rand(1).item())
            if self.exchanges:
                dist.all_reduce(tensor.clone())
            return super().compress(tensor, name)

    class Alone(Draws):
        exchanges = False

    for kind, distinct in ((Draws, 1), (Alone, WORKERS)):
        cluster = gradwire.VirtualCluster(WORKERS, adapt(kind(0.5)))
        cluster.reduce({"w": [torch.ones(4)] * WORKERS})
        drawn.clear()  # the first step has a rehearsal in it
        before = torch.get_rng_state()
        cluster.reduce({"w": [torch.ones(4)] * WORKERS})
        assert len(set(drawn)) == distinct
        assert torch.get_rng_state().equal(before)
