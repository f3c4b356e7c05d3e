"""Two rounds of power iteration that lead from right factors Q to P and to new right factors, for M ≈ P Qᵀ.

The left factors of all matrices of a unit lie in one flat row, and so do the right ones, each as Qᵀ: one exchange sends
them all, and one kernel treats them all. Matrices themselves are read and written where they lie.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar

import torch
from torch import Tensor

from gradwire.codecs.lowrank._matrices import averaged_flat, plan, uncompressed, unit
from gradwire.core.codec import Codec, Context, Flag, Reduced, nonfinite_flag
from gradwire.core.exchange import Program
from gradwire.core.layout import Layout, Segment
from gradwire.core.random import Random
from gradwire.core.window import Feedback, Window
from gradwire.kernels import factors
from gradwire.kernels.products import Matrices, Seen, see
from gradwire.kernels.random import normal

FACTOR = "q"  # the kind of state that holds the right factor of the last step, (width, rank)


@dataclass(frozen=True)
class Factored:
    """The matrices of a unit, their right factors, and the places of what travels as it is."""

    matrices: Matrices
    factors: Layout  # whose they are, and the shape of each Q
    vectors: tuple[slice, ...]

    @classmethod
    @lru_cache(maxsize=4096)
    def of(cls, layout: Layout, rank: int, min_rate: float) -> Factored:
        batches, vectors = plan(layout, rank, min_rate)
        ends = [slice(at, at + n) for at, n in zip(layout.offsets, layout.sizes, strict=True)]
        by_size = sorted(batches, key=lambda batch: batch.height * batch.width)
        members = [(i, batch) for batch in by_size for i in batch.members]
        matrices = Matrices(
            places=tuple(ends[i].start for i, _ in members),
            shapes=tuple((batch.height, batch.width) for _, batch in members),
            ranks=tuple(batch.rank for _, batch in members),
            between=tuple((ends[i].start, ends[i].stop) for i in vectors),
        )
        factors = Layout.of((layout.names[i], (batch.width, batch.rank)) for i, batch in members)
        return cls(matrices, factors, tuple(ends[i] for i in vectors if layout.sizes[i]))

    def split(self, vectors: Tensor) -> Sequence[Tensor]:
        """The vectors, (1, n), each by itself."""
        return torch.split(vectors, [place.stop - place.start for place in self.vectors], 1)


@dataclass(frozen=True)
class Rounds:
    """What both rounds found, flat: the bases P, and Qᵀ of each worker here and of all; and the vectors' means."""

    bases: Tensor
    own: Tensor
    shared: Tensor
    means: Tensor


class AlternatingCodec(Codec):
    """P is the basis, by `bases`, of the mean over the workers of M `turned(Q)`; the new Q the mean of Mᵀ `dual(P)`.

    All three lead from flat factors and their shapes to others; right factors come as Qᵀ. A codec has the fields
    `rank`, `min_rate` and `start`, and may have `iterations` and `warm`: see `powersgd`.
    """

    family: ClassVar[str] = "lowrank"
    rank: int
    min_rate: float
    start: int
    iterations: int = 1
    warm: bool = True

    def turned(self, right: Tensor, shapes: factors.Shapes) -> Tensor:
        return each_revived(right, shapes)

    @abstractmethod
    def bases(self, left: Tensor, shapes: factors.Shapes) -> Tensor: ...

    def dual(self, left: Tensor, shapes: factors.Shapes) -> Tensor:
        return left

    @property
    def steady_from_step(self) -> int:
        return self.start

    def reduce(self, x: Tensor, ctx: Context) -> Reduced:
        """The mean, and as own part each worker's P Qᵀ with its own Q."""
        if ctx.rng.step < self.start:
            return (yield from uncompressed(x, ctx))
        whole = Factored.of(ctx.layout, self.rank, self.min_rate)
        seen = see(Window.whole(x), None, whole.matrices)
        found = yield from self._rounds(whole, seen, ctx)
        mean = x.new_empty((1, x.shape[1]))
        own = torch.empty_like(x) if ctx.wants_own else None
        seen.write(found.bases, found.shared, Window.whole(mean))
        if own is not None:
            seen.write(found.bases, found.own, Window.whole(own))
        _copied([mean[:, place] for place in whole.vectors], whole.split(found.means))
        if own is not None:
            _copied([own[:, place] for place in whole.vectors], [x[:, place] for place in whole.vectors])
        return mean, own

    def reduce_to(self, source: Window, target: Window, feedback: Feedback | None, ctx: Context) -> Program[Flag]:
        """`reduce` in place: the own part is taken off the error, and the mean written, by the products themselves."""
        if ctx.rng.step < self.start or ctx.moved:
            return (yield from super().reduce_to(source, target, feedback, ctx))
        whole = Factored.of(ctx.layout, self.rank, self.min_rate)
        seen = see(source, feedback, whole.matrices)
        found = yield from self._rounds(whole, seen, ctx)
        flag = seen.write(found.bases, found.shared, target, found.own if feedback is not None else None)
        if not whole.vectors:
            return flag
        _copied([target.at(place.start, place.stop) for place in whole.vectors], whole.split(found.means))
        if feedback is not None:
            torch._foreach_zero_(_apart([feedback.out[:, place] for place in whole.vectors]))
        return flag + nonfinite_flag(found.means)

    def _rounds(self, whole: Factored, seen: Seen, ctx: Context) -> Program[Rounds]:
        matrices, names = whole.matrices, whole.factors.names
        means = none = seen.x[:1, :0]
        bases, own, shared, common = none, seen.x[:, :0], none, None
        if self.warm and names:
            common = ctx.state.common(FACTOR, whole.factors, none.device, self._first(ctx, none.device))
            assert common.current is not None
            shared = common.current
        elif names:
            drawn = map(self._first(ctx, none.device), whole.factors.segments)
            shared = torch.cat([q.mT.reshape(1, -1) for q in drawn], 1)
        for i in range(self.iterations if names else 1):
            left = seen.times(self.turned(shared, matrices.right) if names else none)
            beside = [seen.x[:, place] for place in whole.vectors] if i == 0 else []  # with the first exchange
            answer = yield from averaged_flat([left, *beside], ctx)
            if i == 0:
                means = answer[:, left.shape[1] :]
            if names:
                bases = self.bases(answer[:, : left.shape[1]], matrices.left)
                own = seen.transposed(self.dual(bases, matrices.left))
                shared = yield from averaged_flat([own], ctx)
        if common is not None:
            ctx.state.write(common, common.spare(shared.device).copy_(shared))
        return Rounds(bases, own, shared, means)

    def _first(self, ctx: Context, device: torch.device) -> Callable[[Segment], Tensor]:
        """Draws the Q that a matrix begins with, or, if not warm, that a step begins with: alike on all workers."""
        draw = Random(seed=ctx.rng.seed, step=0 if self.warm else ctx.rng.step)
        return lambda factor: normal(draw.shared(f"powersgd/{factor.name}"), factor.shape, device)


def _copied(targets: Sequence[Tensor], sources: Sequence[Tensor]) -> None:
    """Copy each to its target, (rows, n) or (1, n) to (rows, n)."""
    if targets:
        torch._foreach_copy_(_apart(targets), _apart([s.expand_as(t) for t, s in zip(targets, sources, strict=True)]))


def _apart(views: Sequence[Tensor]) -> list[Tensor]:
    """Views, (rows, n), as dense ones: a GPU treats all of those in one launch, and others one by one."""
    if len(views[0]) == 1 or views[0].device.type == "cpu":
        return list(views)
    return [row for view in views for row in view.unbind()]


def revived(right: Tensor, shapes: factors.Shapes) -> Tensor:
    """Factors scaled to a largest magnitude of 1, so that no product leaves the range.

    A fixed dense one takes the place of each that is zero: from zero, no gradient would lead away.
    """
    return factors.unit(right, shapes, _dense(shapes, right.device))[0]


def each_revived(right: Tensor, shapes: factors.Shapes) -> Tensor:
    """The same, column by column: of Q, whose transpose lies there by rows."""
    return factors.unit(right, _by_row(shapes), _dense(shapes, right.device))[0]


@lru_cache(maxsize=256)
def _by_row(shapes: factors.Shapes) -> factors.Shapes:
    return tuple((1, width) for rank, width in shapes for _ in range(rank))


@lru_cache(maxsize=256)
def _dense(shapes: factors.Shapes, device: torch.device) -> Tensor:
    """Factors without zeros, whose largest magnitude is 1: (1, n)."""

    def one(rank: int, width: int) -> Tensor:
        waves, places = (torch.arange(1.0, n + 1, device=device) for n in (rank, width))
        return unit(torch.outer(waves, places).cos()).reshape(1, -1)

    return torch.cat([one(*shape) for shape in shapes], 1)
