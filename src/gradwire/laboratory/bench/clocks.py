"""Clocks of the host and of a GPU, for work that comes in phases."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import torch


class Clock:
    """Of the host."""

    def __init__(self, phases: Sequence[str] = ("",)) -> None:
        self._last = 0.0
        self._spent = dict.fromkeys(phases, 0.0)

    def run(self, work: Callable[[], object]) -> None:
        """Do some work."""
        begin = time.perf_counter()
        work()
        self._last = time.perf_counter() - begin

    def book(self, phase: str) -> None:
        """It belongs to this phase."""
        self._spent[phase] += self._last

    def spent(self) -> dict[str, float]:
        """Seconds of each phase."""
        return self._spent


class Events(Clock):
    """Of a GPU. With `wait` it is idle before each piece of work, so that the time of a slow host counts."""

    def __init__(self, phases: Sequence[str] = ("",), wait: bool = False) -> None:
        super().__init__(phases)
        self._wait = wait
        self._pairs: list[tuple[str, torch.cuda.Event, torch.cuda.Event]] = []

    def run(self, work: Callable[[], object]) -> None:
        if self._wait:
            torch.cuda.synchronize()
        self._begin, self._end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        self._begin.record()
        work()
        self._end.record()

    def book(self, phase: str) -> None:
        self._pairs.append((phase, self._begin, self._end))

    def spent(self) -> dict[str, float]:
        torch.cuda.synchronize()
        for phase, begin, end in self._pairs:
            self._spent[phase] += begin.elapsed_time(end) / 1e3
        return self._spent


def clock_of(device: torch.device, phases: Sequence[str] = ("",)) -> Clock:
    """Of that device; it waits for it before each piece of work."""
    return Events(phases, wait=True) if device.type == "cuda" else Clock(phases)


def clocked(work: Callable[[], object], device: torch.device) -> float:
    """Seconds of some work."""
    clock = clock_of(device)
    clock.run(work)
    clock.book("")
    return clock.spent()[""]
