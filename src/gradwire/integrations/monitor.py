"""Behind `handle.watch(...)`: what rank 0 sees of its own steps, told every so many of them.

Nothing is exchanged for it, no result is touched, and a device is waited for only when numbers are told. Moments are
taken when gradients are ready (see `core.moments`); between two steps, when no exchange is under way, those that are
past become seconds.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from gradwire.core.moments import Exchanged, Moment, moment, reached, seconds_between
from gradwire.core.records import quantile
from gradwire.integrations.payoff import Timed, judge
from gradwire.integrations.ways import Way
from gradwire.integrations.window import Window

WARM_UP = 5  # steps: DDP orders its buckets, kernels are compiled, memory is allocated
JUDGED = 200  # of the last steps
PARTS = ("encode", "communicate", "decode")
log = logging.getLogger("gradwire")
Listener = Callable[[Window], None]


@dataclass(frozen=True)
class Progress:
    """What a handle has counted since it was attached; `exchanged` is of the last step alone, and told once."""

    steps: int
    sent_bytes: float
    parts: tuple[float, float, float] | None  # seconds of lanes' threads: encode, communicate, decode; None on a GPU
    exchanged: Exchanged | None


@dataclass
class Seen:
    """One step, on the way from moments to seconds."""

    begun: Moment
    plain_bytes: int = 0  # that would be sent without a codec
    arrivals: list[tuple[Moment, int]] = field(default_factory=list)  # of buckets: when, and their part of that
    ended: Moment | None = None
    exchanged: Exchanged | None = None
    sent_bytes: float = 0.0
    parts: tuple[float, ...] | None = None

    @property
    def known(self) -> bool:
        """Whether all its moments are past."""
        ended = self.ended is not None and reached(self.ended)
        return ended and (self.exchanged is None or self.exchanged.reached)

    @property
    def seconds(self) -> float:
        assert self.ended is not None, "it is known"
        return seconds_between(self.begun, self.ended)

    @property
    def timed(self) -> Timed | None:
        """What tells whether the codec pays; None where it is not known."""
        found = self.exchanged
        if found is None or found.exchanging is None or found.bytes_per_second is None:
            return None
        return Timed(
            seconds=self.seconds,
            computed=seconds_between(self.begun, found.computed),
            exposed=found.exposed,
            exchanging=found.exchanging,
            arrivals=tuple((seconds_between(self.begun, at), float(size)) for at, size in self.arrivals),
            bytes_per_second=found.bytes_per_second,
        )


class Monitor:
    """Watches the steps of one rank.

    Args:
        progress: what a handle has counted until now.
        stats: its statistics; asked for every so many steps.
        every: steps.
        listeners: called with each window.
        closers: called once, at the end.
        device: where the gradients are.
        workers: how many ranks there are.
        way: how they reduce gradients.
        judges: whether to warn, once, if the codec surely does not pay.
    """

    def __init__(
        self,
        progress: Callable[[], Progress],
        stats: Callable[[], dict[str, Any]],
        every: int,
        listeners: Sequence[Listener],
        closers: Sequence[Callable[[], None]],
        device: torch.device,
        workers: int,
        way: Way,
        *,
        judges: bool,
    ) -> None:
        self._progress, self._stats, self._every, self._listeners = progress, stats, every, listeners
        self._closers, self._device, self._workers, self._way = closers, device, workers, way
        self._judges = judges and device.type == "cpu"  # on a GPU threads only launch, and their time says nothing
        self._plain: dict[int, int] = {}  # of a gradient of so many bytes
        self._last = progress()
        self._step: Seen | None = None  # that is under way
        self._waiting: deque[Seen] = deque()  # ended, but not all their moments are past
        self._window: list[Seen] = []
        self._timed: deque[Timed] = deque(maxlen=JUDGED)
        self._count = 0  # steps that have begun
        self._ended = False

    def on_gradient(self, gradient: Tensor, first: bool) -> None:
        """Look at a gradient that is ready.

        Args:
            gradient: of a bucket of DDP's, say.
            first: it begins a step.
        """
        if not self._ended:
            self._guarded(lambda: self._see(gradient, first))

    def _guarded(self, look: Callable[[], None]) -> None:
        """What goes wrong here, a disk that is full, say, is no reason to end a training."""
        try:
            look()
        except Exception as problem:
            self._ended = True
            log.warning("gradwire: this training goes on, but is not watched any more: %r", problem)

    def _see(self, gradient: Tensor, first: bool) -> None:
        if first:
            self._begin(moment(self._device))
        assert self._step is not None, "gradients come in order"
        if (plain := self._plain.get(gradient.nbytes)) is None:
            plain = self._plain[gradient.nbytes] = self._way.plain_bytes([gradient], self._workers)
        self._step.plain_bytes += plain
        if self._judges:
            self._step.arrivals.append((moment(self._device), plain))

    def _begin(self, now: Moment) -> None:
        """The last step has ended; tell what was seen, if it is time."""
        step, before, self._last = self._step, self._last, self._progress()
        self._step, self._count = Seen(now), self._count + 1
        if step is None:
            return
        step.ended, step.exchanged = now, self._last.exchanged
        step.sent_bytes = self._last.sent_bytes - before.sent_bytes
        if self._last.parts is not None and before.parts is not None:
            step.parts = tuple(b - a for a, b in zip(before.parts, self._last.parts, strict=True))
        if self._count > WARM_UP + 1:
            self._waiting.append(step)
        while self._waiting and self._waiting[0].known:
            self._take(self._waiting.popleft())
        if (self._last.steps or self._count - 1) % self._every == 0:
            self.tell()

    def _take(self, step: Seen) -> None:
        self._window.append(step)
        if self._judges and (timed := step.timed) is not None:
            self._timed.append(timed)
        step.arrivals.clear()  # a window may be long

    def tell(self) -> None:
        """Tell all listeners what the steps since the last time showed."""
        if not self._window:
            return
        window, self._window = self._made(self._window), []
        for listener in self._listeners:
            listener(window)
        if self._judges and (told := judge(window.codec, self._timed)) is not None:
            self._judges = False
            log.warning("gradwire: %s", told)

    def close(self) -> None:
        """Tell what is left, and close what was opened; once."""
        if not self._ended:
            self._guarded(self.tell)
        self._ended, closers, self._closers = True, self._closers, ()
        for close in closers:
            close()

    def _made(self, steps: list[Seen]) -> Window:
        stats = self._stats()
        exchanges = [s.exchanged for s in steps if s.exchanged is not None]
        spent = [s.parts for s in steps if s.parts is not None]
        return Window(
            step=self._last.steps or self._count - 1,
            codec=stats["codec"],
            framework=self._way.framework,
            seconds=tuple(s.seconds for s in steps),
            sent_bytes=sum(s.sent_bytes for s in steps) / len(steps),
            plain_bytes=sum(s.plain_bytes for s in steps) / len(steps),
            hidden=quantile([e.hidden for e in exchanges], 0.5) if exchanges else None,
            exposed=quantile([e.exposed for e in exchanges], 0.5) if exchanges else None,
            parts={name: sum(p[i] for p in spent) / len(spent) for i, name in enumerate(PARTS)} if spent else None,
            residual_norm=stats["residual_norm"],
            nmse=stats["nmse"],
            skipped_steps=stats["skipped_steps"],
        )
