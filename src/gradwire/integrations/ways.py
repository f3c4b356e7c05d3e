"""How a framework reduces gradients: by a codec, and without one. What is traced, and what it is compared with."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from gradwire.core import wire
from gradwire.core.exchange import Program
from gradwire.core.layout import Layout
from gradwire.engine import Engine
from gradwire.integrations.parameters import plain_bytes
from gradwire.sharded import reduce_scatter
from gradwire.tracing import Reduce


@dataclass(frozen=True)
class Way:
    """How gradients are reduced in one place.

    Args:
        framework: that reduces them where there is no codec.
        program: what an engine does with a unit: (1, total) and its layout.
        plain_bytes: what each of so many ranks sends of gradients like these without a codec.
    """

    framework: str
    program: Reduce
    plain_bytes: Callable[[Iterable[Tensor], int], int]


def _scattered(engine: Engine, x: Tensor, layout: Layout) -> Program[Any]:
    return reduce_scatter(engine, x, layout, x.new_empty((1, x.shape[1] // engine.workers)))


def _scattered_bytes(gradients: Iterable[Tensor], workers: int) -> int:
    return sum(int(wire.scattered(g.numel() * g.element_size(), workers)) for g in gradients)


DDP = Way("DDP", Engine.reduce, plain_bytes)
REPLICAS = Way("FSDP2", Engine.reduce, plain_bytes)
REDUCE_SCATTER = Way("FSDP2", _scattered, _scattered_bytes)
