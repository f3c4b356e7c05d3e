"""What a codec sends for a given set of tensors, exactly, without sending or computing anything.

The engine's own program is run on meta tensors by the tracing driver, so there is no second formula that could
drift from what the network sees. A codec whose sizes depend on the data has no exact answer: it is run on the CPU for a
few steps of Gaussian noise at the scale of usual gradients, with its memory, and the last step is reported.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias

import torch

from gradwire.collectives import Hierarchical
from gradwire.collectives import trace as driver
from gradwire.collectives.choose import parse
from gradwire.collectives.trace import TracedExchange
from gradwire.core.codec import Codec, Strategy, codecs
from gradwire.core.errors import GradwireError
from gradwire.core.exchange import Program
from gradwire.core.layout import Layout
from gradwire.core.random import Random
from gradwire.core.registry import Check
from gradwire.engine import Engine
from gradwire.kernels.random import normal

MOST_WORKERS = 16_384  # shards are cut one by one; what a worker sends hardly changes above
STEPS = 6  # of noise, until the memory of a codec without a fixed size has filled
SCALE = 1e-3  # of the noise
Reduce: TypeAlias = Callable[[Engine, torch.Tensor, Layout], Program[Any]]
ROUNDS = "rounds"  # no strategy: the codec runs its own rounds of exchanges


@dataclass(frozen=True)
class Trace:
    """The exchanges of one worker in one step."""

    codec: str
    workers: int
    elements: int
    exchanges: tuple[TracedExchange, ...]
    compressed: int = 0  # elements that the codec gets; the others travel as they are
    strategy: str = ROUNDS  # that carries the codec

    @property
    def payload_bytes(self) -> int:
        """What one worker hands to the collectives of its own gradient."""
        return sum(e.payload_bytes for e in self.exchanges)

    @property
    def sent_bytes(self) -> int:
        """What leaves one worker by the network, on both legs."""
        return sum(e.sent_bytes for e in self.exchanges)

    @property
    def node_bytes(self) -> int:
        """What leaves one worker for others of its node, under a strategy that tells them apart."""
        return sum(e.node_bytes for e in self.exchanges)

    @property
    def bits_per_element(self) -> float:
        """Payload bits per gradient element."""
        return 8 * self.payload_bytes / self.elements if self.elements else 0.0

    @property
    def rounds(self) -> int:
        """Dependent round trips."""
        return 1 + max((e.round for e in self.exchanges), default=-1)


def trace(
    codec: str | Codec,
    shapes: Iterable[tuple[str, Sequence[int]]],
    *,
    workers: int = 4,
    strategy: str | Strategy = "auto",
    tensors: str = "matrices",
) -> Trace:
    """Trace one step over the named shapes, all in one unit of compression.

    Under `hierarchical`, where the ranks of a node have shares of different sizes, it is the one that sends most.

    >>> trace("fp16", [("w", (1000, 10))], workers=4).sent_bytes
    30000
    """
    Check("trace").integer("workers", workers, 1)
    if workers > MOST_WORKERS:
        Check("trace").fail("workers", f"at most {MOST_WORKERS:,}", workers)
    layout = Layout.of(shapes)
    built = codecs.build(codec) if isinstance(codec, str) else codec
    run = partial(_run, built, layout, workers, strategy, tensors)
    try:
        exchanges = run("meta", 1, "none") if built.traits.fixed_size else run("cpu", STEPS, "default")
    except GradwireError:
        raise
    except (NotImplementedError, RuntimeError):  # a codec that looks at its data
        exchanges = run("cpu", 1, "none")
    engine = Engine(built, strategy=strategy, tensors=tensors, workers=workers)
    picked = engine.picked(layout)
    carrier = engine.strategy_for(picked)
    return Trace(
        codec if isinstance(codec, str) else codec.spec,
        workers,
        layout.numel,
        tuple(exchanges),
        picked.numel,
        ROUNDS if carrier is None else carrier.name,
    )


def _run(
    codec: Codec,
    layout: Layout,
    workers: int,
    strategy: str | Strategy,
    tensors: str,
    device: str,
    steps: int,
    memory: str,
) -> list[TracedExchange]:
    """The exchanges of the last of `steps` steps, of the rank that sends most."""

    def trace_rank(rank: int) -> list[TracedExchange]:
        engine = Engine(codec, memory=memory, strategy=strategy, tensors=tensors, ranks=(rank,), workers=workers)
        return _last_step(engine, layout, device, steps)[0]

    wish = parse(strategy)
    ranks = wish.fitted(workers).per_node if isinstance(wish, Hierarchical) else 1
    return max(map(trace_rank, range(ranks)), key=lambda traced: sum(e.sent_bytes for e in traced))


def _last_step(
    engine: Engine,
    layout: Layout,
    device: str,
    steps: int,
    dtype: torch.dtype = torch.float32,
    program: Reduce = Engine.reduce,
) -> tuple[list[TracedExchange], int]:
    """The exchanges of the last of `steps` steps of a fresh engine, and the bytes that it keeps."""
    first = 0 if engine.memory.has_state else steps - 1  # without a memory no step knows of those before it
    engine.step = engine.codec.steady_from_step + first
    exchanges, kept = list[TracedExchange](), 0
    with torch.no_grad():
        for step in range(first, steps):
            x = SCALE * normal(Random(step=step).common("trace"), (1, layout.numel), torch.device(device))
            exchanges, result = driver.run(program(engine, x.to(dtype), layout), engine.workers, engine.ranks[0])
            kept = sum(one.kept_bytes for one in result.writes)
            if step + 1 < steps or device != "meta":
                engine.finish_step([result])
    return exchanges, kept


@dataclass(frozen=True)
class UnitTrace:
    """One unit of compression in one step of one worker, with its memory."""

    exchanges: tuple[TracedExchange, ...]
    kept_bytes: int  # from step to step: memories, and what codecs keep

    @property
    def sent_bytes(self) -> int:
        """What leaves the worker by the network."""
        return sum(e.sent_bytes for e in self.exchanges)

    @property
    def message_bytes(self) -> int:
        """Room for what is handed in and received."""
        return sum(e.handed_bytes + e.received_bytes for e in self.exchanges)


def trace_unit(
    make: Callable[[], Engine],
    layout: Layout,
    dtype: torch.dtype = torch.float32,
    program: Reduce = Engine.reduce,
) -> UnitTrace:
    """Trace a unit of a real set-up, memory included.

    Args:
        make: makes the engine; a fresh one each time.
        layout: the unit's tensors.
        dtype: of the gradient.
        program: what the engine does with a gradient and its layout.

    >>> trace_unit(lambda: Engine("topk", workers=4), Layout.of([("w", (100, 100))])).kept_bytes
    80000
    """
    engine = make()
    if engine.codec.traits.fixed_size:
        try:
            exchanges, kept = _last_step(engine, layout, "meta", 1, dtype, program)
            return UnitTrace(tuple(exchanges), kept)
        except GradwireError:
            raise
        except (NotImplementedError, RuntimeError):  # a codec that looks at its data
            pass
    exchanges, kept = _last_step(make(), layout, "cpu", STEPS, dtype, program)
    return UnitTrace(tuple(exchanges), kept)
