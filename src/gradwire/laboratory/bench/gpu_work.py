"""What a GPU does while something runs: its launches and copies, one by one, as torch's profiler sees them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch.profiler import ProfilerActivity, profile


class Work(NamedTuple):
    """A launch or a copy, and when it ran, in seconds."""

    name: str
    start: float
    end: float


def seen(run: Callable[[], object]) -> list[Work]:
    """All that a GPU did for `run`, in order."""
    with profile(activities=[ProfilerActivity.CUDA]) as profiler:
        run()
        torch.cuda.synchronize()
    events = (e for e in profiler.events() if e.device_type.name == "CUDA")
    return sorted(
        (Work(e.name, e.time_range.start / 1e6, e.time_range.end / 1e6) for e in events), key=lambda w: w.start
    )


def busy_seconds(works: Sequence[Work]) -> float:
    """How long it was at work, in however many streams.

    >>> busy_seconds([Work("a", 0.0, 2.0), Work("b", 1.0, 3.0), Work("c", 5.0, 6.0)])
    4.0
    """
    seconds, until = 0.0, float("-inf")
    for work in works:
        seconds, until = seconds + max(0.0, work.end - max(work.start, until)), max(until, work.end)
    return seconds


def by_name(works: Sequence[Work]) -> list[tuple[str, int, float]]:
    """How often each ran, and its seconds in all; the longest first.

    >>> by_name([Work("copy", 0.0, 1.0), Work("sum", 1.0, 4.0), Work("copy", 4.0, 5.0)])
    [('sum', 1, 3.0), ('copy', 2, 2.0)]
    """
    found: dict[str, tuple[int, float]] = {}
    for work in works:
        count, seconds = found.get(work.name, (0, 0.0))
        found[work.name] = count + 1, seconds + work.end - work.start
    return sorted(((n, *rest) for n, rest in found.items()), key=lambda entry: -entry[2])
