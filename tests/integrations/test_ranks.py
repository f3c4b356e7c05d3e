"""The harness itself: results come back by rank, failures are told apart, and the next run is not the last one's."""

from __future__ import annotations

import os
import warnings

import pytest
import torch
import torch.distributed as dist
from ranks import Failure, Pool
from torch import Tensor

pytestmark = pytest.mark.dist


def add_up(rank: int, factor: float) -> tuple[int, Tensor]:
    total = torch.tensor([factor * (rank + 1)])
    dist.all_reduce(total)
    return os.getpid(), total


def misbehave(rank: int) -> str:
    if rank == 0:
        raise KeyError("no such thing")
    if rank == 1:
        os._exit(5)
    while rank == 2:
        pass
    return "well"


def warn(rank: int) -> None:
    warnings.warn("careful", stacklevel=1)


def test_results_come_by_rank_from_processes_that_stay(pool: Pool) -> None:
    first, second = pool.run(4, add_up, 1.0), pool.run(3, add_up, 2.0)
    assert [float(total) for _, total in first] == [10.0] * 4
    assert [float(total) for _, total in second] == [12.0] * 3
    assert [pid for pid, _ in first[:3]] == [pid for pid, _ in second]
    assert len({pid for pid, _ in first}) == 4


def test_failures_are_told_apart_and_the_next_run_starts_anew(pool: Pool) -> None:
    before = pool.run(4, add_up, 1.0)
    raised, died, hung, well = pool.outcomes(4, misbehave, deadline=3.0)
    assert (raised.kind, raised.message) == ("KeyError", "'no such thing'")
    assert (died.kind, died.message) == ("Died", "exit code 5")
    assert (hung.kind, hung.message) == ("Hung", "no result after 3.0 s")
    assert well == "well"
    assert {pid for pid, _ in before}.isdisjoint(pid for pid, _ in pool.run(4, add_up, 1.0))


def test_warnings_are_errors(pool: Pool) -> None:
    for outcome in pool.outcomes(2, warn):
        assert isinstance(outcome, Failure)
        assert (outcome.kind, outcome.message) == ("UserWarning", "careful")
