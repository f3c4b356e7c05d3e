"""Notes of ranks that stop: over every store of torch, and without a thread once nobody listens."""

from __future__ import annotations

import threading

import pytest
import torch.distributed as dist

from gradwire.collectives import alarm
from gradwire.collectives.alarm import Alarm
from gradwire.core.errors import ExchangeFailed

SECONDS = 30.0  # a note is heard within a moment


def tcp(folder):
    return dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)


def file(folder):
    return dist.FileStore(str(folder / "store"), 2)


def memory(folder):
    return dist.HashStore()


def threads():
    return [thread for thread in threading.enumerate() if thread.name.startswith("gradwire-a")]


def heard_by(listener, *, within):
    """What a rank hears, if anything."""
    heard, told = threading.Event(), []
    with listener.listening(lambda problem: (told.append(problem), heard.set())):
        heard.wait(within)
    return [str(problem) for problem in told]


@pytest.mark.parametrize("store", [tcp, file, memory])
def test_a_note_is_heard_over_every_store(tmp_path, store):
    shared = dist.PrefixStore("group", store(tmp_path))
    first, second = (Alarm(shared, "run", rank, 2) for rank in range(2))
    second.ring(ValueError("no\nmore"))
    second.ring(KeyError("what came of it"))  # the first problem counts
    (told,) = heard_by(first, within=SECONDS)
    assert told.startswith("rank 0 of 2: rank 1 has stopped (ValueError: no), and this step cannot be finished")
    own = ExchangeFailed("the connection broke")
    assert str(first.explained(own)) == told
    assert second.explained(own) is own  # its own note explains nothing to it
    assert first.explained(KeyError("mine")).args == ("mine",)


def test_a_failure_is_heard_before_its_consequences():
    shared = dist.HashStore()
    ranks = [Alarm(shared, "run", rank, 3) for rank in range(3)]
    ranks[2].ring(ExchangeFailed("rank 2 waited in vain"))
    assert "rank 2 has stopped (ExchangeFailed: rank 2 waited in vain)" in heard_by(ranks[0], within=SECONDS)[0]
    ranks[1].ring(ValueError("the cause"))
    assert "rank 1 has stopped (ValueError: the cause)" in heard_by(ranks[0], within=SECONDS)[0]


def test_notes_of_an_earlier_run_are_not_heard_and_the_thread_ends_with_the_wait():
    shared = dist.HashStore()
    Alarm(shared, "earlier", 1, 2).ring(ValueError("long ago"))
    now = Alarm(shared, "now", 0, 2)
    assert heard_by(now, within=3 * alarm.PATIENCE) == []
    now.close()
    assert not threads()


def test_a_store_that_is_gone_is_silence():
    class Gone:
        def set(self, key, value):
            raise dist.DistNetworkError("gone")

        def clone(self):
            raise dist.DistNetworkError("gone")

    alone = Alarm(Gone(), "run", 0, 2)
    alone.ring(ValueError("nobody hears this"))
    own = ExchangeFailed("the connection broke")
    assert alone.explained(own) is own
