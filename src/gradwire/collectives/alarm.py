"""A rank that stops tells the others, who would else wait for it until the process group's time-out.

Gloo sees that a peer is gone when its process ends. But a process may live on after a failure: the exception was
caught, a debugger holds it, Ctrl-C was pressed in a notebook. The peers then wait for messages that never come. So:

1. The rank that stops leaves a note in the store of the process group: who, and what happened there.
2. A rank that has waited for `PATIENCE` seconds looks for a note, again and again while it waits. If there is one, the
   wait ends with an `ExchangeFailed` that says what the note says.

A thread looks, over a connection of its own, so that a store that does not answer holds up nobody. It is there only
while somebody waits that long: a usual step has no thread, no message and no cost.
"""

from __future__ import annotations

import atexit
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import TracebackType
from typing import Protocol

from gradwire.core.errors import CorruptPayload, ExchangeFailed

PATIENCE = 0.5  # seconds of waiting before the first look, and between two
ANSWER = 1.0  # seconds that a store has for an answer to a single question
LONGEST = 400  # characters of a note
FAILED, CONSEQUENCE = "failed", "stopped"  # notes: of what failed by itself, and of what failed because a peer did

_all: weakref.WeakSet[Alarm] = weakref.WeakSet()


class Store(Protocol):
    """What is used of torch's stores."""

    def set(self, key: str, value: str, /) -> None: ...

    def get(self, key: str, /) -> bytes: ...

    def check(self, keys: list[str], /) -> bool: ...

    def clone(self) -> Store: ...


class Alarm:
    """The notes of the ranks of one process group.

    Args:
        store: that all of them see.
        name: of the notes in it: one that no earlier run has used.
        rank: this one.
        workers: number of ranks.
    """

    def __init__(self, store: Store, name: str, rank: int, workers: int) -> None:
        self.rank, self.workers = rank, workers
        self._store, self._name = store, name
        self._own: Store | None = None  # a connection for the thread
        self._rung = False
        self._ears: list[Callable[[ExchangeFailed], None]] = []
        self._turn = threading.Condition()
        self._thread: threading.Thread | None = None
        _all.add(self)
        _hear_uncaught()

    def ring(self, problem: BaseException) -> None:
        """Tell the others that this rank stops, and why. The first problem counts."""
        if self._rung:
            return
        self._rung = True
        kind = CONSEQUENCE if _is_consequence(problem) else FAILED
        with suppress(Exception):  # without a store nobody can be told
            self._store.set(f"{self._name}/{kind}", f"{self.rank}:{_summary(problem)}")

    @contextmanager
    def listening(self, ear: Callable[[ExchangeFailed], None]) -> Iterator[None]:
        """While this is open, `ear` is called if another rank has told that it stopped."""
        with self._turn:
            self._ears.append(ear)
            if self._thread is None:
                self._thread = threading.Thread(target=self._listen, name="gradwire-alarm", daemon=True)
                self._thread.start()
        try:
            yield
        finally:
            with self._turn:
                self._ears.remove(ear)
                self._turn.notify_all()

    def explained(self, problem: Exception) -> Exception:
        """The problem; or, if it is the consequence of what another rank has told, that."""
        if not _is_consequence(problem):
            return problem
        found: list[ExchangeFailed | None] = []
        thread = threading.Thread(target=lambda: found.append(self._look(FAILED)), name="gradwire-ask", daemon=True)
        thread.start()
        thread.join(ANSWER)
        return (found[0] if found else None) or problem

    def close(self) -> None:
        """Let the thread end."""
        with self._turn:
            self._ears.clear()
            self._turn.notify_all()
            thread = self._thread
        if thread is not None:
            thread.join(ANSWER)

    def _listen(self) -> None:
        while True:
            heard = self._look(FAILED) or self._look(CONSEQUENCE)
            with self._turn:
                ears = list(self._ears)
                if heard is not None or not ears:
                    self._thread = None
                    break
                self._turn.wait_for(lambda: not self._ears, PATIENCE)
        if heard is not None:
            for ear in ears:
                ear(heard)

    def _look(self, kind: str) -> ExchangeFailed | None:
        try:
            if self._own is None:
                self._own = self._store.clone()
            key = f"{self._name}/{kind}"
            if not self._own.check([key]):
                return None
            who, _, what = self._own.get(key).decode(errors="replace").partition(":")
        except RuntimeError:  # the store is gone with the rank that kept it; connections to that one end, too
            return None
        if who == str(self.rank):
            return None
        return ExchangeFailed(
            f"rank {self.rank} of {self.workers}: rank {who} has stopped ({what}), and this step cannot be finished "
            "without it. Mend what failed there, then restart all ranks from the last checkpoint."
        )


def _is_consequence(problem: BaseException) -> bool:
    """Whether a peer's failure may have caused it; what cannot be read is nobody else's failure."""
    return isinstance(problem, ExchangeFailed) and not isinstance(problem, CorruptPayload)


def _summary(problem: BaseException) -> str:
    lines = str(problem).strip().splitlines()
    return f"{type(problem).__name__}{f': {lines[0]}' if lines else ''}"[:LONGEST]


def ring_all(problem: BaseException) -> None:
    """Tell the ranks of all process groups in which this one compresses that it stops.

    Args:
        problem: why.
    """
    for alarm in list(_all):
        alarm.ring(problem)


@contextmanager
def shared_fate() -> Iterator[None]:
    """End the other ranks at once, too, if an exception leaves this block on one of them.

    For code whose exceptions are caught further out, by a notebook, a debugger or a framework: the process then lives
    on, and the other ranks would wait for it until the process group's time-out. They raise `ExchangeFailed` instead,
    which says what happened here. Exceptions that nobody catches, and those of gradwire itself, need no such block.

    Example:
        >>> import gradwire
        >>> def train():
        ...     raise ValueError("the loss is not finite")
        >>> try:
        ...     with gradwire.shared_fate():
        ...         train()
        ... except ValueError as problem:
        ...     print(problem)
        the loss is not finite
    """
    try:
        yield
    except BaseException as problem:
        ring_all(problem)
        raise


_before: list[Callable[[type[BaseException], BaseException, TracebackType | None], object]] = []


def _hear_uncaught() -> None:
    """Let exceptions that nobody catches be told, before the process begins to end."""
    if not _before:
        _before.append(sys.excepthook)
        sys.excepthook = _uncaught


def _uncaught(kind: type[BaseException], problem: BaseException, trace: TracebackType | None) -> None:
    ring_all(problem)
    _before[0](kind, problem, trace)


@atexit.register
def _end_threads() -> None:
    for alarm in list(_all):
        alarm.close()
