"""Moments on the clock of the device that computes: the host's own for a CPU, events in the stream of a GPU.

Taking one never waits. A moment on a GPU is reached when all that was launched before it is done; only then may one
ask how long it was.
"""

from __future__ import annotations

from dataclasses import dataclass
from time import perf_counter
from typing import TypeAlias

import torch

Moment: TypeAlias = "float | torch.cuda.Event"


def moment(device: torch.device) -> Moment:
    """Now; on a GPU: once all that was launched before on the current stream is done.

    Args:
        device: whose progress counts.
    """
    if device.type != "cuda":
        return perf_counter()
    event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
    event.record()
    return event


def reached(mark: Moment) -> bool:
    """Whether it is past; nobody waits.

    Args:
        mark: a moment.
    """
    return not isinstance(mark, torch.cuda.Event) or bool(mark.query())  # type: ignore[no-untyped-call]


def wait_for(mark: Moment) -> None:
    """Let the host wait until it is past.

    Args:
        mark: a moment.
    """
    if isinstance(mark, torch.cuda.Event):
        mark.synchronize()


def seconds_between(start: Moment, end: Moment) -> float:
    """From one moment to another; both are reached.

    Args:
        start: the first.
        end: the last.
    """
    if isinstance(start, torch.cuda.Event):
        assert isinstance(end, torch.cuda.Event), "moments of one device"
        return float(start.elapsed_time(end)) / 1e3
    assert not isinstance(end, torch.cuda.Event), "moments of one device"
    return end - start


@dataclass(frozen=True)
class Exchanged:
    """The exchange of one step, as DDP's own clocks count it: from the first unit that is handed in, gaps included."""

    begun: Moment  # the first unit was handed in
    computed: Moment  # the backward pass had found its last gradient
    done: Moment  # the last mean was there, and the memories written
    exchanging: float | None = None  # seconds of threads in exchanges that ended while it was exposed; None on a GPU
    bytes_per_second: float | None = None  # of its fastest large message; None: there was none, or nobody can tell

    @property
    def reached(self) -> bool:
        """Whether all of it is past."""
        return reached(self.done) and reached(self.computed)

    @property
    def exposed(self) -> float:
        """Seconds for which the step did nothing but wait for it."""
        return max(0.0, seconds_between(self.computed, self.done))

    @property
    def hidden(self) -> float:
        """Seconds of it behind which the backward pass went on."""
        return max(0.0, seconds_between(self.begun, self.done) - self.exposed)
