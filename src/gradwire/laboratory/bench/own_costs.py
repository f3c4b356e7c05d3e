"""What codecs cost on this machine's CPU for the gradients of one model, in a second or so for each codec."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence

import torch

from gradwire.core.layout import Layout
from gradwire.core.random import Random
from gradwire.core.records import quantile
from gradwire.engine import Engine
from gradwire.kernels.random import normal
from gradwire.laboratory.bench.encode import PHASES, SCALE, WARM, one_pass
from gradwire.planner.device import decoded_once
from gradwire.planner.profile import CodecCost, Whole

LEAST = 3  # passes
SOURCE = "measured: on this machine"


def measure(
    model: str,
    shapes: Sequence[Sequence[int]],
    codecs: Iterable[str],
    *,
    workers: int,
    threads: int,
    seconds: float = 1.0,
) -> dict[str, CodecCost]:
    """Cost of each codec on gradients of these shapes, as one of so many workers has it."""
    layout = Layout.of((str(i), tuple(shape)) for i, shape in enumerate(shapes))
    x = SCALE * normal(Random().common("doctor"), (1, layout.numel), torch.device("cpu"))
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        return {spec: _cost(model, spec, x, layout, workers, seconds) for spec in codecs}
    finally:
        torch.set_num_threads(before)


def _cost(model: str, spec: str, x: torch.Tensor, layout: Layout, workers: int, seconds: float) -> CodecCost:
    engine, out = Engine(spec, workers=workers, graphs=False), torch.empty_like(x)
    passes: list[dict[str, float]] = []
    started = time.perf_counter()
    with torch.no_grad():
        while len(passes) < WARM + LEAST or time.perf_counter() - started < seconds:
            passes.append(one_pass(engine, x, layout, out))
    phases = {phase: quantile([each[phase] for each in passes[WARM:]], 0.5) for phase in PHASES}
    carrier = engine.strategy_for(engine.picked(layout))
    decode = decoded_once(phases, "" if carrier is None else carrier.name, workers)
    whole = Whole(encode_seconds=phases["encode"], decode_seconds=decode, source=SOURCE)
    return CodecCost(encode=None, decode=None, source=SOURCE, models={model: whole})
