"""One step's backward pass and exchange as a timeline: who computes, who sends, who waits.

Gradients of a job are there after a share of the backward pass. Its stages (compute: encode, decode; exchange: the
network) follow one another. There is one lane (one thread or stream takes a job from encode to decode before the next
one starts, as in `gradwire.attach`) or a lane for each kind of stage (as DDP's own all-reduces: the next bucket is
sent while the last one is unpacked).

Contention counts only while there is any: an exchange under way slows the backward pass by `network_slowdown`; a
compute stage and the backward pass, while both run, are each 1 + `compute_sharing` times slower.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

COMPUTE, EXCHANGE = "compute", "exchange"
_EPSILON = 1e-9  # seconds or shares: less than counts, more than sums of floats are off


@dataclass(frozen=True)
class Stage:
    """A stretch of work of one kind."""

    kind: str  # COMPUTE or EXCHANGE
    seconds: float  # if nothing else runs


@dataclass(frozen=True)
class Job:
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


@dataclass
class _Open:
    """A job under way."""

    job: Job
    stage: int = 0
    left: float = 0.0

    def __post_init__(self) -> None:
        self._skip()

    def _skip(self) -> None:
        """On to the next stage that takes time."""
        stages = self.job.stages
        while self.stage < len(stages) and stages[self.stage].seconds <= _EPSILON:
            self.stage += 1
        self.left = stages[self.stage].seconds if self.stage < len(stages) else 0.0

    def finish_stage(self) -> None:
        self.stage += 1
        self._skip()

    @property
    def done(self) -> bool:
        return self.stage >= len(self.job.stages)

    @property
    def kind(self) -> str:
        return self.job.stages[self.stage].kind


def simulate(backward: float, jobs: Sequence[Job], overlap: Overlap, *, one_lane: bool) -> Timeline:
    """Play the step. Jobs are taken in their order."""
    waiting = [_Open(job) for job in jobs]
    now, progress, backward_end = 0.0, 0.0, 0.0 if backward <= 0 else None
    while True:
        share = 1.0 if backward <= 0 else progress / backward
        if backward_end is None and progress >= backward - _EPSILON:
            backward_end, share = now, 1.0
        waiting = [w for w in waiting if not w.done]
        if backward_end is not None and not waiting:
            return Timeline(backward_end, now)
        active = _active([w for w in waiting if w.job.ready <= share + _EPSILON], one_lane)
        computing = any(w.kind == COMPUTE for w in active)
        sending = any(w.kind == EXCHANGE for w in active)
        running = backward_end is None
        shared = 1 + overlap.compute_sharing if running and computing else 1.0
        slower = shared * (overlap.network_slowdown if sending else 1.0)
        rates = {COMPUTE: 1 / shared, EXCHANGE: 1.0}
        steps = [w.left / rates[w.kind] for w in active]
        if running:
            upcoming = [w.job.ready * backward for w in waiting if w.job.ready > share + _EPSILON]
            steps.append((min([backward, *upcoming]) - progress) * slower)
        step = max(0.0, min(steps))
        now += step
        progress += step / slower if running else 0.0
        for w in active:
            w.left -= step * rates[w.kind]
            if w.left <= _EPSILON:
                w.finish_stage()


def _active(ready: list[_Open], one_lane: bool) -> list[_Open]:
    """What runs now: the first job, or the first of each kind of stage."""
    if one_lane:
        return ready[:1]
    firsts: dict[str, _Open] = {}
    for job in ready:
        firsts.setdefault(job.kind, job)
    return list(firsts.values())
