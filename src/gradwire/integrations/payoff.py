"""Whether a codec pays, as far as a run with it alone can tell. Without torch, without a clock.

Plain DDP is not tried here (the autopilot does that), so this speaks only where a cautious estimate of it is surely
ahead: where what a codec computes at the end of a step takes longer than all that plain DDP would still have to send.
Of a step these are known: when each bucket was there, when the backward pass ended, for how long it then waited, and
how much of that threads were exchanging and not computing.

1. The rate is that of the fastest large message of a step, in the middle of all steps; an all-reduce is taken to need
   twice as long for a byte.
2. At that rate plain DDP sends one bucket after the other, each as soon as it is there. What is left to send when the
   backward pass ends is what a step would wait for. All that threads now spend exchanging after that end is added, as
   if it were nothing but waiting for ranks that are late, for whom plain DDP would wait, too.
3. A step of plain DDP is then estimated as today's, with that wait in place of today's. That the backward pass itself
   would be faster without a codec beside it is left out.
4. It is told if the 95 % interval of the ratio of both, over at least 50 steps, lies above 1.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gradwire.core.intervals import median
from gradwire.core.records import quantile
from gradwire.core.units import bandwidth, format_milliseconds, format_rate

LEAST = 50  # steps
DEARER = 2.0  # times as long for a byte in an all-reduce


@dataclass(frozen=True, kw_only=True)
class Timed:
    """One step of a codec: seconds, counted from its first bucket."""

    seconds: float  # all of it
    computed: float  # until the backward pass had found its last gradient
    exposed: float  # from then on, waiting
    exchanging: float  # what of that threads spent exchanging, or more
    arrivals: tuple[tuple[float, float], ...]  # of buckets: when, and the bytes that plain DDP would send
    bytes_per_second: float  # of the fastest large message


def plain_wait(step: Timed, bytes_per_second: float) -> float:
    """Seconds for which plain DDP would wait at the end of the backward pass, at most.

    >>> arrivals = (0.0, 100.0), (3.0, 200.0)
    >>> step = Timed(
    ...     seconds=9.0, computed=4.0, exposed=3.0, exchanging=0.5, arrivals=arrivals, bytes_per_second=200.0
    ... )
    >>> plain_wait(step, 200.0)  # the second bucket is on its way from 3 to 5, since an all-reduce is dearer
    1.5
    """
    end = 0.0
    for arrival, size in step.arrivals:
        end = max(end, arrival) + DEARER * size / bytes_per_second
    return max(0.0, end - step.computed) + step.exchanging


def judge(codec: str, steps: Sequence[Timed]) -> str | None:
    """A sentence where plain DDP is surely faster; None: it is not, or nobody knows.

    Args:
        codec: its spec.
        steps: the last ones.
    """
    if len(steps) < LEAST:
        return None
    rate = quantile([s.bytes_per_second for s in steps], 0.5)
    waits = [plain_wait(s, rate) for s in steps]
    found = median([s.seconds / (s.seconds - s.exposed + wait) for s, wait in zip(steps, waits, strict=True)])
    if found.low <= 1:
        return None
    now, wait, own = (quantile(x, 0.5) for x in ([s.seconds for s in steps], waits, [s.exposed for s in steps]))
    return (
        f"{codec} does not pay in this run. A step waits {format_milliseconds(own)} for it, and would wait "
        f"{format_milliseconds(wait)} for plain DDP at most, by the {format_rate(bandwidth(rate, 1))} seen here: it "
        f"takes {format_milliseconds(now)}, and would take {format_milliseconds(now / found.middle)} or less (ratio "
        f"{found}, the 95 % interval of {len(steps)} steps). This is an estimate from the run itself; "
        "gradwire.attach(model), without a codec, tries both and keeps the faster."
    )
