"""Whether something else runs on this machine: its load, and how much the time of one and the same work varies."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass

import torch

from gradwire.core.records import quantile

REPEATS = 60
SIDE = 256  # of the matrices that are multiplied, about a millisecond
MOST_LOAD = 0.5  # processes that want a core, for each core
MOST_SPREAD = 1.4  # slow repeats over quick ones (p80 / p20)


@dataclass(frozen=True)
class Noise:
    """`load`: processes that wanted a core, mean of the last minute; `spread`: p80 / p20 of the same work."""

    load: float
    cores: int
    spread: float

    @property
    def warning(self) -> str | None:
        """What to know before times are measured here; None on a machine that is idle."""
        if self.load <= MOST_LOAD * self.cores and self.spread <= MOST_SPREAD:
            return None
        return (
            f"this machine is busy: {self.load:.1f} processes want its {self.cores} cores, and the same work takes "
            f"1 to {self.spread:.1f} times as long; measured times will be too long, so stop what else runs"
        )


def measure() -> Noise:
    """A tenth of a second of work, and the load that the system tells."""
    x = torch.ones(SIDE, SIDE)
    taken = []
    for _ in range(REPEATS):
        start = time.perf_counter()
        torch.mm(x, x)
        taken.append(time.perf_counter() - start)
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0
    settled = taken[REPEATS // 6 :]  # the first ones load libraries and start threads
    return Noise(load, cores, quantile(settled, 0.8) / quantile(settled, 0.2))
