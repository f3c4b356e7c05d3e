"""Faults in the middle of training: the job ends with a sentence or recovers, no rank hangs, nothing is left."""

from __future__ import annotations

import os
import signal
import statistics
import threading
import time
from functools import partial

import pytest
import torch
from leftovers import network
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import gradwire
from gradwire.core.errors import ExchangeFailed, LaunchFailed
from gradwire.laboratory.bench.launch import launch

pytestmark = [pytest.mark.dist, pytest.mark.usefixtures("lab", "quick_ranks")]
WORKERS = 3
PATIENCE = 3.0  # seconds a collective waits for a peer
MARGIN = 15.0  # more, on a busy machine
BEFORE = 4  # steps before the fault
THE_PEER_IS_GONE = (
    "A peer has most likely died or timed out; look for the first error among the other ranks' output, then restart "
    "from the last checkpoint."
)


class Trainer:
    """A tiny model under DDP and gradwire, the same on all ranks; 33,000 parameters."""

    def __init__(self, rank, codec, strategy):
        torch.manual_seed(0)
        self.rank = rank
        self.model = DistributedDataParallel(nn.Sequential(nn.Linear(64, 500), nn.Tanh(), nn.Linear(500, 1)))
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
        self.handle = gradwire.attach(self.model, codec, strategy=strategy)
        self.seconds = []

    def step(self):
        start, step = time.monotonic(), len(self.seconds)
        if step == BEFORE:
            self.rank.report(os.getpid())
        generator = torch.Generator().manual_seed(1000 * step + self.rank.rank)
        self.optimizer.zero_grad()
        self.model(torch.randn(8, 64, generator=generator)).square().mean().backward()
        self.optimizer.step()
        self.seconds.append(time.monotonic() - start)


def until_it_fails(rank, codec, strategy):
    """Train until an exchange fails; what it said, and how long the step that failed took."""
    trainer = Trainer(rank, codec, strategy)
    while True:
        start = time.monotonic()
        try:
            trainer.step()
        except ExchangeFailed as problem:
            return str(problem), time.monotonic() - start


def so_many_steps(rank, codec, strategy, steps):
    """Train so many steps; how long each took, and the weights."""
    trainer = Trainer(rank, codec, strategy)
    for _ in range(steps):
        trainer.step()
    return trainer.seconds, torch.cat([p.detach().flatten() for p in trainer.model.parameters()])


def train(built, fault, function, *arguments):
    """Let ranks train on the network, and the fault happen when all have made their first steps."""
    ready: dict[int, int] = {}
    threads = []

    def on_message(rank, process):
        ready[rank] = process
        if len(ready) == WORKERS:
            threads.append(threading.Thread(target=fault, args=(built, ready)))
            threads[-1].start()

    try:
        return launch(
            function,
            WORKERS,
            arguments,
            timeout=60,
            hosts=built.hosts,
            group_timeout=PATIENCE,
            on_message=on_message,
        )
    finally:
        for thread in threads:
            thread.join()


def cut(built, ready, host):
    built.cut(host)


def cut_for_a_while(built, ready, host, seconds):
    built.cut(host)
    time.sleep(seconds)
    built.mend(host)


def slow_down(built, ready, host):
    built.set_rate(host, built.rates[host] / 10)


def kill(built, ready, rank, when):
    when.append(time.monotonic())
    os.kill(ready[rank], signal.SIGKILL)


@pytest.mark.parametrize("codec, strategy", [("fp16", "auto"), ("signsgd", "scatter_reduce_gather")])
def test_a_cut_link_fails_on_all_ranks_when_the_groups_time_is_up(codec, strategy):
    with network(WORKERS, "100mbit") as built:
        outcomes = train(built, partial(cut, host=1), until_it_fails, codec, strategy)
    for rank, (message, seconds) in enumerate(outcomes):
        assert message.startswith(f"rank {rank} of {WORKERS}: ")
        assert " did not finish: " in message
        assert message.endswith(THE_PEER_IS_GONE) or " has stopped (ExchangeFailed: " in message  # told by the first
        assert message.endswith("from the last checkpoint.")
        assert seconds < PATIENCE + MARGIN
    assert any(message.endswith(THE_PEER_IS_GONE) for message, _ in outcomes)


def test_a_cut_link_that_is_mended_in_time_is_only_a_pause():
    pause = 0.6
    with network(WORKERS, "100mbit") as built:
        fault = partial(cut_for_a_while, host=1, seconds=pause)
        results = train(built, fault, so_many_steps, "efsignsgd", "auto", 40)
    assert all(max(seconds[BEFORE:]) > pause / 2 for seconds, _ in results)
    assert all(torch.equal(weights, results[0][1]) for _, weights in results)


def test_a_host_slowed_tenfold_slows_all_and_replicas_agree():
    with network(WORKERS, "100mbit") as built:
        results = train(built, partial(slow_down, host=2), so_many_steps, "fp16", "auto", BEFORE + 12)
    for seconds, _ in results:
        # 66 kB of fp16 each way: 7 ms at 100 Mbit/s, 70 ms at a tenth of it
        assert statistics.median(seconds[-4:]) > max(0.05, min(seconds[:BEFORE]))
    assert all(torch.equal(weights, results[0][1]) for _, weights in results)


def test_a_killed_rank_ends_the_job_at_once_and_is_named():
    killed: list[float] = []
    with network(WORKERS, "100mbit") as built, pytest.raises(LaunchFailed) as caught:
        train(built, partial(kill, rank=1, when=killed), until_it_fails, "fp16", "auto")
    assert time.monotonic() - killed[0] < MARGIN
    assert str(caught.value) == "rank 1 of 3 ended with exit code -9 and without a word; its output may say why"
    assert caught.value.rank == 1
