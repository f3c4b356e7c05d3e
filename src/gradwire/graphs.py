"""CUDA graphs: what a unit's program launches between two exchanges is captured once, and replayed in later steps.

A replay costs the host one call, however many kernels there are. It repeats what was launched, to the address. So a
capture belongs to where the gradient and the memories lie (memories alternate between two buffers: a unit has two
captures), and it is made by a rehearsal: the program runs to its end while nothing is executed, its exchanges answered
by empty tensors. Random keys lie in one tensor, which is filled before each replay.

Units whose program cannot be repeated are launched kernel by kernel, as first steps are: payloads of variable size,
hosts that wait for numbers, random numbers by keys that the host knows, state outside of slots, gradients or memories
that move. `Graphs.summary` counts them, with the reason.
"""

from __future__ import annotations

import gc
import os
import threading
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias, TypeVar

import torch
from torch import Tensor

from gradwire.collectives import local
from gradwire.core.exchange import Exchange, Payload, Program, Reduction, Route, as_answer, as_batch
from gradwire.core.slots import Slot
from gradwire.core.state import Store
from gradwire.kernels.recording import NotRepeatable, Recording
from gradwire.unit import UnitResult

WARM = 2  # steps of a unit, one for each buffer of its memories, before it is captured
TRIES = 3  # failures of captures after which there are no more
MOST = 8  # captures of a unit: more of them, and its tensors do not stay where they are
END = "the end of a step"
CHANGES = "it does not exchange the same in each step"
Where: TypeAlias = tuple[object, ...]
R = TypeVar("R")
_capturing = threading.Lock()  # one at a time


@dataclass(frozen=True, eq=False)
class Capture:
    """A unit's step, ready to be replayed."""

    where: Where
    stores: tuple[tuple[Store, int], ...]  # and how often each had changed
    graphs: tuple[torch.cuda.CUDAGraph, ...]
    requests: tuple[Any, ...]  # after each graph but the last
    answers: tuple[tuple[Tensor, ...], ...]  # where their answers are put
    result: Any
    turns: tuple[tuple[Slot, Tensor | None, Tensor], ...]
    recording: Recording

    def fits(self, where: Where) -> bool:
        """Whether all tensors are where they were."""
        return (
            self.where == where
            and all(store.changes == changes for store, changes in self.stores)
            and all(slot.current is current and slot.is_spare(pending) for slot, current, pending in self.turns)
        )

    def replay(self, step: int) -> Program[Any]:
        """What the program would do in this step."""
        self.recording.fill(step)
        for graph, request, room in zip(self.graphs[:-1], self.requests, self.answers, strict=True):
            graph.replay()
            answer = yield request
            for to, tensor in zip(room, _tensors(answer), strict=True):
                if to.data_ptr() != tensor.data_ptr():  # else the driver has put it there
                    to.copy_(tensor)
        self.graphs[-1].replay()
        if not isinstance(self.result, UnitResult):
            return self.result
        return replace(self.result, writes=tuple(writes.again() for writes in self.result.writes))


@dataclass
class Unit:
    """What is known of a unit."""

    steps: Counter[Where] = field(default_factory=Counter)  # launched, by where the tensors were
    answers: list[Any] = field(default_factory=list)  # of the last launched step
    captures: list[Capture] = field(default_factory=list)
    refusal: str | None = None  # why it is not captured
    replays: int = 0
    failures: int = 0  # of captures

    def attempt(self, capture: Callable[[], Capture]) -> Capture | None:
        """A capture; None, and a refusal, if that cannot be: the step is launched then."""
        try:
            if len(self.captures) == MOST:
                self.captures.clear()
                raise NotRepeatable("its tensors do not stay where they are")
            return capture()
        except NotRepeatable as problem:
            self.refusal = str(problem)
        except RuntimeError as problem:  # of CUDA: the step can be launched, and captured later
            self.failures += 1
            self.refusal = f"captures failed: {problem}" if self.failures == TRIES else None
        return None

    def launch(self, where: Where) -> None:
        """A step is launched."""
        if len(self.steps) > MOST:
            self.steps.clear()
        self.steps[where] += 1


class Graphs:
    """The captures of an engine's units.

    ``GRADWIRE_GRAPHS=off`` in the environment turns them off.
    """

    def __init__(self, wanted: bool = True) -> None:
        self.wanted = wanted and os.environ.get("GRADWIRE_GRAPHS") != "off"
        self._units: dict[object, Unit] = {}

    def forget(self) -> None:
        """Capture all units anew: what they do has changed."""
        self._units = {}

    def serve(self, x: Tensor) -> bool:
        """Whether gradients like `x` can be captured."""
        return self.wanted and x.device.type == "cuda" and x.numel() > 0

    def run(
        self,
        name: object,
        where: Where,
        stores: Sequence[Store],
        step: int,
        make: Callable[[], Program[R]],
    ) -> Program[R]:
        """A step of the unit `name`: replayed, captured and replayed, or launched.

        Args:
            name: which unit it is.
            where: all addresses and numbers that launches are made with.
            stores: where its state is.
            step: the number of the step.
            make: gives the program.
        """
        unit = self._units.setdefault(name, Unit())
        fitting = next((capture for capture in unit.captures if capture.fits(where)), None)
        if fitting is None and unit.refusal is None and unit.steps[where] >= WARM:
            fitting = unit.attempt(lambda: _captured(unit, where, stores, make))
            unit.captures += [] if fitting is None else [fitting]
        if fitting is not None:
            unit.replays += 1
            result: R = yield from fitting.replay(step)
            return result
        unit.launch(where)
        unit.answers = []
        return (yield from _watched(make(), unit.answers))

    def repeat(self, where: Where, work: Callable[[], Tensor]) -> Tensor:
        """The end of a step, which exchanges nothing, in the same way: what `work` gives."""

        def program() -> Program[Tensor]:
            return work()
            yield  # type: ignore[unreachable]  # makes it a generator

        found: Tensor = local.run(self.run(END, where, (), 0, program), 1)
        return found

    def summary(self) -> dict[str, Any]:
        """How many units are replayed, how often that was done, and why others are launched."""
        units = [unit for name, unit in self._units.items() if name != END]
        refusals = Counter(unit.refusal for unit in units if unit.refusal is not None)
        captured, replays = sum(bool(unit.captures) for unit in units), sum(unit.replays for unit in units)
        return {"captured": captured, "replays": replays, "launched": dict(refusals)}


def lies(x: Tensor) -> Where:
    """Where a tensor lies, and how."""
    return x.data_ptr(), tuple(x.shape), x.stride(), x.dtype, x.device


def _watched(program: Program[R], answers: list[Any]) -> Program[R]:
    """The program; what its exchanges are answered is noted."""
    answer: Any = None
    while True:
        try:
            request = program.send(answer)
        except StopIteration as done:
            return done.value  # type: ignore[no-any-return]
        answer = yield request
        answers.append(as_answer(request, [_empty(one) for one in as_batch(answer)]))


def _empty(answer: Any) -> Any:
    """A tensor or payload of the same form, without memory."""
    if isinstance(answer, Payload):
        return Payload(answer.data.to("meta"), answer.lengths)
    return answer.to("meta")


def _with_room(exchange: Exchange, answer: Any, device: torch.device) -> tuple[Exchange, Any]:
    """An exchange that says where its answer may be put, and an answer there. Sums may be made in place."""
    if isinstance(exchange, Reduction):
        if exchange.tensor.shape[1:] != answer.shape[1:]:
            raise NotRepeatable(CHANGES)
        in_place = exchange.tensor.shape == answer.shape and exchange.tensor.is_contiguous()
        return exchange, exchange.tensor if in_place else torch.empty_like(answer, device=device)
    if answer.lengths is not None:
        raise NotRepeatable("payloads of variable size")
    room = torch.empty_like(answer.data, device=device)
    return exchange if isinstance(exchange, Route) else replace(exchange, into=room), Payload(room)


def _tensors(answer: Any) -> tuple[Tensor, ...]:
    each = answer if isinstance(answer, tuple) else (answer,)
    return tuple(one.data if isinstance(one, Payload) else one for one in each)


def _captured(unit: Unit, where: Where, stores: Sequence[Store], make: Callable[[], Program[Any]]) -> Capture:
    """A rehearsal of the program: what each stretch launches becomes a graph."""
    device = torch.device("cuda", torch.cuda.current_device())
    changes = tuple((store, store.changes) for store in stores)
    program, recording, stretches = make(), Recording(device), _Stretches(unit)
    requests, answers, answer = list[Any](), list[Any](), None
    with _capturing, _nothing_freed(), torch.no_grad(), torch.cuda.stream(_stream(device)):
        torch.cuda.synchronize(device)
        for known in [*unit.answers, None]:
            request, result = stretches.add(program, answer, recording)
            if known is None or result is not None:
                break
            if len(as_batch(request)) != len(as_batch(known)):
                raise NotRepeatable(CHANGES)
            roomy = [_with_room(e, a, device) for e, a in zip(as_batch(request), as_batch(known), strict=True)]
            requests.append(as_answer(request, [exchange for exchange, _ in roomy]))
            answer = as_answer(request, [room for _, room in roomy])
            answers.append(answer)
    if result is None or len(requests) != len(unit.answers):
        raise NotRepeatable(CHANGES)
    written = result.writes if isinstance(result, UnitResult) else ()
    if not all(writes.slots_only for writes in written):
        raise NotRepeatable("state outside of slots")
    turns = tuple(turn for writes in written for turn in writes.turns())
    if any(current is None for _, current, _ in turns):
        raise NotRepeatable("a memory that is empty")
    rooms = tuple(map(_tensors, answers))
    return Capture(where, changes, tuple(stretches.graphs), tuple(requests), rooms, result, turns, recording)


@contextmanager
def _nothing_freed() -> Iterator[None]:
    """Inside, Python does not look for garbage: what CUDA frees for it would end a capture."""
    gc.collect()
    was = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was:
            gc.enable()


def _stream(device: torch.device) -> torch.cuda.Stream:
    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]


class _Stretches:
    """Graphs of one unit, in one pool of memory: they are replayed one after the other."""

    def __init__(self, unit: Unit) -> None:
        known = [capture.graphs[0] for capture in unit.captures]
        self._pool = known[0].pool() if known else torch.cuda.graph_pool_handle()
        self.graphs: list[torch.cuda.CUDAGraph] = []

    def add(self, program: Program[UnitResult], answer: Any, recording: Recording) -> tuple[Any, UnitResult | None]:
        """Capture the next stretch of a program: what it asks for then, or its result."""
        graph, request, result = torch.cuda.CUDAGraph(), None, None
        graph.capture_begin(pool=self._pool, capture_error_mode="thread_local")
        try:
            with recording:
                request = program.send(answer)
        except StopIteration as done:
            result = done.value
        finally:
            with warnings.catch_warnings():  # a stretch may launch nothing
                warnings.filterwarnings("ignore", "The CUDA Graph is empty")
                graph.capture_end()
        self.graphs.append(graph)
        return request, result
