"""One step's backward pass and exchange as a timeline: who computes, who sends, who waits.

Gradients of a job are there after a share of the backward pass. Its stages (compute: encode, decode; exchange: the
network) follow one another. There is one lane (one thread or stream takes a job from encode to decode before the next
one starts, as in `gradwire.attach`) or a lane for each kind of stage (as DDP's own all-reduces: the next bucket is
sent while the last one is unpacked).

Contention counts only while there is any: an exchange under way slows the backward pass by `network_slowdown`; a
compute stage and the backward pass, while both run, are each 1 + `compute_sharing` times slower.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

COMPUTE, EXCHANGE = "compute", "exchange"
_EPSILON = 1e-9  # seconds or shares: less than counts, more than sums of floats are off


class Stage(NamedTuple):
    """A stretch of work of one kind."""

    kind: str  # COMPUTE or EXCHANGE
    seconds: float  # if nothing else runs


class Job(NamedTuple):
    """One unit of compression."""

    ready: float  # share of the backward pass after which its gradients are there
    stages: tuple[Stage, ...]


@dataclass(frozen=True)
class Overlap:
    """How much work that runs at the same time disturbs each other."""

    network_slowdown: float = 1.0
    compute_sharing: float = 0.0


@dataclass(frozen=True)
class Timeline:
    """Seconds from the beginning of the backward pass."""

    backward_seconds: float  # until it has ended, disturbed as it was
    end_seconds: float  # until the last gradient is there, too


class _Open:
    """A job under way. Plain attributes: this is asked tens of thousands of times for one answer."""

    __slots__ = ("done", "kind", "left", "ready", "stage", "stages")

    def __init__(self, job: Job) -> None:
        self.ready, self.stages = job.ready, job.stages
        self.stage = -1
        self.finish_stage()

    def finish_stage(self) -> None:
        """On to the next stage that takes time."""
        for position in range(self.stage + 1, len(self.stages)):
            self.kind, self.left = self.stages[position]
            if self.left > _EPSILON:
                self.stage, self.done = position, False
                return
        self.stage, self.kind, self.left, self.done = len(self.stages), "", 0.0, True

    def rest(self) -> float:
        """Seconds until its end, if nothing else runs."""
        return self.left + sum(stage.seconds for stage in self.stages[self.stage + 1 :])


def simulate(backward: float, jobs: Sequence[Job], overlap: Overlap, *, one_lane: bool) -> Timeline:
    """Play the step. Jobs are taken in their order."""
    waiting = [w for w in map(_Open, jobs) if not w.done]
    arrivals = sorted({w.ready for w in waiting}, reverse=True)  # shares at which more is there, the next one last
    now, progress, backward_end = 0.0, 0.0, 0.0 if backward <= 0 else None
    while True:
        if backward_end is None and progress >= backward - _EPSILON:
            backward_end = now
        running = backward_end is None
        if backward_end is not None and (one_lane or not waiting):  # nothing is left that overlaps
            return Timeline(backward_end, now + sum(w.rest() for w in waiting))
        share = progress / backward + _EPSILON if running else math.inf
        active = _active(waiting, share, one_lane)
        kinds = [w.kind for w in active]
        shared = 1 + overlap.compute_sharing if running and COMPUTE in kinds else 1.0
        slower = shared * overlap.network_slowdown if EXCHANGE in kinds else shared
        step = min([w.left * shared if w.kind == COMPUTE else w.left for w in active], default=math.inf)
        if running:
            while arrivals and arrivals[-1] <= share:
                arrivals.pop()
            upcoming = arrivals[-1] * backward if arrivals else backward
            step = max(0.0, min(step, (min(backward, upcoming) - progress) * slower))
            progress += step / slower
        now += step
        for w in active:
            w.left -= step / shared if w.kind == COMPUTE else step
            if w.left <= _EPSILON:
                w.finish_stage()
                if w.done:
                    waiting.remove(w)


def _active(waiting: Sequence[_Open], share: float, one_lane: bool) -> list[_Open]:
    """What runs now of what is there: the first job, or the first of each kind of stage."""
    found: list[_Open] = []
    for job in waiting:
        if job.ready <= share and not (found and found[0].kind == job.kind):
            found.append(job)
            if one_lane or len(found) == 2:
                break
    return found
