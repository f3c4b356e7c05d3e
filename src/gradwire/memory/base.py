"""What a memory is: it changes the gradient before the codec sees it, and keeps what the codec left behind."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from gradwire.core.codec import Codec, Context
from gradwire.core.registry import Registry

ERROR = "error"  # the kind of state in which every memory keeps what it still owes


@dataclass(frozen=True)
class Memory(ABC):
    """A wrapper round any codec that fits; its fields are its parameters."""

    name: ClassVar[str]
    keeps: ClassVar[bool] = True  # False: nothing is kept, the codec need not compute its own share
    by_learning_rate: ClassVar[bool] = False

    def check(self, codec: Codec) -> float:
        """Refuse a codec that does not fit, with the reason; returns the factor its output is scaled by."""
        return 1.0

    @abstractmethod
    def compensate(self, x: Tensor, ctx: Context, rescale: float) -> Tensor:
        """What to encode. `rescale` converts what is kept to today's units of the gradient."""

    @abstractmethod
    def update(self, compensated: Tensor, own: Tensor, ctx: Context) -> None:
        """Keep what `own`, this worker's share of the result, left behind."""


memories: Registry[Memory] = Registry("memory", "gradwire.memory")
