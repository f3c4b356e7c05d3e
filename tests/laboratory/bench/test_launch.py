"""The launcher: results in order, the error that came first, and no process left behind."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from gradwire.core.errors import ConfigError, LaunchFailed
from gradwire.laboratory.bench.launch import launch

pytestmark = pytest.mark.dist


@pytest.fixture
def others():
    """Processes of other tests that are still there."""
    return set(multiprocessing.active_children())


def add_up(rank, factor):
    total = torch.tensor([float(rank.rank)])
    dist.all_reduce(total)
    rank.report({"from": rank.rank})
    return rank.rank * factor, rank.workers, total, torch.get_num_threads()


def refuse_on_one(rank):
    if rank.rank == 1:
        raise ValueError("the first line\nthe second")
    dist.all_reduce(torch.ones(1))


def die_on_one(rank):
    if rank.rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    dist.all_reduce(torch.ones(1))


def sleep(rank):
    rank.report(os.getpid())
    time.sleep(600)


def test_results_come_back_in_order_of_rank_and_messages_arrive():
    messages = []
    results = launch(add_up, 3, (10,), timeout=60, on_message=lambda rank, message: messages.append((rank, message)))
    assert [r[0] for r in results] == [0, 10, 20]
    assert all(r[1:] == (3, torch.tensor([3.0]), 1) for r in results)
    assert sorted((rank, message["from"]) for rank, message in messages) == [(0, 0), (1, 1), (2, 2)]


def test_the_exception_of_the_failing_rank_comes_back_as_text(others):
    with pytest.raises(LaunchFailed) as caught:
        launch(refuse_on_one, 2, timeout=60)
    assert str(caught.value) == "rank 1 of 2 raised ValueError: the first line"
    assert caught.value.rank == 1
    assert "in refuse_on_one" in caught.value.details
    assert caught.value.details.rstrip().endswith("ValueError: the first line\nthe second")
    assert set(multiprocessing.active_children()) == others


def test_a_death_is_blamed_and_not_the_peers_that_noticed_it(others):
    with pytest.raises(LaunchFailed) as caught:
        launch(die_on_one, 2, timeout=60)
    assert str(caught.value) == "rank 1 of 2 ended with exit code -9 and without a word; its output may say why"
    assert set(multiprocessing.active_children()) == others


def test_when_the_time_is_up_all_ranks_are_ended(others):
    start = time.monotonic()
    with pytest.raises(LaunchFailed) as caught:
        launch(sleep, 2, timeout=1)
    assert time.monotonic() - start < 60  # they would sleep for 600
    assert str(caught.value) == (
        "the time of 1 s was up before rank 0, 1 of 2 had finished; all were stopped. Allow more time, or do less."
    )
    assert set(multiprocessing.active_children()) == others


def start(script):
    """A process that runs a script, for which it has the names of this module."""
    script = f"from test_launch import *\n{script}"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), *sys.path])}
    return subprocess.Popen(
        [sys.executable, "-c", script], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
    )


@pytest.mark.parametrize("signal_number", [signal.SIGINT, signal.SIGKILL])
def test_ranks_do_not_outlive_an_interrupted_parent(signal_number):
    with start("launch(sleep, 2, on_message=lambda rank, pid: print(pid, flush=True))") as parent:
        ranks = [int(parent.stdout.readline()) for _ in range(2)]
        parent.send_signal(signal_number)
        error = parent.stderr.read()
    assert ("KeyboardInterrupt" in error) == (signal_number == signal.SIGINT)
    deadline = time.monotonic() + 60
    while any(_runs(pid) for pid in ranks) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not any(_runs(pid) for pid in ranks)


def interrupt_unseen(rank, message):
    """Ctrl-C that ends no wait of the main thread, as one that comes just before the wait begins."""

    def interrupt():
        time.sleep(0.2)  # the main thread waits for more messages by now
        signal.pthread_kill(threading.get_ident(), signal.SIGINT)

    threading.Thread(target=interrupt).start()


def test_an_interrupt_that_comes_just_before_a_wait_is_not_kept_waiting():
    with start("launch(sleep, 1, on_message=interrupt_unseen)") as parent:
        try:
            _, error = parent.communicate(timeout=60)  # the ranks would sleep for 600
        finally:
            parent.kill()
    assert "KeyboardInterrupt" in error


def _runs(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_no_workers_is_refused():
    with pytest.raises(ConfigError) as caught:
        launch(sleep, 0)
    assert str(caught.value) == "launch: `workers` must be a whole number of at least 1, got 0"
