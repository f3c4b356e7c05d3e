"""Does encoding hide behind the backward pass of the same GPU? Both alone, and side by side in two streams.

1. Forward and backward pass are one CUDA graph, a codec's step is its own graphs: the host takes no part, since all is
   launched while the GPU still has other work.
2. A turn has some passes of the model, and as many steps of the codec as take half as long. It is timed three times:
   the passes alone, the steps alone, and both in two streams.
3. What side by side takes less than one after the other, over what the steps take alone, is the share that hides: one
   where encoding costs nothing, zero where the two take turns, below zero where they get in each other's way.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from gradwire.core import environment
from gradwire.core.errors import ConfigError
from gradwire.core.intervals import Interval, median
from gradwire.core.layout import Layout
from gradwire.core.records import Quantiles, Record
from gradwire.core.registry import Check
from gradwire.engine import Engine
from gradwire.laboratory.bench import compute, encode, step
from gradwire.laboratory.bench.clocks import Clock

KIND = "overlap"
CODECS = ("blockint(bits=8)", "efsignsgd", "topk", "thc", "powersgd")
PASSES = 1  # of the model, in a turn
MOST_STEPS = 60  # of the codec: more launches than a GPU's queue holds would stop the host
SHARE = 0.5  # of their time that the codec's steps take
HOST = 2_000_000  # cycles of a GPU, a millisecond, in which the host launches a step
WARM = 3  # passes before the graph is captured


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What to measure: a model and the codecs of its gradient."""

    model: str
    batch: int
    codecs: tuple[str, ...] = CODECS
    workers: int = 4
    precision: str = "bf16"
    turns: int = 20

    def __post_init__(self) -> None:
        check = Check("bench overlap")
        for name in ("batch", "turns"):
            check.integer(name, getattr(self, name), 1)
        check.integer("workers", self.workers, 2)
        check.one_of("precision", self.precision, compute.PRECISIONS)
        for codec in self.codecs:
            Engine(codec, workers=self.workers)  # refused now, not in the middle
        if not torch.cuda.is_available():
            raise ConfigError("bench overlap: two streams are a GPU's, and there is no CUDA device here")

    @property
    def command(self) -> str:
        """The command line that makes the same measurement."""
        codecs = "" if self.codecs == CODECS else "".join(f' --codec "{c}"' for c in self.codecs)
        return (
            f"gradwire bench overlap --model {self.model} --batch {self.batch}{codecs} --workers {self.workers} "
            f"--precision {self.precision} --turns {self.turns}"
        )


@dataclass(frozen=True)
class Measured:
    """One codec; seconds of a turn."""

    codec: str
    passes: tuple[float, ...]  # of the model, alone
    steps: tuple[float, ...]  # of the codec, alone
    both: tuple[float, ...]
    count: int  # steps in a turn

    @property
    def hidden(self) -> Interval:
        """The share of the codec's time that costs nothing beside the model.

        >>> print(Measured("x", (8.0, 8.0), (4.0, 4.0), (9.0, 9.0), 1).hidden)
        0.750 (0.750 to 0.750)
        """
        turns = zip(self.passes, self.steps, self.both, strict=True)
        return median([(alone + own - both) / own for alone, own, both in turns])


def measure(plan: Plan, on_codec: Callable[[], None] = lambda: None) -> Iterator[Measured]:
    """Codec by codec; one that cannot be captured is left out.

    Args:
        plan: what to measure.
        on_codec: called after each.
    """
    with compute.arithmetic(plan.precision):
        passes = _captured(plan)
        layout, tensors = encode.subject_layout(plan.model)
        x = encode.SCALE * torch.randn(1, layout.numel, device="cuda")
        out = torch.empty_like(x)
        for spec in plan.codecs:
            engine = Engine(spec, tensors=tensors, workers=plan.workers)
            replayed, _ = encode.replays(engine, x, layout, out, plan.turns)
            if replayed is not None:
                yield _turns(plan, spec, passes, lambda: _step(engine, x, layout, out), encode.total(replayed))  # noqa: B023
            on_codec()


@dataclass(frozen=True)
class _Passes:
    """Forward and backward pass as a graph, and the tensors that it reads and writes: they must stay where they are."""

    graph: torch.cuda.CUDAGraph
    module: nn.Module
    inputs: tuple[Tensor, ...]


def _captured(plan: Plan) -> _Passes:
    module = step.build(plan.model, "cuda")
    inputs = step.example(plan.model, module, plan.batch, "cuda")

    def once() -> None:
        for parameter in module.parameters():
            parameter.grad = None
        with compute.autocast("cuda", plan.precision):
            loss = step.loss_of(module(*inputs))
        loss.backward()  # type: ignore[no-untyped-call]

    stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(WARM):
            once()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        once()
    return _Passes(graph, module, inputs)


def _step(engine: Engine, x: Tensor, layout: Layout, out: Tensor) -> None:
    with torch.no_grad():
        encode.one_pass(engine, x, layout, out, Clock(encode.PHASES))  # the host's: it does not wait


def _turns(plan: Plan, spec: str, model: _Passes, own: Callable[[], None], alone: Sequence[float]) -> Measured:
    lanes = [torch.cuda.Stream() for _ in range(2)]  # type: ignore[no-untyped-call]

    def turn(passes: int, steps: int) -> float:
        """Seconds of so many passes and steps, side by side."""
        here = torch.cuda.current_stream()
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        torch.cuda._sleep(encode.AHEAD * PASSES + HOST * steps)  # type: ignore[no-untyped-call]
        begin.record()
        for lane, work, count in ((lanes[0], model.graph.replay, passes), (lanes[1], own, steps)):
            lane.wait_stream(here)
            with torch.cuda.stream(lane):
                for _ in range(count):
                    work()
        for lane in lanes:
            here.wait_stream(lane)
        end.record()
        torch.cuda.synchronize()
        return float(begin.elapsed_time(end)) / 1e3

    length = turn(PASSES, 0)
    steps = min(max(1, round(SHARE * length / median(alone).middle)), MOST_STEPS)
    turn(PASSES, steps)  # the codec's graphs meet the other stream
    taken = [(turn(PASSES, 0), turn(0, steps), turn(PASSES, steps)) for _ in range(plan.turns)]
    passes, alone_steps, both = zip(*taken, strict=True)
    return Measured(spec, passes, alone_steps, both, steps)


def to_records(plan: Plan, measured: Sequence[Measured]) -> list[Record]:
    """One record a codec."""
    commit, dirty = environment.commit()
    setting = {"model": plan.model, "batch": plan.batch, "workers": plan.workers, "precision": plan.precision}
    return [
        Record(
            kind=KIND,
            what={"codec": m.codec, **setting},
            command=plan.command,
            time=environment.now(),
            commit=commit,
            dirty=dirty,
            environment=environment.fingerprint("none"),
            unit="seconds of passes of the model and steps of the codec, side by side",
            quantiles=Quantiles.of(m.both),
            samples=m.both,
            outcome=_outcome(m),
        )
        for m in measured
    ]


def _outcome(m: Measured) -> dict[str, Any]:
    hidden = m.hidden
    return {
        "passes_seconds": list(m.passes),
        "steps_seconds": list(m.steps),
        "passes": PASSES,
        "steps": m.count,
        "hidden": hidden.middle,
        "hidden_interval": [hidden.low, hidden.high],
    }
