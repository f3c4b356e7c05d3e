"""What every framework needs of an engine: units go in, means come out, a step is committed.

    session = Session(engine, group, device)
    session.begin_step(loss_scale, learning_rate)
    session.reduce(gradient, layout, gradient)      # for each unit, in the same order on all ranks
    session.commit()                                # all units of the step have been handed in
    session.wait()

The units of a step take the lanes of a channel in turn, see `collectives.channel`. Each lane's thread alone talks to
its process group. After a failure nothing more is sent: the ranks no longer agree.
"""

from __future__ import annotations

import dataclasses
import math
import warnings
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from functools import partial
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from gradwire import checkpoint
from gradwire.adaptive import Settings
from gradwire.collectives import local
from gradwire.collectives.c10d import Clock, ProcessGroupDriver
from gradwire.collectives.channel import check_agreement, lanes_over
from gradwire.collectives.checksums import checksummed
from gradwire.collectives.meter import Meter
from gradwire.core.errors import ExchangeFailed, Incompatible
from gradwire.core.exchange import Program, side_by_side
from gradwire.core.layout import Layout
from gradwire.core.moments import Exchanged, Moment, moment
from gradwire.core.registry import to_spec
from gradwire.core.stays_here import StaysHere
from gradwire.engine import Engine
from gradwire.sharded import reduce_scatter
from gradwire.unit import UnitResult

R = TypeVar("R")
TINY = 1 << 18  # bytes of a unit that waits for the next one, to travel with it


@dataclasses.dataclass(frozen=True, eq=False)
class Handed:
    """A unit that was handed in."""

    program: Program[UnitResult]
    out: Tensor
    then: Callable[[Tensor], None]
    future: Future[Tensor]


class Session(StaysHere):
    """The compression of one rank among those of a process group.

    Args:
        engine: codec, memory and strategy of this rank.
        group: the ranks that train together.
        device: where the gradients are.
        who: the caller's name in messages.
        set_up: what else the ranks must have in common, in words.
        checksum: hold what arrives to a checksum of what was sent.

    Example:
        One rank has nothing to exchange. With more of them, hand in units between `begin_step` and `commit`, as above.

        >>> import torch, torch.distributed as dist
        >>> from gradwire.engine import Engine
        >>> dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
        >>> session = Session(Engine("topk"), dist.group.WORLD, torch.device("cpu"), who="my framework")
        >>> session.alone, session.stats()["sent_bytes"]
        (True, 0)
        >>> session.load_state_dict(session.state_dict())
        >>> dist.destroy_process_group()
    """

    def __init__(
        self,
        engine: Engine,
        group: dist.ProcessGroup,
        device: torch.device,
        *,
        who: str,
        set_up: str = "",
        checksum: bool = False,
    ) -> None:
        self.engine, self.group, self.device, self.checksum = engine, group, device, checksum
        self.steps = 0  # committed since this was made; the engine's count goes on from a restored one
        self.squares: list[Tensor | None] = []  # of error and mean of each unit of the last step, where measured
        self._held: list[Handed] = []  # tiny units that wait for the next one
        self._launched = 0  # units, or tiny ones with another, in this step
        self._results: dict[int, list[UnitResult]] = {}  # by their number, of this step
        self.watched = False  # whether moments of exchanges are taken
        self._begun: Moment | None = None  # of this step
        self._done: Moment | None = None
        self._exchanged: Exchanged | None = None  # of the last one
        self._drivers: list[ProcessGroupDriver] = []
        self.alone = engine.workers == 1
        if self.alone:
            return
        check_agreement(group, f"{_described(engine)}{', checksums' if checksum else ''}{set_up}", who)
        self._lanes = lanes_over(group, device)
        self._drivers = [lane.driver(engine.teams) for lane in self._lanes]
        if engine.measured:
            self._uncounted(engine.measure(device))

    # ---------------------------------------------------------------- one step

    def begin_step(self, loss_scale: float = 1.0, learning_rate: float = 1.0) -> None:
        """Begin a step: say in which units its gradients are, so that memories can follow.

        Args:
            loss_scale: what the loss was multiplied by. One that is not finite is ignored.
            learning_rate: what the gradient will be multiplied by. One of 0 is ignored.
        """
        self.raise_error()
        if not self.steps and not self.alone:
            self._uncounted(checkpoint.same_step(self.engine, self.device))
        if learning_rate > 0 and math.isfinite(loss_scale):
            self.engine.begin_step(loss_scale, learning_rate)

    def reduce(
        self,
        x: Tensor,
        layout: Layout,
        out: Tensor | None = None,
        then: Callable[[Tensor], None] = lambda out: None,
        more: bool = False,
    ) -> Future[Tensor]:
        """Hand in a unit, to be reduced to its mean over the ranks. All ranks must do so in the same order.

        Args:
            x: the flat gradient.
            layout: which parameter lies where in it.
            out: where the mean is written; it may be `x` itself. None: a new tensor. It is the future's result.
            then: called with the mean on the lane's thread, before the future is done.
            more: another unit follows in this step. A tiny one waits for it, and their messages travel together.
        """
        target = torch.empty_like(x) if out is None else out
        self.engine.announce(layout)
        return self._submit(self._program(x, layout, target), target, then, more)

    def _program(self, x: Tensor, layout: Layout, out: Tensor) -> Program[UnitResult]:
        scratch = out.data_ptr() == x.data_ptr()
        return (yield from self.engine.reduce(x[None], layout, out[None], scratch=scratch))

    def reduce_scatter(
        self, x: Tensor, layout: Layout, out: Tensor, then: Callable[[Tensor], None] = lambda out: None
    ) -> Future[Tensor]:
        """Hand in a unit, of whose mean each rank gets one shard.

        Args:
            x: the flat gradient: equal shards for all ranks, in order.
            layout: which parameter lies where in it.
            out: where this rank's shard of the mean is written. It is the future's result.
            then: called with it on the lane's thread, before the future is done.
        """
        return self._submit(reduce_scatter(self.engine, x[None], layout, out[None]), out, then)

    def _submit(
        self, program: Program[UnitResult], out: Tensor, then: Callable[[Tensor], None], more: bool = False
    ) -> Future[Tensor]:
        handed = Handed(program, out, then, Future())
        self._held.append(handed)
        # the teams of one rank differ from those of another: only exchanges among all come in one order everywhere
        if not more or out.nbytes > TINY or self.engine.teams:
            self._launch()
        return handed.future

    def _launch(self) -> None:
        """Start what was handed in: a unit, and the tiny ones before it."""
        if self.watched and not self._launched:
            self._begun = moment(self.device)
        index = self._launched % len(self._lanes)
        job = partial(self._reduce, self._launched, self._drivers[index], self._held)
        self._lanes[index].executor.submit(job)
        self._held, self._launched = [], self._launched + 1

    def _reduce(self, number: int, driver: ProcessGroupDriver, units: Sequence[Handed]) -> None:
        try:
            self._results[number] = self._drive(driver, side_by_side([unit.program for unit in units]))
            for unit in units:
                unit.then(unit.out)
        except BaseException as problem:
            for unit in units:
                unit.future.set_exception(problem)
            raise
        for unit in units:
            unit.future.set_result(unit.out)

    def commit(self, then: Callable[[], None] = lambda: None) -> None:
        """Say that all units of the step are handed in. The memories are then written, if all results are finite.

        Args:
            then: called after that, on the first lane's thread.
        """
        if self._held:
            self._launch()
        self._launched = 0
        self._lanes[0].executor.submit(partial(self._commit, then))

    def _commit(self, then: Callable[[], None]) -> None:
        for lane in self._lanes[1:]:
            lane.executor.wait()
        results = [result for _, found in sorted(self._results.items()) for result in found]
        self.engine.finish_step(results)
        self.squares = [result.squares for result in results]
        self._results = {}
        self.steps += 1
        then()
        if self.watched:
            self._done = moment(self.device)

    def wait(self) -> None:
        """Wait until all that was handed in is done; raise what the first failing unit raised."""
        computed = (moment(self.device), self.parts_seconds) if self.watched else None
        self.join()
        if computed is not None and self._begun is not None and self._done is not None:
            self._exchanged = Exchanged(self._begun, computed[0], self._done, *self._seen_since(computed[1]))
            self._begun = self._done = None

    def join(self) -> None:
        """Wait for the units handed in so far, in the middle of a step; raise what the first failing one raised."""
        for lane in self._lanes:
            lane.executor.join()
            if isinstance(lane.executor.error, ExchangeFailed):  # a peer is gone: nothing else will end soon
                break
        if self._errors:
            self._held, self._results = [], {}
        self.raise_error()

    def _seen_since(self, before: tuple[float, float, float] | None) -> tuple[float | None, float | None]:
        """Seconds in exchanges since then, and the rate of the fastest of this step."""
        after, clocks = self.parts_seconds, [driver.clock for driver in self._drivers]
        if before is None or after is None:
            return None, None
        fastest = max(clock.bytes_per_second for clock in clocks)
        for clock in clocks:
            clock.bytes_per_second = 0.0
        return after[1] - before[1], fastest or None

    def take_exchanged(self) -> Exchanged | None:
        """The moments of the last step's exchange, once; None where there was none, or `watched` is not set."""
        found, self._exchanged = self._exchanged, None
        return found

    def raise_error(self) -> None:
        """Raise what an earlier unit raised: nothing more is sent after it. A failure here comes before a peer's."""
        for error in sorted(self._errors, key=lambda e: isinstance(e, ExchangeFailed)):
            raise error

    @property
    def _errors(self) -> list[Exception]:
        lanes = [] if self.alone else self._lanes
        return [lane.executor.error for lane in lanes if lane.executor.error is not None]

    def run(self, program: Program[R]) -> R:
        """Drive a program of the engine to its end, behind the units that wait.

        Args:
            program: a generator of exchanges.
        """
        if self.alone:
            return local.run(program, 1)
        return self._lanes[0].executor.call(partial(self._drive, self._drivers[0], program))

    def _drive(self, driver: ProcessGroupDriver, program: Program[R]) -> R:
        engine = self.engine
        return driver.run(checksummed(program, engine.codec.spec, engine.workers) if self.checksum else program)

    def _uncounted(self, program: Program[Any]) -> None:
        """Run what is no part of the training."""
        driver = self._drivers[0]
        counted = driver.meter, driver.clock
        driver.meter, driver.clock = Meter(), Clock()
        self.run(program)
        driver.meter, driver.clock = counted

    def broadcast(self, x: Tensor) -> None:
        """Give all ranks the first rank's tensor.

        Args:
            x: read on the first rank, overwritten on the others.
        """
        source = dist.get_global_rank(self.group, 0)
        lane = self._lanes[0]
        lane.executor.call(lambda: dist.broadcast(x, source, group=lane.group))

    def end_epoch(self, learning_rate: float, next_learning_rate: float) -> Settings:
        """Let the controller decide on the next epoch, alike on all ranks, which must all call this.

        Args:
            learning_rate: of the last step, by the schedule.
            next_learning_rate: of the next step, by the schedule.
        """
        return self.run(self.engine.end_epoch(learning_rate, next_learning_rate))

    # ---------------------------------------------------------------- state and statistics

    def state_dict(self) -> dict[str, Any]:
        """This rank's state: tensors and plain values, keyed by parameter name."""
        return checkpoint.save(self.engine)

    def load_state_dict(self, state: Mapping[str, Any] | Sequence[Mapping[str, Any]]) -> None:
        """Continue from a saved state.

        Args:
            state: of this rank; or, after a change of the number of ranks, the list of all ranks' states.
        """
        checkpoint.load(self.engine, state)

    @property
    def sent_bytes(self) -> int:
        """What has left this rank by the network since this was made."""
        return sum(driver.meter.sent_bytes for driver in self._drivers)

    @property
    def parts_seconds(self) -> tuple[float, float, float] | None:
        """Encode, communicate (with waits for other ranks) and decode, of the lanes' threads; None on an accelerator.

        On a GPU threads only launch, and their time says nothing.
        """
        if self.device.type != "cpu" or self.alone:
            return None
        clocks = [driver.clock for driver in self._drivers]
        return sum(c.encode for c in clocks), sum(c.communicate for c in clocks), sum(c.decode for c in clocks)

    def stats(self) -> dict[str, Any]:
        """Tell what has happened since this was made. Seconds are of the host's clock, and None on an accelerator."""
        engine, sent = self.engine, self.sent_bytes
        encode, communicate, decode = self.parts_seconds or (None, None, None)
        norms = engine.residual_norms()
        meters = [driver.meter for driver in self._drivers]
        steering = engine.steering
        return {
            "codec": engine.codec.spec,
            "memory": to_spec(engine.memory),
            "workers": engine.workers,
            "steps": engine.step,
            "skipped_steps": engine.skipped_steps,
            "payload_bytes": sum(m.payload_bytes for m in meters),
            "sent_bytes": sent,
            "node_bytes": sum(m.node_bytes for m in meters),
            "sent_bytes_per_step": sent / self.steps if self.steps else 0.0,
            "encode_seconds": encode,
            "communicate_seconds": communicate,
            "decode_seconds": decode,
            "nmse": engine.nmse(),
            "graphs": engine.graphs.summary(),
            "link": None if engine.link is None else dataclasses.asdict(engine.link),
            "residual_norm": math.hypot(*norms.values()) if norms else None,
            "residual_norms": norms,
            "controller": None if steering is None else steering.controller.spec,
            "levels": None if steering is None else dict(Counter(steering.settings.levels.values())),
            "switches": [] if steering is None else [switch.to_json() for switch in steering.switches],
        }


def warn_if_idle(engine: Engine, what: str, stacklevel: int) -> None:
    """Say that nothing will be compressed, if that is so; `what` happens instead where there is one rank only."""
    if engine.workers == 1:
        message = f"gradwire: the process group has one rank, so there is nothing to send; {what}"
    elif engine.peers == 1:
        message = "gradwire: all ranks are on one node, so nothing crosses the network, and nothing is compressed"
    else:
        return
    warnings.warn(message, stacklevel=stacklevel + 1)


def _described(engine: Engine) -> str:
    """All that the ranks' engines must have in common."""
    controller = "" if engine.steering is None else f"controller {engine.steering.controller.spec}, "
    return (
        f"codec {engine.codec.spec}, {controller}memory {to_spec(engine.memory)}, strategy {engine.strategy_spec}, "
        f"tensors {engine.tensors}, seed {engine.seed}, nmse_every {engine.nmse_every}"
    )


def group_of(wanted: dist.ProcessGroup | None, who: str) -> dist.ProcessGroup:
    """The process group to train in, all ranks if none is wanted; refused where there is none, or this rank is outside.

    Args:
        wanted: by the user.
        who: asks for it, for errors.
    """
    if not dist.is_available() or not dist.is_initialized():
        raise Incompatible(
            f"{who}: there is no process group. Start the ranks with torchrun and call "
            "torch.distributed.init_process_group first."
        )
    group = wanted if wanted is not None else dist.group.WORLD
    if group is None or dist.get_rank(group) < 0:
        raise Incompatible(f"{who}: rank {dist.get_rank()} is not in the process group it was given")
    return group
