"""The ways an exchange can go on gloo, in pairs or in a bundle, and on other backends: with the same results."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from ranks import Pool

from gradwire.collectives import bundle
from gradwire.collectives.bundle import SMALL
from gradwire.collectives.c10d import LARGE_ROW, ProcessGroupDriver
from gradwire.core.exchange import Gather, Max, Payload, Scatter, Sum
from gradwire.core.layout import Layout
from gradwire.engine import Engine

pytestmark = pytest.mark.dist
LAYOUT = Layout.of([("w", (41, 53))])


def all_ways(rank: int, codec: str, strategy: str) -> list[torch.Tensor]:
    """The mean as gloo's small exchanges bring it, as its large ones do, and as other backends do."""
    results = []
    for small, on_gloo in ((SMALL, True), (0, True), (SMALL, False)):
        driver = ProcessGroupDriver(dist.group.WORLD)
        assert driver._peers[None]._pairs
        driver._peers[None]._pairs = on_gloo
        engine = Engine(codec, strategy=strategy, ranks=(rank,), workers=3)
        x = torch.randn(LAYOUT.numel, generator=torch.Generator().manual_seed(rank))
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(bundle, "SMALL", small)
            results.append(driver.run(engine.reduce(x[None], LAYOUT)).out)
    return results


@pytest.mark.parametrize(
    "codec, strategy",
    [
        ("signsgd", "scatter_reduce_gather"),
        ("topk(ratio=0.1)", "all_gather"),
        ("gtopk(ratio=0.1)", "auto"),  # routes
        ("adaptivethreshold", "all_gather"),  # rows of several lengths
        ("adaptivethreshold", "scatter_reduce_gather"),
    ],
)
def test_bundles_pairs_and_plain_collectives_agree(pool: Pool, codec: str, strategy: str) -> None:
    for bundled, pairs, plain in pool.run(3, all_ways, codec, strategy):
        assert pairs.abs().sum() > 0
        assert torch.equal(pairs, bundled)
        assert torch.equal(pairs, plain)


def scatter_rows(rank: int, width: int) -> torch.Tensor:
    def program():
        rows = torch.arange(3)[:, None].expand(3, width) + 10 * rank
        return (yield Scatter(Payload(rows.to(torch.uint8)), 3))

    return ProcessGroupDriver(dist.group.WORLD).run(program()).data


def test_row_r_of_worker_i_arrives_at_worker_r_as_row_i(pool: Pool) -> None:
    for rank, received in enumerate(pool.run(3, scatter_rows, 2)):
        assert received.tolist() == [[rank, rank], [10 + rank, 10 + rank], [20 + rank, 20 + rank]]
    assert all(received.shape == (3, 0) for received in pool.run(3, scatter_rows, 0))


def several_sums(rank: int, mixed: bool) -> tuple[list[torch.Tensor], int]:
    """Two small sums and a large one in one round, and perhaps one of another dtype; and how many were started."""
    driver, started = ProcessGroupDriver(dist.group.WORLD), []
    begin = driver._peers[None].begin_all
    driver._peers[None].begin_all = lambda batch: (started.append(batch), begin(batch))[1]  # type: ignore[method-assign]

    def program():
        sizes = (3, SMALL // 4 + 1, 5)
        floats = [torch.full((1, n), float(rank + 1)) * torch.arange(1.0, n + 1) for n in sizes]
        return (yield (*map(Sum, floats), *([Sum(torch.full((1, 2), rank))] if mixed else [])))

    return [t.clone() for t in driver.run(program())], len(started)


@pytest.mark.parametrize("mixed", [False, True])
def test_small_sums_of_a_round_travel_together(pool: Pool, mixed: bool) -> None:
    for sums, messages in pool.run(3, several_sums, mixed):
        assert [s.shape for s in sums[:3]] == [(1, 3), (1, SMALL // 4 + 1), (1, 5)]
        assert all(total.equal(6 * torch.arange(1.0, total.shape[1] + 1)[None]) for total in sums[:3])
        assert [s.tolist() for s in sums[3:]] == ([[[3, 3]]] if mixed else [])
        assert messages == 2


def sum_up(rank: int, numel: int, in_ring: bool, dtype: torch.dtype) -> tuple[torch.Tensor, int]:
    """The sum over the ranks, and how often gloo's ring was used."""
    driver, rings, all_reduce = ProcessGroupDriver(dist.group.WORLD), [], dist.all_reduce
    numbers = (torch.arange(numel) % 7 + rank).to(dtype)

    def program():
        return (yield Sum(numbers[None], in_ring=in_ring))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(dist, "all_reduce", lambda *a, **k: (rings.append(a), all_reduce(*a, **k))[1])
        return driver.run(program()), len(rings)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int32])
@pytest.mark.parametrize("workers, numel", [(2, 50), (3, 0), (3, 1), (3, 50), (4, 8), (4, 4099), (3, SMALL)])
def test_small_sums_do_not_go_by_the_ring(pool: Pool, workers: int, numel: int, dtype: torch.dtype) -> None:
    wanted = (workers * (torch.arange(numel) % 7) + sum(range(workers))).to(dtype)[None]
    small = numel * dtype.itemsize <= SMALL
    for in_ring in (False, True):
        for total, rings in pool.run(workers, sum_up, numel, in_ring, dtype):
            assert total.equal(wanted)
            assert rings == (0 if not numel or (small and not in_ring) else 1)


def largest(rank: int, numel: int) -> torch.Tensor:
    def program():
        return (yield Max((torch.arange(float(numel)) + rank)[None]))

    return ProcessGroupDriver(dist.group.WORLD).run(program())


@pytest.mark.parametrize("numel", [7, SMALL])
def test_a_maximum_is_none_of_sums_however_it_goes(pool: Pool, numel: int) -> None:
    for found in pool.run(3, largest, numel):
        assert found.equal((torch.arange(float(numel)) + 2)[None])


def gather_rows(rank: int, width: int) -> torch.Tensor:
    def program():
        row = (torch.arange(width) * (rank + 1)).to(torch.uint8)
        return (yield Gather(Payload(row[None])))

    return ProcessGroupDriver(dist.group.WORLD).run(program()).data


@pytest.mark.parametrize("width", [7, LARGE_ROW - 1, LARGE_ROW, LARGE_ROW + 5])
def test_two_workers_gather_large_rows_in_pairs_and_small_ones_by_gloo(pool: Pool, width: int) -> None:
    wanted = torch.stack([(torch.arange(width) * (rank + 1)).to(torch.uint8) for rank in range(2)])
    for received in pool.run(2, gather_rows, width):
        assert torch.equal(received, wanted)


def gather_twice(rank: int) -> list[list[float]]:
    """Two large gathers in one round: the first and last elements of both answers."""

    def program():
        rows = [torch.full((1, LARGE_ROW // 4 + 1), 10.0 * n + rank) for n in (1, 2)]
        return (yield tuple(Gather(Payload(row)) for row in rows))

    return [answer.data[:, 0].tolist() for answer in ProcessGroupDriver(dist.group.WORLD).run(program())]


@pytest.mark.parametrize("workers", [2, 3])
def test_large_answers_of_one_program_have_rooms_of_their_own(pool: Pool, workers: int) -> None:
    wanted = [[10.0 * n + rank for rank in range(workers)] for n in (1, 2)]
    assert pool.run(workers, gather_twice) == [wanted] * workers
