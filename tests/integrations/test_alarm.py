"""A rank that fails and lives on: the others end at once, and say which rank it was and why."""

from __future__ import annotations

import os
import signal
import sys
import threading
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, ClassVar

import pytest
import torch
import torch.distributed as dist
from given import SHAPES, SimpleTopK, gradients, network, reduced, wrap
from ranks import Pool
from test_ddp_errors import Faulty
from torch import Tensor, nn
from torch.distributed.fsdp import fully_shard

import gradwire
from gradwire.core.random import Random

pytestmark = pytest.mark.dist
TIMEOUT = 60.0  # of the process group: a test that waits for it fails by pytest's own time limit
BUG = "ZeroDivisionError: a bug in a codec"


def told(rank: int, workers: int, other: int, what: str) -> str:
    """The whole sentence."""
    return (
        f"rank {rank} of {workers}: rank {other} has stopped ({what}), and this step cannot be finished without it. "
        "Mend what failed there, then restart all ranks from the last checkpoint."
    )


def live_on(others: list[int], key: str = "ended") -> None:
    """Stay, connected to all, until the others have ended: nothing else can have ended them."""
    store = dist.distributed_c10d._get_default_store()
    store.wait([f"{key}{rank}" for rank in others], timedelta(seconds=TIMEOUT / 2))


def ended(rank: int) -> None:
    dist.distributed_c10d._get_default_store().set(f"ended{rank}", "yes")


def outlive(rank: int, job: Any, others: list[int]) -> str:
    """Do the job; what it raised, once the others have ended for it."""
    try:
        job()
    except gradwire.ExchangeFailed as problem:
        ended(rank)
        return str(problem)
    except (Exception, KeyboardInterrupt) as problem:
        live_on(others)
        return f"{type(problem).__name__}: {problem}"
    return "nothing happened"


# ---------------------------------------------------------------- a codec's error, under each driver


def under_ddp(rank: int, mode: str) -> str:
    model = wrap()
    gradwire.attach(model, Faulty(), mode=mode)

    def train() -> None:
        for step in range(5):
            reduced(model, gradients(SHAPES, rank, step))

    return outlive(rank, train, [0, 2])


@pytest.mark.parametrize("mode", ["overlap", "after_backward"])
def test_a_codecs_error_under_ddp_ends_the_others(pool: Pool, mode: str) -> None:
    outcomes = pool.run(3, under_ddp, mode, timeout=TIMEOUT)
    assert outcomes == [told(0, 3, 1, BUG), BUG, told(2, 3, 1, BUG)]


def under_local_steps(rank: int) -> str:
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    local = gradwire.LocalSteps(model, optimizer, Faulty(), steps=1)

    def train() -> None:
        for _ in range(5):
            local.step()

    return outlive(rank, train, [0])


def test_a_codecs_error_under_local_steps_ends_the_other(pool: Pool) -> None:
    assert pool.run(2, under_local_steps, timeout=TIMEOUT) == [told(0, 2, 1, BUG), BUG]


def under_fsdp(rank: int) -> str:
    model = nn.Sequential(nn.Linear(64, 64), nn.Linear(64, 8))
    fully_shard(model)
    gradwire.attach(model, Faulty(ratio=0.5), memory="none")

    def train() -> None:
        for _ in range(5):
            model(torch.ones(2, 64)).sum().backward()

    return outlive(rank, train, [0, 2])


def test_a_codecs_error_under_fsdp_ends_the_others(pool: Pool) -> None:
    outcomes = pool.run(3, under_fsdp, timeout=TIMEOUT)
    assert outcomes == [told(0, 3, 1, BUG), BUG, told(2, 3, 1, BUG)]


# ---------------------------------------------------------------- bytes that cannot be read


def corrupted(rank: int) -> str:
    """In its third step rank 1 hears of a row that no gradient can have."""
    model = wrap()
    gradwire.attach(model, "threshold(value=0.5)", strategy="all_gather", tensors="all")
    exchanged, at = dist.all_to_all_single, 0

    def changed(counts: Tensor, lengths: Tensor, *args: Any, **options: Any) -> Any:
        done = exchanged(counts, lengths, *args, **options)
        if (rank, at) == (1, 2) and counts.dtype == torch.int64:
            counts[2] = 2**50
        return done

    def train() -> None:
        nonlocal at
        for at in range(5):
            reduced(model, gradients(SHAPES, rank, at))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(dist, "all_to_all_single", changed)
        try:
            train()
        except gradwire.CorruptPayload as problem:
            live_on([0, 2])
            return str(problem)
        except gradwire.ExchangeFailed as problem:
            ended(rank)
            return str(problem)
    return "nothing happened"


def test_what_one_rank_cannot_read_ends_all(pool: Pool) -> None:
    first, second, third = pool.run(3, corrupted, timeout=TIMEOUT)
    start = "gradwire: what worker 2 sent cannot be read: a row of 1,125,899,906,842,624 bytes is announced"
    assert second.startswith(start)
    assert second.endswith("start them again from the last checkpoint.")
    assert first.startswith(f"rank 0 of 3: rank 1 has stopped (CorruptPayload: {start}")
    assert third.startswith(f"rank 2 of 3: rank 1 has stopped (CorruptPayload: {start}")


# ---------------------------------------------------------------- what gradwire does not see by itself


def between_backward_and_step(rank: int, subgroup: bool) -> str:
    group = dist.new_group([0, 1]) if subgroup else dist.group.WORLD
    if subgroup and rank == 2:
        live_on([0])
        return "not asked"
    model = wrap(process_group=group)
    gradwire.attach(model, "topk")

    def train() -> None:
        for step in range(5):
            with gradwire.shared_fate():
                reduced(model, gradients(SHAPES, rank, step))
                if (rank, step) == (1, 2):
                    raise ValueError("the loss\nis not finite")

    return outlive(rank, train, [0] if subgroup else [0, 2])


@pytest.mark.parametrize("subgroup", [False, True])
def test_an_exception_between_backward_and_step_ends_the_others(pool: Pool, subgroup: bool) -> None:
    what, workers = "ValueError: the loss", 2 if subgroup else 3
    outcomes = pool.run(3, between_backward_and_step, subgroup, timeout=TIMEOUT)
    last = "not asked" if subgroup else told(2, 3, 1, what)
    assert outcomes == [told(0, workers, 1, what), "ValueError: the loss\nis not finite", last]


def interrupt(rank: int) -> str:
    """Rank 1 is interrupted while it waits for rank 0, which is late; rank 2 waits for both."""
    model = wrap()
    gradwire.attach(model, "topk")
    store = dist.distributed_c10d._get_default_store()
    for step in range(2):  # then DDP has rebuilt its buckets, for which it has an exchange of its own
        reduced(model, gradients(SHAPES, rank, step))
    if rank == 1:
        signal.signal(signal.SIGINT, signal.default_int_handler)  # the server of processes has both otherwise
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
        threading.Timer(1.0, os.kill, (os.getpid(), signal.SIGINT)).start()

    def train() -> None:
        if rank == 0:
            store.wait(["ended2"], timedelta(seconds=TIMEOUT / 2))
        for step in (2, 3):  # the others' lanes still take part in the exchange that they waited in
            reduced(model, gradients(SHAPES, rank, step))

    return outlive(rank, train, [0, 2])


def test_an_interrupted_rank_ends_the_others(pool: Pool) -> None:
    outcomes = pool.run(3, interrupt, timeout=TIMEOUT)
    assert outcomes == [told(0, 3, 1, "KeyboardInterrupt"), "KeyboardInterrupt: ", told(2, 3, 1, "KeyboardInterrupt")]


def uncaught(rank: int) -> str:
    """What Python does with an exception that nobody catches, before it ends the process."""
    model = wrap()
    gradwire.attach(model, "topk")

    def train() -> None:
        for step in range(5):
            reduced(model, gradients(SHAPES, rank, step))
            if (rank, step) == (1, 2):
                raise ValueError("nobody catches this")

    try:
        train()
    except ValueError as problem:
        sys.excepthook(type(problem), problem, problem.__traceback__)
        live_on([0])
        return "told"
    except gradwire.ExchangeFailed as problem:
        ended(rank)
        return str(problem)
    return "nothing happened"


def test_an_exception_that_nobody_catches_is_told_before_the_process_ends(pool: Pool) -> None:
    assert pool.run(2, uncaught, timeout=TIMEOUT) == [told(0, 2, 1, "ValueError: nobody catches this"), "told"]


# ---------------------------------------------------------------- out of memory


@dataclass(frozen=True)
class Greedy(SimpleTopK):
    """Top-k that wants more memory than there is, on rank 1 at step 3."""

    name: ClassVar[str] = "greedy"

    def pick(self, x: Tensor, rng: Random) -> tuple[Tensor, Tensor]:
        if rng.ranks == (1,) and rng.step == 3:
            torch.empty(1 << 60, dtype=torch.uint8)
        return super().pick(x, rng)


def run_out(rank: int) -> str:
    model = wrap()
    gradwire.attach(model, Greedy())

    def train() -> None:
        for step in range(5):
            reduced(model, gradients(SHAPES, rank, step))

    return outlive(rank, train, [0])


def test_a_rank_without_memory_ends_the_other_with_a_sentence(pool: Pool) -> None:
    first, second = pool.run(2, run_out, timeout=TIMEOUT)
    assert second.startswith("RuntimeError: ")
    assert "you tried to allocate 1152921504606846976 bytes" in second
    assert first == told(0, 2, 1, second.splitlines()[0][:400])
