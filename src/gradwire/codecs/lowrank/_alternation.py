"""Two rounds of power iteration that lead from right factors Q to P and to new right factors, for M ≈ P Qᵀ.

The left factors of all matrices of a unit lie in one flat row, and so do the right ones, each as Qᵀ: one exchange sends
them all, and one kernel treats them all. Matrices themselves are read and written where they lie.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate
from typing import ClassVar

import torch
from torch import Tensor

from gradwire.codecs.lowrank._matrices import averaged, plan, uncompressed, unit
from gradwire.core.codec import Codec, Context, Flag, Reduced, nonfinite_flag
from gradwire.core.exchange import Program
from gradwire.core.layout import Layout
from gradwire.core.random import Random
from gradwire.core.window import Feedback, Window
from gradwire.kernels import factors
from gradwire.kernels.products import Matrices, Seen, see
from gradwire.kernels.random import normal

FACTOR = "q"  # the kind of state that holds the right factor of the last step, (width, rank)


@dataclass(frozen=True)
class Factored:
    """The matrices of a unit, whose they are, and the places of what travels as it is."""

    names: tuple[str, ...]
    matrices: Matrices
    starts: tuple[int, ...]  # of each Qᵀ among all
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
        starts = tuple(accumulate([rank * width for rank, width in matrices.right[:-1]], initial=0))
        names = tuple(layout.names[i] for i, _ in members)
        return cls(names, matrices, starts[: len(names)], tuple(ends[i] for i in vectors))


@dataclass(frozen=True)
class Rounds:
    """What both rounds found: the bases P, and Qᵀ of each worker here and of all, flat; and the vectors' means."""

    bases: Tensor
    own: Tensor
    shared: Tensor
    means: Sequence[Tensor]


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
        return revived(right, shapes)

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
        _copied([mean[:, place] for place in whole.vectors], found.means)
        if own is not None:
            _copied([own[:, place] for place in whole.vectors], [x[:, place] for place in whole.vectors])
        return mean, own

    def in_place(self, source: Window, target: Window, feedback: Feedback | None, ctx: Context) -> Program[Flag]:
        """`reduce` in place: the own part is taken off the error, and the mean written, by the products themselves."""
        whole = Factored.of(ctx.layout, self.rank, self.min_rate)
        seen = see(source, feedback, whole.matrices)
        found = yield from self._rounds(whole, seen, ctx)
        if feedback is not None:
            seen.keep(found.bases, found.own)
        seen.write(found.bases, found.shared, target)
        _copied([target.at(place.start, place.stop) for place in whole.vectors], found.means)
        if feedback is not None and whole.vectors:
            torch._foreach_zero_(_apart([feedback.out[:, place] for place in whole.vectors]))
        return nonfinite_flag(torch.cat([found.bases, found.shared, *found.means], 1))

    def _rounds(self, whole: Factored, seen: Seen, ctx: Context) -> Program[Rounds]:
        left_shapes, right_shapes = whole.matrices.left, whole.matrices.right
        none = seen.x[:1, :0]
        bases, own, shared = none, seen.x[:, :0], self._starts(whole, ctx, none)
        means: list[Tensor] = []
        for i in range(self.iterations if whole.names else 1):
            left = seen.times(self.turned(shared, right_shapes) if whole.names else none)
            beside = [seen.x[:, place] for place in whole.vectors] if i == 0 else []  # with the first exchange
            answer = yield from averaged([left, *beside], ctx)
            means = means + answer[1:]
            if whole.names:
                bases = self.bases(answer[0], left_shapes)
                own = seen.transposed(self.dual(bases, left_shapes))
                (shared,) = yield from averaged([own], ctx)
        if self.warm:
            for name, (rank, width), at in zip(whole.names, right_shapes, whole.starts, strict=True):
                ctx.state.put(FACTOR, name, shared.as_strided((width, rank), (1, width), shared.storage_offset() + at))
        return Rounds(bases, own, shared, means)

    def _starts(self, whole: Factored, ctx: Context, none: Tensor) -> Tensor:
        """All Qᵀ that a step begins with: (1, n)."""
        each = zip(whole.names, whole.matrices.right, strict=True)
        found = [_start(name, shape, ctx, none.device, self.warm) for name, shape in each]
        return torch.cat(found, 1) if found else none


def _copied(targets: Sequence[Tensor], sources: Sequence[Tensor]) -> None:
    """Copy each to its target, (rows, n) or (1, n) to (rows, n)."""
    if targets:
        torch._foreach_copy_(_apart(targets), _apart([s.expand_as(t) for t, s in zip(targets, sources, strict=True)]))


def _apart(views: Sequence[Tensor]) -> list[Tensor]:
    """Views, (rows, n), as dense ones: a GPU treats all of those in one launch, and others one by one."""
    if len(views[0]) == 1 or views[0].device.type == "cpu":
        return list(views)
    return [row for view in views for row in view.unbind()]


def _start(name: str, shape: tuple[int, int], ctx: Context, device: torch.device, warm: bool) -> Tensor:
    """Qᵀ of the last step; at first, or always if not warm, a random one that all workers draw alike. (1, n)."""
    rank, width = shape
    kept = ctx.state.get(FACTOR, name) if warm else None
    if kept is not None and kept.shape == (width, rank):
        return kept.mT.reshape(1, -1)
    stream = Random(seed=ctx.rng.seed, step=0 if warm else ctx.rng.step).shared(f"powersgd/{name}")
    return normal(stream, (width, rank), device).mT.reshape(1, -1)


def revived(right: Tensor, shapes: factors.Shapes) -> Tensor:
    """Factors scaled to a largest magnitude of 1, so that no product leaves the range.

    A fixed dense one takes the place of each that is zero: from zero, no gradient would lead away.
    """
    return factors.unit(right, shapes, _dense(shapes, right.device))[0]


@lru_cache(maxsize=256)
def _dense(shapes: factors.Shapes, device: torch.device) -> Tensor:
    """Factors without zeros, whose largest magnitude is 1: (1, n)."""

    def one(rank: int, width: int) -> Tensor:
        waves, places = (torch.arange(1.0, n + 1, device=device) for n in (rank, width))
        return unit(torch.outer(waves, places).cos()).reshape(1, -1)

    return torch.cat([one(*shape) for shape in shapes], 1)
