"""A session by itself: when a step is committed, whose results are whose, and which scales count."""

from __future__ import annotations

import itertools
import math
import time
from dataclasses import dataclass
from typing import ClassVar

import pytest
import torch
import torch.distributed as dist
from given import SimpleTopK, message
from ranks import Pool
from torch import Tensor

from gradwire import checkpoint
from gradwire.core.layout import Layout
from gradwire.core.random import Random
from gradwire.engine import Engine
from gradwire.session import TINY, Session

pytestmark = pytest.mark.dist
SHAPES = {"a": (40, 40), "b": (50, 40)}
LAYOUTS = {name: Layout.of([(name, shape)]) for name, shape in SHAPES.items()}


@dataclass(frozen=True)
class Slow(SimpleTopK):
    """Top-k that takes its time with vectors of one size."""

    name: ClassVar[str] = "slow"
    numel: int = 0

    def pick(self, x: Tensor, rng: Random) -> tuple[Tensor, Tensor]:
        if x.shape[1] == self.numel:
            time.sleep(0.5)
        return super().pick(x, rng)


def session_of(rank: int, slow: str) -> Session:
    numel = math.prod(SHAPES[slow])
    engine = Engine(Slow(ratio=0.1, numel=numel), ranks=(rank,), workers=2, strategy="all_gather", nmse_every=1)
    return Session(engine, dist.group.WORLD, torch.device("cpu"), who="test")


def step(session: Session, rank: int, number: int, names: str) -> None:
    session.begin_step()
    for name in names:
        draws = torch.Generator().manual_seed(2 * number + rank)
        session.reduce(torch.randn(LAYOUTS[name].numel, generator=draws) * (1 + 9 * (name == "b")), LAYOUTS[name])
    session.commit()
    session.wait()


def two_lanes(rank: int, slow: str) -> tuple[list[bool], list[float]]:
    """One step of two units, of which one takes longer: what is kept of which, and the squares of their means."""
    session = session_of(rank, slow)
    step(session, rank, 0, "ab")
    kept = [bool(checkpoint.owed(session.engine, name, shape).any()) for name, shape in SHAPES.items()]
    return kept, [float(squares[1]) for squares in session.squares]


@pytest.mark.parametrize("slow", ["a", "b"])
def test_a_step_is_committed_when_all_lanes_are_done_and_in_the_order_of_its_units(pool: Pool, slow: str) -> None:
    for kept, (a, b) in pool.run(2, two_lanes, slow):
        assert kept == [True, True]
        assert 10 * a < b


def fewer_units(rank: int) -> tuple[list[int], list[bool]]:
    """Results of each of three steps, of which the second has one unit; and whether b's memory changes in each."""
    session, counts, owed = session_of(rank, "a"), [], [torch.zeros(SHAPES["b"])]
    for number, names in enumerate(("ab", "a", "ab")):
        step(session, rank, number, names)
        counts.append(len(session.squares))
        owed.append(checkpoint.owed(session.engine, "b", SHAPES["b"]))
    return counts, [not torch.equal(*pair) for pair in itertools.pairwise(owed)]


def test_a_step_has_its_own_results_alone(pool: Pool) -> None:
    assert pool.run(2, fewer_units) == [([2, 1, 2], [True, False, True])] * 2


def fail_late(rank: int, slow: str) -> tuple[str, bool, int]:
    """The slow unit fails: whether anything is kept of the other, and the number of the step."""
    session, other = session_of(rank, slow), "ab".replace(slow, "")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(time, "sleep", lambda seconds: 1 // 0)
        told = message(ZeroDivisionError, step, session, rank, 0, "ab")
    for lane in session._lanes:
        lane.executor.join()
    return told, bool(checkpoint.owed(session.engine, other, SHAPES[other]).any()), session.engine.step


@pytest.mark.parametrize("slow", ["a", "b"])
def test_a_step_of_which_one_unit_fails_is_not_committed(pool: Pool, slow: str) -> None:
    assert pool.run(2, fail_late, slow) == [("integer division or modulo by zero", False, 0)] * 2


def hand_in(rank: int, strategy: str) -> tuple[list[int], list[bool]]:
    """How many units were started after each of five, tiny ones but for the third; and which results came."""
    engine = Engine("topk(ratio=0.1)", ranks=(rank,), workers=2, strategy=strategy)
    session, started, results = Session(engine, dist.group.WORLD, torch.device("cpu"), who="test"), [], []
    session.begin_step()
    for number, width in enumerate((40, 50, 2 * TINY // 160, 60, 70)):
        layout = Layout.of([(f"p{number}", (40, width))])
        results.append(session.reduce(torch.ones(layout.numel), layout, more=True))
        started.append(session._launched)
    session.commit()
    session.wait()
    return started, [bool(future.result(0).any()) for future in results]


def test_tiny_units_wait_for_the_next_one_and_none_is_left_behind(pool: Pool) -> None:
    assert pool.run(2, hand_in, "auto") == [([0, 0, 1, 1, 1], [True] * 5)] * 2


def test_where_ranks_exchange_in_teams_no_unit_waits_for_another(pool: Pool) -> None:
    """The teams of one rank differ from those of another: what travels together would not come in one order."""
    assert pool.run(2, hand_in, "hierarchical(per_node=2)") == [([1, 2, 3, 4, 5], [True] * 5)] * 2


def groups_of_lanes(rank: int) -> tuple[int, bool]:
    """DDP talks over the group that it was given, in an order of its own."""
    groups = [lane.group for lane in session_of(rank, "a")._lanes]
    return len(set(groups)), dist.group.WORLD in groups


def test_lanes_have_groups_of_their_own(pool: Pool) -> None:
    assert pool.run(2, groups_of_lanes) == [(2, False)] * 2


def bad_scales(rank: int) -> list[float]:
    session, found = session_of(rank, "a"), []
    for scale, rate in ((8.0, 2.0), (math.inf, 1.0), (math.nan, 1.0), (1.0, 0.0), (4.0, 1.0)):
        session.begin_step(scale, rate)
        found.append(session.engine._scale)
    return found


def test_scales_that_nothing_can_be_divided_by_are_left_out(pool: Pool) -> None:
    assert pool.run(2, bad_scales) == [[4.0] * 5] * 2
