"""What the low-rank codecs share: which tensors are matrices, batches of one shape, starts, and putting together."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from gradwire.core.codec import Context, Reduced
from gradwire.core.exchange import Program, Sum, once
from gradwire.core.layout import Layout
from gradwire.core.random import Random
from gradwire.kernels.random import normal

FACTOR = "q"  # the kind of state that holds the right factor of the last step


@dataclass(frozen=True)
class Batch:
    """Matrices of one shape, by their position in the layout."""

    members: tuple[int, ...]
    height: int
    width: int
    rank: int


@lru_cache(maxsize=4096)
def plan(layout: Layout, rank: int, min_rate: float) -> tuple[tuple[Batch, ...], tuple[int, ...]]:
    """Which tensors are factored, batched by shape, and which travel as they are."""
    batches: dict[tuple[int, int], list[int]] = {}
    vectors = []
    for i, segment in enumerate(layout.segments):
        height = segment.shape[0] if len(segment.shape) >= 2 else 0
        width = segment.numel // height if height else 0
        r = min(rank, height, width)
        if r and segment.numel > min_rate * r * (height + width):
            batches.setdefault((height, width), []).append(i)
        else:
            vectors.append(i)
    return tuple(Batch(tuple(m), h, w, min(rank, h, w)) for (h, w), m in batches.items()), tuple(vectors)


def stacked(pieces: Sequence[Tensor], batches: Sequence[Batch]) -> list[Tensor]:
    """The matrices of each batch: (members, height, width); a batch of one is a view."""
    seen = [[pieces[i].view(1, b.height, b.width) for i in b.members] for b in batches]
    return [torch.cat(matrices) if len(matrices) > 1 else matrices[0] for matrices in seen]


def assemble(
    batches: Sequence[Batch], matrices: Sequence[Tensor], vectors: Sequence[int], plain: Sequence[Tensor]
) -> Tensor:
    """The flat unit: the matrices of all batches, and the tensors that travelled as they are."""
    parts: dict[int, Tensor] = {}
    for batch, stack in zip(batches, matrices, strict=True):
        for i, matrix in zip(batch.members, stack, strict=True):
            parts[i] = matrix.reshape(-1)
    for i, vector in zip(vectors, plain, strict=True):
        parts[i] = vector
    return torch.cat([parts[i] for i in range(len(parts))]) if len(parts) > 1 else parts[0]


def products(
    layout: Layout,
    batches: Sequence[Batch],
    left: Sequence[Tensor],
    right: Sequence[Tensor],
    vectors: Sequence[int],
    plain: Sequence[Tensor],
    like: Tensor,
) -> Tensor:
    """The flat unit: P Qᵀ of all batches, written where it belongs, and the tensors that travelled as they are."""
    flat = torch.empty_like(like)
    pieces = layout.split(flat)
    for batch, p, q in zip(batches, left, right, strict=True):
        if len(batch.members) == 1:
            torch.bmm(p, q.mT, out=pieces[batch.members[0]].view(1, batch.height, batch.width))
        else:
            places = [pieces[i].view(batch.height, batch.width) for i in batch.members]
            torch._foreach_copy_(places, list((p @ q.mT).unbind()))
    if vectors:
        torch._foreach_copy_([pieces[i] for i in vectors], list(plain))
    return flat


def starts(batches: Sequence[Batch], ctx: Context, device: torch.device, *, warm: bool = True) -> list[Tensor]:
    """The right factors to begin with, by batch: (members, width, rank)."""
    names = ctx.layout.names
    return [revived(torch.stack([_start(names[i], b, ctx, device, warm) for i in b.members])) for b in batches]


def _start(name: str, batch: Batch, ctx: Context, device: torch.device, warm: bool) -> Tensor:
    """The factor of the last step; at first, or always if not warm, a random one that all workers draw alike."""
    kept = ctx.state.get(FACTOR, name) if warm else None
    if kept is not None and kept.shape == (batch.width, batch.rank):
        return kept
    stream = Random(seed=ctx.rng.seed, step=0 if warm else ctx.rng.step).shared(f"powersgd/{name}")
    return normal(stream, (batch.width, batch.rank), device)


def revived(factors: Tensor) -> Tensor:
    """The factors, with a fixed dense one in place of each that is zero: from zero, no gradient would lead away."""
    width, rank = factors.shape[-2:]
    places, waves = (torch.arange(1.0, n + 1, device=factors.device) for n in (width, rank))
    return torch.where(factors.abs().amax((-2, -1), keepdim=True) == 0, torch.outer(places, waves).cos(), factors)


def keep(batches: Sequence[Batch], factors: Sequence[Tensor], ctx: Context) -> None:
    """Keep the right factors for the next step."""
    for batch, stack in zip(batches, factors, strict=True):
        for i, factor in zip(batch.members, stack, strict=True):
            ctx.state.put(FACTOR, ctx.layout.names[i], factor)


def unit(factors: Tensor) -> Tensor:
    """Each matrix with its largest magnitude scaled to 1, so that no product leaves the range; zeros stay."""
    largest = factors.abs().amax((-2, -1), keepdim=True)
    return factors / torch.where(largest > 0, largest, 1.0)


def averaged(tensors: Sequence[Tensor], ctx: Context) -> Program[list[Tensor]]:
    """The means of several tensors over the workers, in one exchange; none if there is nothing to send."""
    if not tensors:
        return []
    total = yield Sum(torch.cat([t.flatten() for t in tensors]) * (1.0 / ctx.workers))
    sizes = [t.numel() for t in tensors]
    return once(total, lambda: [p.view(t.shape) for p, t in zip(total.split(sizes), tensors, strict=True)])


def uncompressed(x: Tensor, ctx: Context) -> Reduced:
    """A step in which everything travels as it is."""
    (mean,) = yield from averaged([x], ctx)
    return mean, x


@dataclass(frozen=True)
class Alternation:
    """Two rounds that lead from right factors Q to P and to new right factors, for M̂ = P Qᵀ.

    P is the `basis` of the mean over the workers of M `turned(Q)`, and the new Q the mean of Mᵀ `dual(P)`.
    """

    turned: Callable[[Tensor], Tensor]
    basis: Callable[[Tensor], Tensor]
    dual: Callable[[Tensor], Tensor]
    rank: int
    min_rate: float
    iterations: int = 1
    warm: bool = True

    def reduce(self, x: Tensor, ctx: Context) -> Reduced:
        """The mean, and as own share this worker's P Qᵀ with its own part of Q."""
        batches, vectors = plan(ctx.layout, self.rank, self.min_rate)
        pieces = ctx.layout.split(x)
        matrices, plain = stacked(pieces, batches), [pieces[i] for i in vectors]
        factors = starts(batches, ctx, x.device, warm=self.warm)
        beside = plain  # travels with the first exchange
        means: list[Tensor] = []
        for _ in range(self.iterations):
            left = [m @ self.turned(q) for m, q in zip(matrices, factors, strict=True)]
            answer = yield from averaged([*left, *beside], ctx)
            means, beside = means + answer[len(left) :], []
            bases, duals = self._bases(answer, len(left))
            right = [m.mT @ p for m, p in zip(matrices, duals, strict=True)]
            factors = yield from averaged(right, ctx)
        if self.warm:
            keep(batches, factors, ctx)
        mean = once(factors, lambda: products(ctx.layout, batches, bases, factors, vectors, means, x))
        if not ctx.wants_own:
            return mean, None
        return mean, products(ctx.layout, batches, bases, right, vectors, plain, x)

    def _bases(self, means: list[Tensor], number: int) -> tuple[list[Tensor], list[Tensor]]:
        """P of each batch, and its dual, from the first `number` of the means."""
        bases = once(means, lambda: [self.basis(p) for p in means[:number]])
        return bases, once(bases, lambda: [self.dual(p) for p in bases])
