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

T = TypeVar("T")
SECONDS_AT_EXIT = 5.0  # for jobs that are still at work; one that waits for a dead peer is left behind

_all: weakref.WeakSet[Executor] = weakref.WeakSet()


@atexit.register
def _end_threads() -> None:
    """A thread that lets go of its tensors while the interpreter is being taken down would abort the process."""
    for executor in list(_all):
        executor.close()
    until = time.monotonic() + SECONDS_AT_EXIT
    for executor in list(_all):
        executor._thread.join(max(0.0, until - time.monotonic()))


class Executor:
    """Runs submitted jobs one after the other; after the first failure it runs no more."""

    def __init__(self, name: str, device: torch.device) -> None:
        self.error: Exception | None = None
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
        """Return when all jobs have ended."""
        with self._idle:
            self._idle.wait_for(lambda: self._open == 0)

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
            self.error = problem
        with self._idle:
            self._open -= 1
            self._idle.notify_all()
        return True
