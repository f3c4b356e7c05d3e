"""What a memory is: it changes the gradient before the codec sees it, and keeps what the codec left behind."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from gradwire.core.codec import Codec, Context
from gradwire.core.registry import Registry
from gradwire.core.window import Feedback, Window

ERROR = "error"  # the kind of state in which every memory keeps what it still owes


@dataclass(frozen=True)
class Memory(ABC):
    """A wrapper round any codec that fits; its fields are its parameters."""

    name: ClassVar[str]
    has_state: ClassVar[bool] = True  # False: nothing is kept, the codec need not compute what it sent
    by_learning_rate: ClassVar[bool] = False
    repayable: ClassVar[bool] = True  # all that is kept is owed, so a step that sends everything leaves nothing

    def fit(self, codec: Codec) -> Codec:
        """The codec as it runs under this memory; refuses one that does not fit, with the reason."""
        return codec

    @abstractmethod
    def prepare(self, source: Window, ctx: Context) -> tuple[Window, Feedback | None]:
        """What to encode, and what is added to it and kept of it; None: nothing.

        ``ctx.rescale`` turns what is kept into today's units of the gradient.
        """

    def keep(self, feedback: Feedback, ctx: Context) -> None:  # noqa: B027 - most have written where they keep it
        """The codec is done, and ``feedback.out`` is what shall be kept."""

    def uncompressed(self, mean: Tensor, ctx: Context) -> Tensor:
        """What to hand on of the tensors that travelled as they are, given their mean; ``ctx.layout`` is theirs."""
        return mean


memories: Registry[Memory] = Registry("memory", "gradwire.memory")
