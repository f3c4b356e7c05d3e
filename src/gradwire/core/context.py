"""Where a codec runs: the strategy that carries its payloads, and what it may know beside the gradient."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar

from torch import Tensor

from gradwire.core.exchange import Program
from gradwire.core.layout import Layout
from gradwire.core.random import Random
from gradwire.core.slots import Piece, Slot
from gradwire.core.state import Store, Transaction
from gradwire.core.window import Feedback, Window
from gradwire.core.window import Flag as Flag

if TYPE_CHECKING:
    from gradwire.core.codec import Codec


@dataclass(frozen=True)
class Strategy(ABC):
    """How gradients travel; its fields are its options. See `collectives`."""

    name: ClassVar[str]


@dataclass(frozen=True)
class Carrier(Strategy):
    """A strategy that carries the payloads of one-shot codecs and combines them."""

    @abstractmethod
    def reduce(
        self, codec: Codec, source: Window, target: Window, feedback: Feedback | None, ctx: Context
    ) -> Program[Flag]:
        """Reduce the gradient in `source` over the workers and write the mean to `target`."""

    @abstractmethod
    def refusal(self, codec: Codec) -> str | None:
        """Why `codec` cannot run under this strategy, as the rest of a sentence; None if it can."""

    def owner_slot(self, codec: Codec, layout: Layout, ranks: Sequence[int], workers: int, store: Store) -> Slot | None:
        """Where the workers `ranks` keep the errors of what they own of a unit; None where nobody owns anything."""
        return None


@dataclass(frozen=True, kw_only=True)
class Context:
    """What `Codec.reduce` may know beside the gradient: where it runs, and what it may keep.

    Args:
        layout: the tensors of the unit of compression, in order.
        state: what outlives the step, by parameter name.
        rng: random numbers of this step, this unit and these workers.
        ranks: the workers of this process, a row for each.
        workers: how many workers there are in all.
        strategy: what carries the payloads of a one-shot codec.
        source: the workers' gradients as they came, before their memory added to them.
        observed: what the user told by `Handle.observe`, by kind and parameter.
        rescale: turns what was kept into today's units, after a change of loss scale or learning rate.
        wants_own: False where nobody needs the workers' own parts; return None for them.
        owner_memory: the owner of a shard keeps the error of re-encoding it.
        moved: owners' errors of elements that others own by now, and where they lie.

    Example:
        A codec that sends the whole gradient, in one sum:

        >>> import torch, gradwire
        >>> class Plain(gradwire.Codec):
        ...     name, family, paper = "plain", "baseline", "none"
        ...     traits = gradwire.Traits(combine=gradwire.Combine.ROUNDS)
        ...
        ...     def reduce(self, x, ctx):
        ...         total = yield gradwire.Sum(x / ctx.workers)
        ...         return total, x
        >>> cluster = gradwire.VirtualCluster(workers=2, codec=Plain())
        >>> cluster.reduce({"w": [torch.tensor([2.0, 4.0]), torch.tensor([0.0, 2.0])]})["w"]
        tensor([1., 3.])
    """

    layout: Layout
    state: Transaction
    rng: Random
    ranks: tuple[int, ...]
    workers: int
    strategy: Carrier | None = None
    source: Window | None = None
    observed: Mapping[str, Mapping[str, Tensor]] = field(default_factory=dict)
    rescale: float | Tensor = 1.0
    wants_own: bool = True
    owner_memory: bool = False
    moved: tuple[tuple[Piece, slice], ...] = ()

    def repaid(self, source: Window, feedback: Feedback | None) -> tuple[Window, Feedback | None]:
        """Owners' errors for elements that another worker owns by now go into the gradient of who kept them.

        Shards move when DDP rebuilds its buckets, the number of workers changes, or a controller gives a tensor another
        codec. The owner's error counts fully in the mean and a worker's gradient only by 1/n, hence the factor.

        Args:
            source: the gradients.
            feedback: what the memory adds to them; None: there is no memory.
        """
        if not self.moved:
            return source, feedback
        x = source.read().clone() if feedback is None else feedback.compensated(source)
        for piece, place in self.moved:
            x[piece.row, place] += self.workers * self.rescale * piece.entry.tensor.reshape(-1)
        return Window.whole(x, scratch=True), None if feedback is None else feedback.done()
