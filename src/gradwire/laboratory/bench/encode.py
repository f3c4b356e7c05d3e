"""What a codec costs beside the network: encode, reduce and decode apart, against plain torch and a copy.

The engine's own program runs as one of `workers` workers, with its memory and strategy, and every exchange is answered
at once as if all workers had sent what this one did. The clock runs only while the program does:

- encode: until the first exchange (error feedback, scales, quantising or selecting, packing);
- reduce: between the first answer and the last exchange (an owner's sum and second encoding, middle rounds);
- decode: after the last answer (unpacking, summing what an all-gather brought, the memory's update and commit).

Compiled kernels, the plain torch reference and a copy of the gradient take turns, so that a noisy machine is noisy to
all of them alike; compare them within one run only.

On a GPU kernels are launched one by one, the GPU idle before each phase, so that a slow host counts. A third turn
replays them as CUDA graphs, behind other work: what a step takes of a GPU that is busy with the backward pass.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from gradwire import models
from gradwire.collectives import trace
from gradwire.core import environment
from gradwire.core.codec import codecs
from gradwire.core.errors import ConfigError
from gradwire.core.exchange import Program, as_answer, as_batch
from gradwire.core.layout import Layout
from gradwire.core.random import Random
from gradwire.core.records import Quantiles, Record, quantile
from gradwire.core.registry import Check
from gradwire.core.units import format_bytes
from gradwire.engine import Engine
from gradwire.kernels.backend import plain_torch
from gradwire.kernels.random import normal
from gradwire.laboratory.bench import hooks
from gradwire.laboratory.bench.clocks import Clock, Events, clock_of, clocked
from gradwire.laboratory.bench.gpu_work import by_name, seen
from gradwire.laboratory.bench.plain_compiled import compiled
from gradwire.unit import UnitResult

KIND, HOOK = "encode", "hook"
PHASES = ("encode", "reduce", "decode")
SIZES = (1 << 16, 1 << 20, 1 << 23)
COPIES = 6  # of the gradient that are there at the same time, at least: gradient, result, two memories of two buffers
WIDTH = 1024  # of the matrix that is compressed
SCALE = 1e-3  # of its normal entries
WARM = 2  # passes before the clock counts: compilation, and memories that fill
WARM_GRAPHS = 12  # and until units and the end of a step are captured, with both buffers of the memories
AHEAD = 10_000_000  # cycles of a GPU, a few milliseconds, for which it has other work


@dataclass(frozen=True)
class Plan:
    """What to measure. `seconds` limits each codec at each size; at least three passes are made."""

    codecs: tuple[str, ...]
    sizes: tuple[int, ...] = SIZES
    workers: int = 4
    threads: int = 1
    repeats: int = 15
    seconds: float = 4.0
    memory: str = "default"
    device: str = "cpu"
    models: tuple[str, ...] = ()  # whose gradients are measured, too, with their own shapes
    compile: bool = False  # the plain form under torch.compile, too
    kernels: bool = False  # what the GPU does in a pass, too

    def __post_init__(self) -> None:
        check = Check("bench encode")
        for name in ("workers", "threads", "repeats"):
            check.integer(name, getattr(self, name), 1)
        check.seconds("seconds", self.seconds)
        for size in self.sizes:
            check.integer("size", size, 1)
        for name in self.models:
            models.build(name)
        for spec in self.codecs:
            Engine(spec, memory=self.memory, workers=self.workers)  # refused now, not in the middle
        if self.device not in ("cpu", "cuda") or (self.device == "cuda" and not torch.cuda.is_available()):
            raise ConfigError(f"bench encode: there is no device {self.device!r} here; use cpu")
        for size in self.sizes:
            self._check_room(size)

    def _check_room(self, size: int) -> None:
        room = torch.cuda.mem_get_info()[1] if self.device == "cuda" else environment.memory_bytes()
        if COPIES * 4 * size > room:
            raise ConfigError(
                f"bench encode: `size` {size} needs about {format_bytes(COPIES * 4 * size)} of memory, and there are "
                f"{format_bytes(room)}; choose at most {room // (COPIES * 4)}"
            )

    @property
    def command(self) -> str:
        """The command line that makes the same measurement."""
        listed = "" if list(self.codecs) == codecs.names() else "".join(f' --codec "{c}"' for c in self.codecs)
        return (
            f"gradwire bench encode{listed} {' '.join(f'--size {s}' for s in self.sizes)} --workers {self.workers} "
            f"--threads {self.threads} --repeats {self.repeats} --seconds {self.seconds:g} --memory {self.memory} "
            f"--device {self.device}{''.join(f' --model {m}' for m in self.models)}"
            f"{' --compile' * self.compile}{' --kernels' * self.kernels}"
        )


@dataclass(frozen=True)
class Measured:
    """One codec at one size. Seconds, one a pass; of kernels and reference per phase."""

    codec: str
    elements: int
    strategy: str
    payload_bytes: int
    copy: tuple[float, ...]
    kernels: dict[str, tuple[float, ...]]
    reference: dict[str, tuple[float, ...]]
    model: str | None = None  # whose shapes the gradient has; None: one matrix
    graphs: dict[str, tuple[float, ...]] | None = None  # on a GPU, per phase, as CUDA graphs
    launched: str | None = None  # why there are no graphs
    compiled: dict[str, tuple[float, ...]] | None = None  # the reference under torch.compile
    works: list[tuple[str, int, float]] | None = None  # of a pass as graphs: name, how often, seconds in all

    def median(self, phase: str, which: str = "kernels") -> float:
        """Seconds of one phase, or of "total"."""
        phases: dict[str, tuple[float, ...]] = getattr(self, which)
        samples = total(phases) if phase == "total" else phases[phase]
        return quantile(samples, 0.5)

    @property
    def on_gpu(self) -> bool:
        """Whether CUDA graphs were tried."""
        return self.graphs is not None or self.launched is not None

    @property
    def copy_seconds(self) -> float:
        """Seconds of a copy of the gradient."""
        return quantile(self.copy, 0.5)

    def rate(self, phase: str) -> float:
        """Bytes of float32 gradient a second."""
        seconds = self.median(phase)
        return 4 * self.elements / seconds if seconds else float("inf")


def total(phases: dict[str, tuple[float, ...]]) -> tuple[float, ...]:
    """Seconds of each pass, all phases."""
    return tuple(map(sum, zip(*phases.values(), strict=True)))


def run(plan: Plan, on_done: Callable[[str, int], None] = lambda codec, size: None) -> Iterator[Measured]:
    """Measure one codec and size after the other; `on_done` hears of each."""
    before = torch.get_num_threads()
    torch.set_num_threads(plan.threads)
    try:
        subjects: list[int | str] = [*plan.sizes, *plan.models]
        for subject in subjects:
            for spec in plan.codecs:
                done = measure(spec, subject, plan)
                yield done
                on_done(spec, done.elements)
    finally:
        torch.set_num_threads(before)


def measure(spec: str, subject: int | str, plan: Plan) -> Measured:
    """One codec on a matrix of so many elements, or on a model's gradients."""
    device = torch.device(plan.device)
    layout, tensors = subject_layout(subject)
    x = SCALE * normal(Random().common("bench"), (1, layout.numel), device)
    target = torch.empty_like(x)
    options: dict[str, Any] = {"memory": plan.memory, "tensors": tensors, "workers": plan.workers}
    engines = [Engine(spec, graphs=False, **options) for _ in range(2)]
    passes: list[list[dict[str, float]]] = [[], []]
    copies: list[float] = []
    started, rounds = time.perf_counter(), 0
    while rounds < plan.repeats + WARM:
        if rounds >= WARM + 3 and time.perf_counter() - started > plan.seconds:
            break
        copies.append(clocked(lambda: target.copy_(x), device))
        for engine, taken, plain in zip(engines, passes, (False, True), strict=True):
            with plain_torch(plain), torch.no_grad():
                taken.append(one_pass(engine, x, layout, target))
        rounds += 1
    kernels, reference = ({p: tuple(t[p] for t in taken[WARM:]) for p in PHASES} for taken in passes)
    strategy, payload = _sent(engines[0], x, layout)
    model = subject if isinstance(subject, str) else None
    done = Measured(spec, layout.numel, strategy, payload, tuple(copies[WARM:]), kernels, reference, model)
    if plan.compile:
        engine = compiled(Engine(spec, graphs=False, **options), layout)
        done = replace(done, compiled=_of_first_step(engine, x, layout, target, rounds - WARM))
    if device.type == "cuda":
        engine = Engine(spec, **options)
        graphs, why = replays(engine, x, layout, target, plan.repeats)
        done = replace(done, graphs=graphs, launched=why)
        if plan.kernels:
            works = seen(partial(one_pass, engine, x, layout, target, Events(PHASES)))
            done = replace(done, works=by_name(works))
    return done


def _of_first_step(
    engine: Engine, x: Tensor, layout: Layout, out: Tensor, repeats: int
) -> dict[str, tuple[float, ...]]:
    """Seconds of each phase in plain torch, in passes that are all the first one."""
    taken = []
    with plain_torch(), torch.no_grad():
        for _ in range(WARM + repeats):
            engine.step = 0
            taken.append(one_pass(engine, x, layout, out))
    return {p: tuple(t[p] for t in taken[WARM:]) for p in PHASES}


def measure_hook(name: str, model: str, plan: Plan) -> tuple[float, ...]:
    """Seconds of each pass of a hook of torch's over a model's gradients."""
    device, (layout, _) = torch.device(plan.device), subject_layout(model)
    x = SCALE * normal(Random().common("bench"), (layout.numel,), device)
    return hooks.measure(name, x, layout, plan.workers, plan.repeats, partial(clocked, device=device))


def replays(
    engine: Engine, x: Tensor, layout: Layout, out: Tensor, repeats: int
) -> tuple[dict[str, tuple[float, ...]] | None, str | None]:
    """Seconds of each phase as CUDA graphs, behind other work; or why there are none."""
    with torch.no_grad():
        for _ in range(WARM_GRAPHS):
            one_pass(engine, x, layout, out)
        if not engine.graphs.summary()["replays"]:
            return None, next(iter(engine.graphs.summary()["launched"]), "payloads of variable size")
        taken = []
        for _ in range(repeats):
            torch.cuda._sleep(AHEAD)  # type: ignore[no-untyped-call]
            taken.append(one_pass(engine, x, layout, out, Events(PHASES)))
    return {p: tuple(t[p] for t in taken) for p in PHASES}, None


def subject_layout(subject: int | str) -> tuple[Layout, str]:
    """The tensors, and which of them the codec gets."""
    if isinstance(subject, int):
        return Layout.of([("matrix", (-(-subject // WIDTH), min(subject, WIDTH)))]), "all"
    parameters = models.build(subject).named_parameters()
    return Layout.of((n, tuple(p.shape)) for n, p in parameters if p.requires_grad), "matrices"


def one_pass(
    engine: Engine, x: Tensor, layout: Layout, out: Tensor | None = None, clock: Clock | None = None
) -> dict[str, float]:
    """One step of one worker; seconds of each phase."""
    clock = clock or clock_of(x.device, PHASES)
    program = engine.reduce(x, layout, out)
    answer, phase = None, "encode"
    while True:
        step = _Step(program, answer)
        clock.run(step)
        clock.book("decode" if step.result is not None else phase)
        if step.result is not None:
            clock.run(partial(engine.finish_step, [step.result]))
            clock.book("decode")
            return clock.spent()
        answer = as_answer(step.request, [trace.echo(e, engine.workers) for e in as_batch(step.request)])
        phase = "reduce"


class _Step:
    """Resumes a program: it asks for something, or ends with a result."""

    def __init__(self, program: Program[UnitResult], answer: Any) -> None:
        self.program, self.answer = program, answer
        self.request: Any = None
        self.result: UnitResult | None = None

    def __call__(self) -> None:
        try:
            self.request = self.program.send(self.answer)
        except StopIteration as done:
            self.result = done.value


def _sent(engine: Engine, x: Tensor, layout: Layout) -> tuple[str, int]:
    """The strategy that carried the codec, and the payload of one more step."""
    with torch.no_grad():
        exchanges, _ = trace.run(engine.reduce(x, layout), engine.workers)
    chosen = engine.strategy_for(layout)
    return "its own rounds" if chosen is None else chosen.name, sum(e.payload_bytes for e in exchanges)


# -------------------------------------------------------------------- records


def to_records(plan: Plan, measured: Sequence[Measured]) -> list[Record]:
    """One record a codec and size."""
    now = environment.now()
    commit, dirty = environment.commit()
    return [
        Record(
            kind=KIND,
            what={
                "codec": m.codec,
                "elements": m.elements,
                "workers": plan.workers,
                "strategy": m.strategy,
                "memory": plan.memory,
                "threads": plan.threads,
                "device": plan.device,
                **({} if m.model is None else {"model": m.model}),
            },
            command=plan.command,
            time=now,
            commit=commit,
            dirty=dirty,
            environment=environment.fingerprint("none"),
            unit="seconds a pass: encode, reduce and decode",
            quantiles=Quantiles.of(total(m.kernels)),
            samples=total(m.kernels),
            outcome={
                "payload_bytes": m.payload_bytes,
                "seconds": {p: m.median(p) for p in PHASES},
                "reference_seconds": {p: m.median(p, "reference") for p in PHASES},
                "reference_total_seconds": m.median("total", "reference"),
                "copy_seconds": m.copy_seconds,
                **({} if m.graphs is None else {"graphs_seconds": {p: m.median(p, "graphs") for p in PHASES}}),
                **({} if m.launched is None else {"launched": m.launched}),
                **({} if m.compiled is None else {"compiled_seconds": {p: m.median(p, "compiled") for p in PHASES}}),
                **({} if m.works is None else {"kernels": m.works}),
            },
        )
        for m in measured
    ]


def hook_record(plan: Plan, name: str, model: str, seconds: tuple[float, ...]) -> Record:
    """Of a hook of torch's."""
    commit, dirty = environment.commit()
    return Record(
        kind=HOOK,
        what={"hook": name, "model": model, "workers": plan.workers, "threads": plan.threads, "device": plan.device},
        command=plan.command,
        time=environment.now(),
        commit=commit,
        dirty=dirty,
        environment=environment.fingerprint("none"),
        unit="seconds a pass, all of it",
        quantiles=Quantiles.of(seconds),
        samples=seconds,
        outcome={},
    )


def from_records(records: Sequence[Record]) -> list[Measured]:
    """The medians of records again, as if each had been one pass."""
    return [
        Measured(
            r.what["codec"],
            r.what["elements"],
            r.what["strategy"],
            r.outcome["payload_bytes"],
            (r.outcome["copy_seconds"],),
            _phases(r.outcome["seconds"]) or {},
            _phases(r.outcome["reference_seconds"]) or {},
            r.what.get("model"),
            _phases(r.outcome.get("graphs_seconds")),
            r.outcome.get("launched"),
            _phases(r.outcome.get("compiled_seconds")),
        )
        for r in records
        if r.kind == KIND
    ]


def _phases(seconds: dict[str, float] | None) -> dict[str, tuple[float, ...]] | None:
    return None if seconds is None else {p: (s,) for p, s in seconds.items()}
