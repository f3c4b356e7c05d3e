"""What torch's own hooks cost beside the network: a whole gradient in one bucket, the exchange an echo.

Their future is done when all is launched; on a GPU the events around it tell the rest.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook
from torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import PowerSGDState, powerSGD_hook

from gradwire.core.baselines import HALF, POWERSGD
from gradwire.core.layout import Layout
from gradwire.laboratory.bench.echo import echo

HOOKS = (HALF, POWERSGD)
RANK = 4
WARM = 4  # passes: the PowerSGD hook sends everything at first


@dataclass
class Bucket:
    """What hooks ask of a bucket of DDP's: its only one, with all gradients in it."""

    flat: Tensor
    layout: Layout

    def index(self) -> int:
        return 0

    def is_last(self) -> bool:
        return True

    def buffer(self) -> Tensor:
        return self.flat

    def set_buffer(self, flat: Tensor) -> None:
        self.flat = flat

    def gradients(self) -> list[Tensor]:
        pieces = zip(self.layout.split(self.flat), self.layout.segments, strict=True)
        return [piece.view(segment.shape) for piece, segment in pieces]


def measure(
    name: str, x: Tensor, layout: Layout, workers: int, repeats: int, clocked: Callable[[Callable[[], object]], float]
) -> tuple[float, ...]:
    """Seconds of each pass of a hook over the gradients `x`, which stay as they are."""
    with echo(workers), torch.no_grad():
        state, hook = _hook(name)
        taken = []
        for _ in range(WARM + repeats):
            bucket: Any = Bucket(x.clone(), layout)
            taken.append(clocked(partial(_run, hook, state, bucket)))
    return tuple(taken[WARM:])


def _run(hook: Callable[..., Any], state: Any, bucket: Any) -> None:
    hook(state, bucket).wait()


def _hook(name: str) -> tuple[Any, Callable[..., Any]]:
    if name == HALF:
        return None, fp16_compress_hook
    return PowerSGDState(None, matrix_approximation_rank=RANK, start_powerSGD_iter=2), powerSGD_hook
