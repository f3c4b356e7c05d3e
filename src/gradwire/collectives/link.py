"""What the network does for us, measured by the exchanges themselves, so that strategies can be chosen by it.

`measuring` is a program like any other: on a real process group its exchanges take time, and all workers return the
same `Link`. Take it for what it is: some milliseconds, in which the best of a few tries counts, since other load only
ever slows them.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

import torch

from gradwire.core.exchange import Max, Payload, Program, Scatter
from gradwire.core.records import quantile
from gradwire.core.units import BITS_PER_BYTE, bandwidth

SMALL_TRIES = 15
LARGE_TRIES = 3
FIRST_ROW, LAST_ROW = 1 << 14, 1 << 24  # bytes to each peer
ENOUGH = 0.02  # seconds: of an exchange that is long enough to tell the rate


@dataclass(frozen=True)
class Link:
    """What an exchange costs beside its bytes, and how fast a worker's bytes leave while all send."""

    latency_seconds: float
    bits_per_second: float

    @property
    def message_bytes(self) -> float:
        """What one worker could have sent in the time that one exchange costs anyhow."""
        return self.latency_seconds * self.bits_per_second / BITS_PER_BYTE


def measuring(workers: int, device: torch.device) -> Program[Link]:
    """The program that measures; the slowest worker counts."""

    def exchange(row: int) -> Program[float]:
        rows = torch.zeros(workers, row, dtype=torch.uint8, device=device)
        start = time.perf_counter()
        yield Scatter(Payload(rows), workers)
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        return time.perf_counter() - start

    def slowest(seconds: float) -> Program[float]:
        agreed = yield Max(torch.tensor([[seconds]], dtype=torch.float64, device=device))
        return float(agreed)

    tries = []
    for _ in range(SMALL_TRIES):
        tries.append((yield from exchange(8)))
    latency = yield from slowest(quantile(tries, 0.5))
    row = FIRST_ROW
    while True:
        seconds = yield from slowest((yield from exchange(row)))
        if seconds > max(ENOUGH, 10 * latency) or row >= LAST_ROW:
            break
        row *= 4
    for _ in range(LARGE_TRIES - 1):
        seconds = min(seconds, (yield from slowest((yield from exchange(row)))))
    return Link(latency, bandwidth((workers - 1) * row, max(seconds - latency, 0.1 * seconds)))
