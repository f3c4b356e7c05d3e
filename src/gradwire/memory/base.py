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
    has_state: ClassVar[bool] = True  # False: nothing is kept, the codec need not compute its own share
    by_learning_rate: ClassVar[bool] = False

    def fit(self, codec: Codec) -> Codec:
        """The codec as it runs under this memory; refuses one that does not fit, with the reason."""
        return codec

    @abstractmethod
    def compensate(self, x: Tensor, ctx: Context) -> Tensor:
        """What to encode. ``ctx.rescale`` turns what is kept into today's units of the gradient."""

    def uncompressed(self, mean: Tensor, ctx: Context) -> Tensor:
        """What to hand on of the tensors that travelled as they are, given their mean; ``ctx.layout`` is theirs."""
        return mean

    @abstractmethod
    def update(self, compensated: Tensor, own: Tensor, ctx: Context) -> None:
        """Keep what `own`, this worker's share of the result, left behind."""


memories: Registry[Memory] = Registry("memory", "gradwire.memory")
