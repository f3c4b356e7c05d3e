"""Small exchanges in one message to each peer: what comes out is what the exchanges mean."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from typing import Any

import pytest
import torch
from torch import Tensor

from gradwire.collectives import bundle, local
from gradwire.core.exchange import Exchange, Gather, Max, Payload, Reduction, Route, Scatter, Sum


def batches(workers: int) -> list[list[Exchange]]:
    """What each worker asks for: odd sizes, several dtypes."""
    made = torch.Generator().manual_seed(workers)

    def bytes_of(*shape: int) -> Payload:
        return Payload(torch.randint(256, shape, generator=made, dtype=torch.uint8))

    return [
        [
            Gather(bytes_of(1, 7)),
            Sum(torch.randn(1, 5, generator=made)),
            Scatter(bytes_of(workers, 3), workers),
            Max(torch.randn(1, 11, generator=made).double()),
            Sum(torch.randn(1, 13, generator=made).half()),
            Gather(Payload(torch.randn(1, 2, generator=made))),
            Sum(torch.randint(9, (1, 2, 3), generator=made)),
        ]
        for _ in range(workers)
    ]


def carry_out(asked: Sequence[Sequence[Exchange]]) -> list[list[Any]]:
    """The bundles of all workers, each in a thread, with an all-to-all among them."""
    workers, sent, barrier = len(asked), dict[tuple[int, int], Tensor](), Barrier(len(asked), timeout=30)

    def work(rank: int) -> list[Any]:
        legs = iter(range(2))

        def start(rows: Tensor) -> Callable[[], Tensor]:
            leg = next(legs)
            sent[leg, rank] = rows.clone()
            barrier.wait()
            return lambda: torch.stack([sent[leg, peer][rank] for peer in range(workers)])

        return bundle.begin(asked[rank], workers, start)()

    with ThreadPoolExecutor(workers) as threads:
        return list(threads.map(work, range(workers)))


@pytest.mark.parametrize("workers", [2, 3, 4, 8])
def test_a_bundle_answers_as_virtual_workers_do(workers: int) -> None:
    asked = batches(workers)
    answers = carry_out(asked)
    for i, exchange in enumerate(asked[0]):
        mine = [worker[i] for worker in asked]
        if isinstance(exchange, Reduction):
            wanted = local.reduced(torch.cat([e.tensor for e in mine]), maximum=isinstance(exchange, Max))
            for answer in answers:
                assert answer[i].dtype == wanted.dtype
                assert torch.equal(answer[i], wanted)
            continue
        rows = Payload(torch.cat([e.payload.data for e in mine]))
        if isinstance(exchange, Gather):
            for answer in answers:
                assert torch.equal(answer[i].data, rows.data)
        else:
            wanted = local.transposed(rows, workers).data.view(workers, workers, -1)
            for rank, answer in enumerate(answers):
                assert torch.equal(answer[i].data, wanted[rank])


def test_what_is_large_ragged_empty_or_summed_in_a_ring_travels_alone() -> None:
    def rows(n: int, length: int) -> Payload:
        return Payload(torch.zeros(n, length, dtype=torch.uint8))

    most = bundle.SMALL
    assert bundle.fits(Sum(torch.zeros(1, most // 4)), 4)
    assert bundle.fits(Gather(rows(1, most // 4)), 4)
    assert bundle.fits(Scatter(rows(4, most // 4), 4), 4)
    assert not bundle.fits(Sum(torch.zeros(1, most // 4 + 1)), 4)
    assert not bundle.fits(Gather(rows(1, most // 4 + 1)), 4)
    assert not bundle.fits(Scatter(rows(4, most // 4 + 1), 4), 4)
    assert not bundle.fits(Sum(torch.zeros(1, 8), in_ring=True), 4)
    assert not bundle.fits(Sum(torch.zeros(1, 0)), 4)
    assert not bundle.fits(Gather(Payload(torch.zeros(1, 8, dtype=torch.uint8), torch.tensor([3]))), 4)
    assert not bundle.fits(Route(rows(1, 8), to=(1,), source=(1,)), 4)
