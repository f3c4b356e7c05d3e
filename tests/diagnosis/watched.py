"""Watches that no rank has seen: numbers that a test chooses."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from gradwire.diagnosis.watch import Settings, Step, Watch

USUAL = {"seconds": 0.1, "forward": 0.03, "backward": 0.06, "exposed": 0.002, "optimizer": 0.004, "data": 0.001}
SHAPES = ((1024, 1024), (1024,), (1024, 1024), (1024,))


def watch(
    rank: int = 0,
    ranks: int = 2,
    steps: Sequence[Mapping[str, float]] | None = None,
    settings: Mapping[str, Any] | None = None,
    **own: Any,
) -> Watch:
    """Of one rank: ten usual steps, but for what is said of each."""
    about: dict[str, Any] = {
        "local_ranks": 1,
        "host": f"host{rank}",
        "model": "Net",
        "shapes": SHAPES,
        "gradient_bits": 32,
        "micro_batches": 1,
        "wanted": 10,
    }
    made = tuple(Step(**{**USUAL, **step}) for step in (steps if steps is not None else [{}] * 10))
    told = Settings(**{"bucket_bytes": (4_198_400, 4_198_400), **(settings or {})})
    return Watch(**{**about, **own}, rank=rank, ranks=ranks, steps=made, settings=told)


def job(*ranks: Mapping[str, float], steps: int = 10, settings: Mapping[str, Any] | None = None) -> list[Watch]:
    """All ranks, each with its own usual step."""
    return [watch(r, len(ranks), [step] * steps, settings) for r, step in enumerate(ranks)]
