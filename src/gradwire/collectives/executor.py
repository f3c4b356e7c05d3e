"""One thread that runs jobs in the order they came: the only place from which a handle talks to its process group.

Collectives must start in the same order on all ranks. Callbacks of futures run in any order and deadlock or
mix up messages once a second exchange depends on the first; a queue with one reader cannot.
"""

from __future__ import annotations

import atexit
import threading
import time
import weakref
from collections.abc import Callable
from queue import SimpleQueue
from typing import TypeVar

import torch

from gradwire.collectives import gloo_threads
from gradwire.collectives.alarm import PATIENCE, Alarm
from gradwire.core.errors import ExchangeFailed

T = TypeVar("T")
SECONDS_AT_EXIT = 5.0  # for jobs that are still at work; one that waits for a dead peer is left behind
SECONDS_GIVEN_UP = 1.0  # for those that wait for a peer that has stopped: the first to end wakes the others

_all: weakref.WeakSet[Executor] = weakref.WeakSet()


@atexit.register
def _end_threads() -> None:
    """A thread that lets go of its tensors while the interpreter is being taken down would abort the process."""
    for executor in list(_all):
        executor.close()
    start = time.monotonic()
    for executor in list(_all):
        seconds = SECONDS_GIVEN_UP if executor.given_up else SECONDS_AT_EXIT
        executor._thread.join(max(0.0, start + seconds - time.monotonic()))
    gloo_threads.rest()


class Executor:
    """Runs submitted jobs one after the other; after the first failure it runs no more.

    Args:
        name: of the thread.
        device: where jobs work.
        alarm: tells other ranks of a failure, and ends waits for one that has failed.
    """

    def __init__(self, name: str, device: torch.device, alarm: Alarm | None = None) -> None:
        self.error: Exception | None = None
        self.given_up = False  # a peer has stopped, and the job that waits for it is left to itself
        self._alarm = alarm
        self._jobs: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._idle = threading.Condition()
        self._open = 0
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None  # type: ignore[no-untyped-call]
        self._thread = threading.Thread(target=self._loop, name=name, daemon=True)
        self._thread.start()
        _all.add(self)

    def submit(self, job: Callable[[], None]) -> None:
        """Queue a job. On an accelerator it starts after the work now queued on the current stream."""
        ready = None
        if self._stream is not None:
            ready = torch.cuda.Event()  # type: ignore[no-untyped-call]
            ready.record(torch.cuda.current_stream(self._stream.device))
        with self._idle:
            self._open += 1
        self._jobs.put(lambda: self._on_stream(job, ready))

    def join(self) -> None:
        """Return when all jobs have ended, or a peer has told that it stopped."""
        with self._idle:
            if self._alarm is None:
                self._idle.wait_for(self._is_over)
                return
            try:
                if not self._idle.wait_for(self._is_over, PATIENCE):
                    with self._alarm.listening(self._give_up):
                        self._idle.wait_for(self._is_over)
            except BaseException as problem:  # Ctrl-C
                self._alarm.ring(problem)
                raise

    def _is_over(self) -> bool:
        return self._open == 0 or self.given_up

    def _give_up(self, problem: ExchangeFailed) -> None:
        with self._idle:
            self.error = self.error or problem
            self.given_up = True
            self._idle.notify_all()

    def wait(self) -> None:
        """Return when all jobs have ended; raise what the first failing one raised."""
        self.join()
        if self.error is not None:
            raise self.error

    def call(self, job: Callable[[], T]) -> T:
        """Run a job behind those that wait, and return what it returned."""
        results: list[T] = []
        self.submit(lambda: results.append(job()))
        self.wait()
        return results[0]

    def close(self) -> None:
        """Let the thread end once its jobs are done."""
        self._jobs.put(None)

    def _on_stream(self, job: Callable[[], None], ready: torch.cuda.Event | None) -> None:
        if self._stream is None or ready is None:
            job()
            return
        self._stream.wait_event(ready)
        job()

    def _loop(self) -> None:
        torch.set_grad_enabled(False)  # new threads start with it enabled
        if self._stream is not None:  # of this thread, for good
            torch.cuda.set_stream(self._stream)
        while self._run_next():
            pass

    def _run_next(self) -> bool:
        """Run one job; False at the end. (A function, so that no finished job, and no model, stays referenced.)"""
        job = self._jobs.get()
        if job is None:
            return False
        try:
            if self.error is None:
                job()
        except Exception as problem:
            self.error = self.error or self._told(problem)
        with self._idle:
            self._open -= 1
            self._idle.notify_all()
        return True

    def _told(self, problem: Exception) -> Exception:
        """Tell the other ranks of a failure; it, or what another rank has told of its cause."""
        if self._alarm is None:
            return problem
        self._alarm.ring(problem)
        return self._alarm.explained(problem)
