"""No memory: what a codec drops is gone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from gradwire.core.codec import Context
from gradwire.memory.base import Memory, memories


@memories.register
@dataclass(frozen=True)
class NoMemory(Memory):
    """Keeps nothing."""

    name: ClassVar[str] = "none"
    has_state: ClassVar[bool] = False

    def compensate(self, x: Tensor, ctx: Context) -> Tensor:
        return x

    def update(self, compensated: Tensor, own: Tensor, ctx: Context) -> None:
        pass
