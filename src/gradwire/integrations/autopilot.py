"""The autopilot: it tries plain DDP and safe codecs on the running job, and keeps what is fastest.

    handle = gradwire.attach(ddp_model)                      # or attach(ddp_model, "auto", task="language")

Candidates are the codecs that lost nothing to speak of in our trainings on the same kind of task, by the planner's
table of qualities. `trial` says how turns are taken and decided. This file carries them out:

1. The time of a step is that between the beginnings of two successive steps, seen in DDP's hook: forward, backward,
   exchange, optimizer and data. On a GPU the device's own clock takes it; the host waits at the end of a turn only.
2. At the end of a turn each rank has the median of its steps, and the greatest of them counts: a distributed step takes
   as long as on its slowest rank. Eight bytes are exchanged for that, and the decision follows from them alone.
3. A codec that is switched away repays: one step sends gradient and error memory uncompressed (the codec `none` under
   the same memory), so nothing is lost. A step that is not finite repays nothing, and is made again.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import GradBucket
from torch.nn.parallel import DistributedDataParallel

from gradwire.core.baselines import FP32
from gradwire.core.errors import Incompatible, StateMismatch
from gradwire.core.exchange import Max, Program, Sum
from gradwire.core.intervals import median
from gradwire.core.moments import Moment, moment, seconds_between, wait_for
from gradwire.core.registry import Check, to_spec
from gradwire.core.units import format_milliseconds
from gradwire.engine import Engine
from gradwire.integrations.ddp_hook import plain_mean
from gradwire.integrations.handle import Handle
from gradwire.integrations.layers import Layers
from gradwire.integrations.monitor import Progress
from gradwire.integrations.trial import WATCH, Pilot
from gradwire.planner import quality
from gradwire.planner.own_kind import guess
from gradwire.saved_state import check_whole, sealed
from gradwire.session import Session

AUTO = "auto"
# steps at the beginning of a turn: codecs compile and allocate in the first two, graphs are captured by the fourth
THROWN_AWAY = {"cpu": 2, "cuda": 5}
# steps; what is then left is of parameters that nobody uses, and waits for the codec's next turn
MOST_REPAYING = 4
ROUNDING = 1e-5  # of a debt: a third of a float32, times three, is not the same float32
TOTALS = ("payload_bytes", "sent_bytes", "node_bytes", "skipped_steps")
SECONDS = ("encode_seconds", "communicate_seconds", "decode_seconds")
Make = Callable[..., Engine]  # of a codec and a memory; the rest is as `attach` was told
HandleOf = Callable[..., Handle]  # of what `Handle` takes
log = logging.getLogger("gradwire")


class Autopilot(Handle):
    """A handle that changes codecs by itself. It is plain DDP, and lends its buckets to the handle of a codec.

    Args:
        model: wrapped in DistributedDataParallel.
        make: makes the engine of a codec.
        handle_of: makes the handle of a codec.
        task: the kind of task; None: by the model's modules.
        mode: how codecs see the gradient, as `attach` says.
        optimizer: as for `attach`.
        scaler: as for `attach`.
    """

    def __init__(
        self,
        model: DistributedDataParallel,
        make: Make,
        handle_of: HandleOf,
        task: str | None,
        mode: str,
        optimizer: torch.optim.Optimizer | None,
        scaler: torch.amp.GradScaler | None,
    ) -> None:
        if task is not None:
            Check("attach").one_of("task", task, quality.TASKS)
        self.task = guess(model.module) if task is None else task
        self._make, self._make_handle = make, handle_of
        engines = candidates(make, self.task)
        chooses = f", the autopilot among {', '.join(e.codec.spec for e in engines) or 'nothing'}"
        super().__init__(model, make(FP32, memory="none"), mode, optimizer, scaler, set_up=chooses)
        self._handles = {engine.codec.spec: self._handle_of(engine) for engine in engines}
        self._repayers: dict[str, Handle] = {}  # by memory
        for engine in filter(may_owe, engines):  # now: the ranks check with each other that their set-ups agree
            self._repayer(engine)
        if not engines and not is_idle(self.engine) and dist.get_rank(self._group) == 0:
            kind = self.task or "a model of this kind"
            log.warning("gradwire autopilot: plain DDP stays: no codec was tried on %s and lost nothing there", kind)
        device = self._session.device
        self.pilot = Pilot([FP32, *self._handles], THROWN_AWAY.get(device.type, max(THROWN_AWAY.values())))
        self._watch = Stopwatch(device)
        self._on = FP32  # whose turn it is, or was until its debts are repaid
        self._repaying, self._repaid, self._debt = False, 0, 0.0  # since when, and how much it was
        self._plain = {"payload_bytes": 0, "sent_bytes": 0}
        self._steps, self._steps_here = 0, 0  # in all, and since attach

    # ---------------------------------------------------------------- what DDP calls

    def on_bucket(self, bucket: GradBucket) -> torch.futures.Future[Tensor]:
        """Take a bucket from DDP's hook.

        Args:
            bucket: whose gradients are ready.
        """
        if bucket.index() == 0:
            self._check_group()
            self._begin()
        if self._session.alone:
            return super().on_bucket(bucket)
        if (active := self._active) is not None:
            return active.on_bucket(bucket)
        plain = Sum(bucket.buffer()[None])
        workers, rank = self.engine.workers, self.engine.ranks[0]
        self._plain["payload_bytes"] += plain.payload_bytes
        self._plain["sent_bytes"] += plain.sent_bytes(workers, rank)
        return plain_mean(bucket, self._group)

    @property
    def _active(self) -> Handle | None:
        """What takes the buckets; None: plain DDP."""
        handle = self._handles.get(self._on)
        return self._repayer(handle.engine) if self._repaying and handle is not None else handle

    def _begin(self) -> None:
        """A step begins: end a turn or a repayment, if it is time."""
        self._steps, self._steps_here = self._steps + 1, self._steps_here + 1
        if self._session.alone or (self._repaying and not self._done_repaying()):
            return
        self._watch.mark()
        turn = self.pilot.turn
        if self._watch.steps < turn.steps:
            return
        said = self.pilot.report(self._greatest(self._watch.median(turn.thrown_away)))
        if said is not None and dist.get_rank(self._group) == 0:
            log.warning("gradwire autopilot: %s", said)
        self._watch.clear()
        self._watch.mark()
        self._turn_to(self.pilot.turn.codec)

    def _turn_to(self, codec: str) -> None:
        """Let `codec` have its turn, after a step in which the last one repays what it owes."""
        handle = self._handles.get(self._on)
        if codec == self._on:
            return
        if handle is None or not may_owe(handle.engine):
            self._on = codec
            return
        self._repayer(handle.engine).engine.take_over(handle.engine)
        self._repaying, self._repaid, self._debt = True, 0, handle.engine.debt()

    def _done_repaying(self) -> bool:
        """Whether the last step has left no debts, on any rank; the next codec then has its turn."""
        engine = self._handles[self._on].engine
        engine.kept_scale = self._repayer(engine).engine.kept_scale
        self._repaid += 1
        left = self._greatest(float(engine.debt() > ROUNDING * self._debt))
        if left and self._repaid < MOST_REPAYING:
            return False
        if not left:
            engine.forget_own()
        self._repaying, self._on = False, self.pilot.turn.codec
        self._watch.clear()
        return True

    def _handle_of(self, engine: Engine, kind: HandleOf | None = None) -> Handle:
        model = self._model()
        assert model is not None, "it has just been attached to, or its hook is called"
        handle = (kind or self._make_handle)(model, engine, self.mode, self._optimizer, self._scaler)
        handle._session.watched = self._session.watched
        return handle

    def _repayer(self, engine: Engine) -> Handle:
        """What sends everything that an engine's memory holds."""
        memory = to_spec(engine.memory)
        if memory not in self._repayers:
            self._repayers[memory] = self._handle_of(self._make(FP32, memory=engine.memory), Handle)
        return self._repayers[memory]

    def _greatest(self, value: float) -> float:
        """Of all ranks' numbers."""
        own = torch.tensor([[value]], dtype=torch.float64, device=self._session.device)
        return self._session.run(_maximum(own))

    @property
    def _judges(self) -> bool:  # it tries plain DDP, and so knows whether a codec pays
        return False

    def _about(self) -> dict[str, Any]:
        return super()._about() | {"configuration": AUTO, "memory": "default"}

    def _sessions(self) -> list[Session]:
        """Of codecs, and of what repays for them; plain DDP goes through none."""
        return [handle._session for handle in (*self._handles.values(), *self._repayers.values())] + [self._session]

    def _progress(self) -> Progress:
        """All together; a step is of one of them."""
        sessions = self._sessions()
        times = [s.parts_seconds for s in sessions]
        known = [t for t in times if t is not None]
        exchanged = [e for s in sessions if (e := s.take_exchanged()) is not None]
        sent = self._plain["sent_bytes"] + sum(s.sent_bytes for s in sessions)
        encode, communicate, decode = (sum(t[i] for t in known) for i in range(3))
        parts = (encode, communicate, decode) if known else None
        return Progress(self._steps, sent, parts, exchanged[0] if exchanged else None)

    # ---------------------------------------------------------------- what users call

    def state_dict(self) -> dict[str, Any]:
        """This rank's state: that of the codec whose turn it is, and what was chosen."""
        handle = self._handles.get(self._on)
        state = super().state_dict() if handle is None else handle.state_dict()
        return sealed(state | {"autopilot": {"on": self._on, "steps": self._steps, **self.pilot.state_dict()}})

    def load_state_dict(self, state: Mapping[str, Any] | Sequence[Mapping[str, Any]]) -> None:
        """Continue from a saved state, with the choice that was made.

        Args:
            state: of this rank; or, after a change of the number of ranks, the list of all ranks' states.
        """
        states = [state] if isinstance(state, Mapping) else state
        check_whole(states)
        if states and "autopilot" not in states[0]:
            raise StateMismatch(
                f"gradwire: this state was saved by a run with codec {states[0].get('codec', 'none')!r} and without "
                "the autopilot; attach with that codec, or start without the state"
            )
        for handle in self._handles.values():  # what they owe is of steps that are undone
            handle.engine.forget_own()
        saved: Mapping[str, Any] = states[0]["autopilot"] if states else {"on": FP32}  # no states are refused below
        if saved["on"] == FP32:
            super().load_state_dict(state)
        else:
            if saved["on"] not in self._handles:  # no candidate any more: it is here to repay
                self._handles[saved["on"]] = self._handle_of(self._make(saved["on"]))
            self._handles[saved["on"]].load_state_dict(state)
        self.pilot.load_state_dict(saved)
        self._on, self._steps, self._repaying = saved["on"], saved["steps"], False
        self._watch.clear()
        self._turn_to(self.pilot.turn.codec)

    def layers(self) -> Layers:
        """Bytes and error of each parameter's gradient under the codec whose turn it is."""
        handle = self._handles.get(self._on)
        return super().layers() if handle is None else handle.layers()

    def __repr__(self) -> str:
        """What it does, and what the autopilot has found."""
        pilot = self.pilot
        found = f"chose {pilot.choice}" if pilot.phase == WATCH else "is trying"
        seconds = ", ".join(f"{name} {format_milliseconds(s)}" for name, s in pilot.medians.items())
        now = repr(self._handles[self._on]) if self._on in self._handles else "plain DDP"
        return (
            f"gradwire.Autopilot: {found}, among {', '.join(pilot.contestants)}; {self.engine.workers} ranks, "
            f"{self._steps} steps, {pilot.trials} trials{f'; a step: {seconds}' if seconds else ''}\nnow {now}"
        )

    def observe(self, kind: str, values: Mapping[str, Tensor]) -> None:
        """Tell the codec whose turn it is something about the coming step that gradients do not show.

        Args:
            kind: what it is.
            values: by parameter name.
        """
        if (active := self._active) is not None:
            active.observe(kind, values)

    def stats(self) -> dict[str, Any]:
        """Tell what has happened since `attach`, all codecs together, and what the autopilot has found.

        `codec` is what is on now, ``"none"`` for plain DDP; `autopilot` has the phase (``"trial"`` or ``"watch"``), the
        choice, the seconds of a step in the last trial, and how many trials there were.
        """
        handles = [*self._handles.values(), *self._repayers.values()]
        plain = super().stats()
        each = [plain, *(handle.stats() for handle in handles)]
        now = self._handles[self._on].stats() if self._on in self._handles else plain
        totals = {name: sum(one[name] for one in each) + self._plain.get(name, 0) for name in TOTALS}
        totals |= {name: None if plain[name] is None else sum(one[name] for one in each) for name in SECONDS}
        here = self._steps_here
        return (
            now
            | totals
            | {
                "steps": self._steps,
                "sent_bytes_per_step": totals["sent_bytes"] / here if here else 0.0,
                "mode": self.mode,
                "autopilot": {
                    "phase": self.pilot.phase,
                    "choice": self.pilot.choice,
                    "seconds": dict(self.pilot.medians),
                    "trials": self.pilot.trials,
                    "task": self.task,
                    "candidates": list(self.pilot.contestants),
                },
            }
        )


def candidates(make: Make, task: str | None) -> list[Engine]:
    """Engines of the codecs that are safe for a task, fit the strategy, and whose debts one step can repay.

    Args:
        make: makes the engine of a codec.
        task: its kind; None: not known.
    """
    if is_idle(make(FP32)):
        return []
    found = []
    for spec in quality.safe(task):
        try:
            engine = make(spec)
        except Incompatible:
            continue
        if engine.memory.repayable:
            found.append(engine)
    return found


def is_idle(engine: Engine) -> bool:
    """Whether nothing crosses the network."""
    return engine.workers == 1 or engine.peers == 1


def may_owe(engine: Engine) -> bool:
    """Whether anything may be owed: by the workers' memory, or by owners' that a strategy of the user's choice has."""
    return engine.memory.has_state or engine.strategy is not None


class Stopwatch:
    """Marks the beginnings of steps, on the clock of the device that computes them.

    Args:
        device: whose progress counts.

    >>> watch = Stopwatch(torch.device("cpu"))
    >>> watch.mark(), watch.mark(), watch.mark()
    (None, None, None)
    >>> watch.steps, watch.median(thrown_away=1) > 0
    (2, True)
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._marks: list[Moment] = []

    def mark(self) -> None:
        """A step begins. On a GPU: once all that was launched before is done."""
        self._marks.append(moment(self._device))

    def clear(self) -> None:
        """Forget all steps."""
        self._marks = []

    @property
    def steps(self) -> int:
        """How many have ended since the turn began."""
        return max(len(self._marks) - 1, 0)

    def median(self, thrown_away: int) -> float:
        """Seconds of a step, without the first ones; the host waits for the device.

        Args:
            thrown_away: how many.
        """
        marks = self._marks[thrown_away:]
        wait_for(marks[-1])
        return median([seconds_between(a, b) for a, b in itertools.pairwise(marks)]).middle


def _maximum(own: Tensor) -> Program[float]:
    found = yield Max(own)
    return float(found)  # here, on the thread that has waited for it
