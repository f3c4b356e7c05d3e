"""Two rounds of power iteration that lead from right factors Q to P and to new right factors, for M ≈ P Qᵀ.

The left factors of all matrices of a unit lie in one flat row, and so do the right ones, each as Qᵀ: one exchange sends
them all, and one kernel treats them all. Matrices themselves are read where they lie. Pᵀ M is taken rather than Mᵀ P,
which has the same elements and takes four times as long on a CPU.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
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
from gradwire.kernels.factors.reference import pieces, spread
from gradwire.kernels.random import normal
from gradwire.kernels.window import compensated

SMALL = 1 << 16  # elements of a matrix that is copied beside others of its shape
FACTOR = "q"  # the kind of state that holds the right factor of the last step, (width, rank)


@dataclass(frozen=True)
class Stack:
    """Tensors of the unit that are factored, of one shape: many small ones are treated at once, large ones each alone.

    A large matrix is read and written where it lies. Small ones are copied side by side: a call costs more than that.
    """

    names: tuple[str, ...]
    places: tuple[slice, ...]
    height: int
    width: int

    def views(self, at: Callable[[int, int], Tensor]) -> list[Tensor]:
        """The matrices where they lie, (rows, height, width); `at` gives the elements from one to another."""
        pieces = [at(place.start, place.stop) for place in self.places]
        return [p.as_strided((p.shape[0], self.height, self.width), (p.stride(0), self.width, 1)) for p in pieces]

    def of(self, flat: Tensor) -> Tensor:
        """(rows, matrices, height, width): a copy of small ones, a view of a large one."""
        seen = self.views(lambda first, last: flat[:, first:last])
        return seen[0][:, None] if len(seen) == 1 else torch.stack(seen, 1)


@dataclass(frozen=True)
class Factored:
    """The matrices of a unit, the shapes of their factors, and the places of what travels as it is."""

    stacks: tuple[Stack, ...]
    left: factors.Shapes  # (height, rank) of each P
    right: factors.Shapes  # (rank, width) of each Qᵀ
    vectors: tuple[slice, ...]

    @classmethod
    @lru_cache(maxsize=4096)
    def of(cls, layout: Layout, rank: int, min_rate: float) -> Factored:
        batches, vectors = plan(layout, rank, min_rate)
        ends = [slice(at, at + n) for at, n in zip(layout.offsets, layout.sizes, strict=True)]
        stacks = []
        for batch in batches:
            small = batch.height * batch.width <= SMALL
            for members in [batch.members] if small else [(i,) for i in batch.members]:
                names, places = tuple(layout.names[i] for i in members), tuple(ends[i] for i in members)
                stacks.append(Stack(names, places, batch.height, batch.width))
        every = [(b.height, b.rank, b.width) for b in batches for _ in b.members]
        left, right = tuple((h, r) for h, r, _ in every), tuple((r, w) for _, r, w in every)
        return cls(tuple(stacks), left, right, tuple(ends[i] for i in vectors))

    def stacked(self, flat: Tensor, shapes: factors.Shapes) -> list[Tensor]:
        """Factors of the stacks, (rows, matrices, …), as views of all of them in a row."""
        firsts = list(accumulate([len(s.names) for s in self.stacks], initial=0))[:-1]
        groups = [(len(s.names), *shapes[i]) for s, i in zip(self.stacks, firsts, strict=True)]
        parts = torch.split(flat, [k * h * w for k, h, w in groups], 1)
        return [part.view(flat.shape[0], *group) for part, group in zip(parts, groups, strict=True)]


@dataclass(frozen=True)
class Rounds:
    """What both rounds found: the bases P, and Qᵀ of each worker here and of all, flat; and the vectors' means."""

    unit: Factored
    bases: Tensor
    own: Tensor
    shared: Tensor
    means: Sequence[Tensor]

    def stacks(self) -> Iterator[tuple[Stack, Tensor, Tensor, Tensor]]:
        """Each stack with P, (1, matrices, height, rank), own Qᵀ, (rows, …, rank, width), and shared Qᵀ."""
        flat = (self.bases, self.unit.left), (self.own, self.unit.right), (self.shared, self.unit.right)
        return zip(self.unit.stacks, *(self.unit.stacked(*f) for f in flat), strict=True)


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
        found = yield from self._rounds(x, ctx)
        mean = x.new_empty((1, x.shape[1]))
        own = torch.empty_like(x) if ctx.wants_own else None
        for stack, p, mine, shared in found.stacks():
            _copy(p @ shared, stack.views(lambda first, last: mean[:, first:last]))
            if own is not None:
                _copy(p @ mine, stack.views(lambda first, last: own[:, first:last]))
        for place, vector in zip(found.unit.vectors, found.means, strict=True):
            mean[:, place] = vector
            if own is not None:
                own[:, place] = x[:, place]
        return mean, own

    def in_place(self, source: Window, target: Window, feedback: Feedback | None, ctx: Context) -> Program[Flag]:
        """`reduce` in place: the own part is taken off the error, and the mean written, by the products themselves."""
        x = source.read() if feedback is None else compensated(source, feedback)
        found = yield from self._rounds(x, ctx)
        for stack, p, mine, shared in found.stacks():
            outs = stack.views(target.at)
            if feedback is not None:
                errors = stack.views(lambda first, last: feedback.out[:, first:last])
                if len(errors) == 1:
                    errors[0].baddbmm_(p[:, 0].expand(x.shape[0], -1, -1), mine[:, 0], alpha=-1)
                else:
                    torch._foreach_sub_(errors, list((p @ mine).unbind(1)))
            if len(outs) == 1 and outs[0].dtype == torch.float32:
                torch.bmm(p[:, 0], shared[:, 0], out=outs[0])
            else:
                _copy(p @ shared, outs)
        for place, vector in zip(found.unit.vectors, found.means, strict=True):
            target.at(place.start, place.stop).copy_(vector)
            if feedback is not None:
                feedback.out[:, place] = 0.0
        return nonfinite_flag(torch.cat([found.bases, found.shared, *found.means], 1))

    def _rounds(self, x: Tensor, ctx: Context) -> Program[Rounds]:
        whole = Factored.of(ctx.layout, self.rank, self.min_rate)
        seen = [stack.of(x) for stack in whole.stacks]
        bases, own, shared = x[:1, :0], x[:, :0], x[:1, :0]
        names = [name for stack in whole.stacks for name in stack.names]
        if seen:
            shared = torch.cat([_start(n, s, ctx, x, self.warm) for n, s in zip(names, whole.right, strict=True)], 1)
        beside = [x[:, place] for place in whole.vectors]  # travels with the first exchange
        means: list[Tensor] = []
        for _ in range(self.iterations if seen else 1):
            right = whole.stacked(self.turned(shared, whole.right), whole.right) if seen else []
            left = [m @ q.mT for m, q in zip(seen, right, strict=True)]
            answer = yield from averaged([_joined(left, x), *beside], ctx)
            means, beside = means + answer[1:], []
            if seen:
                bases = self.bases(answer[0], whole.left)
                duals = whole.stacked(self.dual(bases, whole.left), whole.left)
                own = _joined([p.mT @ m for m, p in zip(seen, duals, strict=True)], x)
                (shared,) = yield from averaged([own], ctx)
        if self.warm:
            for name, factor in zip(names, pieces(shared, whole.right), strict=True):
                ctx.state.put(FACTOR, name, factor[0].mT)
        return Rounds(whole, bases, own, shared, means)


def _copy(values: Tensor, places: Sequence[Tensor]) -> None:
    """(rows, matrices, …) to where each matrix belongs."""
    torch._foreach_copy_(list(places), list(values.unbind(1)))


def _joined(found: Sequence[Tensor], like: Tensor) -> Tensor:
    """(rows, …) of each, flat and one behind the other."""
    return torch.cat([f.flatten(1) for f in found], 1) if found else like[:, :0]


def _start(name: str, shape: tuple[int, int], ctx: Context, like: Tensor, warm: bool) -> Tensor:
    """Qᵀ of the last step; at first, or always if not warm, a random one that all workers draw alike. (1, n)."""
    rank, width = shape
    kept = ctx.state.get(FACTOR, name) if warm else None
    if kept is not None and kept.shape == (width, rank):
        return kept.mT.reshape(1, -1)
    stream = Random(seed=ctx.rng.seed, step=0 if warm else ctx.rng.step).shared(f"powersgd/{name}")
    return normal(stream, (width, rank), like.device).mT.reshape(1, -1)


def revived(right: Tensor, shapes: factors.Shapes) -> Tensor:
    """Factors scaled to a largest magnitude of 1, so that no product leaves the range.

    A fixed dense one takes the place of each that is zero: from zero, no gradient would lead away.
    """
    scaled, largest = factors.unit(right, shapes)
    zero = largest == 0
    if zero.device.type == "cpu" and not bool(zero.any()):
        return scaled
    return torch.where(spread(zero, shapes), _dense(shapes, right.device), scaled)


@lru_cache(maxsize=256)
def _dense(shapes: factors.Shapes, device: torch.device) -> Tensor:
    """Factors without zeros, whose largest magnitude is 1: (1, n)."""

    def one(rank: int, width: int) -> Tensor:
        waves, places = (torch.arange(1.0, n + 1, device=device) for n in (rank, width))
        return unit(torch.outer(waves, places).cos()).reshape(1, -1)

    return torch.cat([one(*shape) for shape in shapes], 1)
