"""Rows for single peers: in pairs, as on gloo, and by the all-to-all that other backends get, with the same results."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from ranks import Pool

from gradwire.collectives.c10d import LARGE_ROW, ProcessGroupDriver
from gradwire.core.exchange import Gather, Payload, Scatter
from gradwire.core.layout import Layout
from gradwire.engine import Engine

pytestmark = pytest.mark.dist
LAYOUT = Layout.of([("w", (41, 53))])


def both_ways(rank: int, codec: str, strategy: str) -> list[torch.Tensor]:
    results = []
    for in_pairs in (True, False):
        driver = ProcessGroupDriver(dist.group.WORLD)
        assert driver._peers[None]._pairs
        driver._peers[None]._pairs = in_pairs
        engine = Engine(codec, strategy=strategy, ranks=(rank,), workers=3)
        x = torch.randn(LAYOUT.numel, generator=torch.Generator().manual_seed(rank))
        results.append(driver.run(engine.reduce(x[None], LAYOUT)).out)
    return results


@pytest.mark.parametrize(
    "codec, strategy",
    [
        ("signsgd", "scatter_reduce_gather"),
        ("gtopk(ratio=0.1)", "auto"),  # routes
        ("adaptivethreshold", "all_gather"),  # rows of several lengths
        ("adaptivethreshold", "scatter_reduce_gather"),
    ],
)
def test_pairs_and_all_to_all_agree(pool: Pool, codec: str, strategy: str) -> None:
    for pairs, at_once in pool.run(3, both_ways, codec, strategy):
        assert pairs.abs().sum() > 0
        assert torch.equal(pairs, at_once)


def scatter_rows(rank: int, width: int) -> torch.Tensor:
    def program():
        rows = torch.arange(3)[:, None].expand(3, width) + 10 * rank
        return (yield Scatter(Payload(rows.to(torch.uint8)), 3))

    return ProcessGroupDriver(dist.group.WORLD).run(program()).data


def test_row_r_of_worker_i_arrives_at_worker_r_as_row_i(pool: Pool) -> None:
    for rank, received in enumerate(pool.run(3, scatter_rows, 2)):
        assert received.tolist() == [[rank, rank], [10 + rank, 10 + rank], [20 + rank, 20 + rank]]
    assert all(received.shape == (3, 0) for received in pool.run(3, scatter_rows, 0))


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
