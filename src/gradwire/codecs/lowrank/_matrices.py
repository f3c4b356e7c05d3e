"""What the low-rank codecs share: which tensors are matrices, batches of one shape, starts, and putting together."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from gradwire.core.codec import Context, Flag, Reduced, nonfinite_flag
from gradwire.core.exchange import Program, Sum
from gradwire.core.layout import Layout
from gradwire.core.random import Random
from gradwire.core.window import Feedback, Window
from gradwire.kernels.random import normal

SHIFT = 1e-12  # of the trace of a Gram matrix
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
    """The matrices of each batch: (rows, members, height, width); a batch of one is a view."""
    seen = [[pieces[i].reshape(-1, 1, b.height, b.width) for i in b.members] for b in batches]
    return [torch.cat(matrices, 1) if len(matrices) > 1 else matrices[0] for matrices in seen]


def assemble(
    batches: Sequence[Batch], matrices: Sequence[Tensor], vectors: Sequence[int], plain: Sequence[Tensor]
) -> Tensor:
    """The flat units, a row each: the matrices of all batches, and the tensors that travelled as they are."""
    parts: dict[int, Tensor] = {}
    for batch, stack in zip(batches, matrices, strict=True):
        for i, matrix in zip(batch.members, stack.unbind(1), strict=True):
            parts[i] = matrix.flatten(1)
    for i, vector in zip(vectors, plain, strict=True):
        parts[i] = vector
    return torch.cat([parts[i] for i in range(len(parts))], 1) if len(parts) > 1 else parts[0]


def products(
    layout: Layout,
    batches: Sequence[Batch],
    left: Sequence[Tensor],
    right: Sequence[Tensor],
    vectors: Sequence[int],
    plain: Sequence[Tensor],
    rows: int,
) -> Tensor:
    """The flat units, a row each: P Qᵀ of all batches, written where it belongs, and what travelled as it is."""
    flat = (left[0] if left else plain[0]).new_empty((rows, layout.numel))
    pieces = layout.split(flat)
    for batch, p, q in zip(batches, left, right, strict=True):
        values = p @ q.mT
        places = [
            pieces[i].as_strided((rows, batch.height, batch.width), (layout.numel, batch.width, 1))
            for i in batch.members
        ]
        torch._foreach_copy_(places, list(values.expand(rows, -1, -1, -1).unbind(1)))
    if vectors:
        torch._foreach_copy_([pieces[i] for i in vectors], list(plain))
    return flat


def starts(batches: Sequence[Batch], ctx: Context, device: torch.device, *, warm: bool = True) -> list[Tensor]:
    """The right factors to begin with, by batch: (members, width, rank)."""
    names = ctx.layout.names
    return [torch.stack([_start(names[i], b, ctx, device, warm) for i in b.members]) for b in batches]


def _start(name: str, batch: Batch, ctx: Context, device: torch.device, warm: bool) -> Tensor:
    """The factor of the last step; at first, or always if not warm, a random one that all workers draw alike."""
    kept = ctx.state.get(FACTOR, name) if warm else None
    if kept is not None and kept.shape == (batch.width, batch.rank):
        return kept
    stream = Random(seed=ctx.rng.seed, step=0 if warm else ctx.rng.step).shared(f"powersgd/{name}")
    return normal(stream, (batch.width, batch.rank), device)


def revived(factors: Tensor) -> Tensor:
    """Factors scaled to a largest magnitude of 1, so that no product leaves the range.

    A fixed dense one takes the place of each that is zero: from zero, no gradient would lead away.
    """
    largest = factors.abs().amax((-2, -1), keepdim=True)
    return torch.where(largest == 0, _dense(*factors.shape[-2:], factors.device), factors / largest)


@lru_cache(maxsize=256)
def _dense(width: int, rank: int, device: torch.device) -> Tensor:
    """A factor without zeros, whose largest magnitude is 1."""
    places, waves = (torch.arange(1.0, n + 1, device=device) for n in (width, rank))
    return unit(torch.outer(places, waves).cos())


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
    """The means over the workers of several tensors, a row for each of those here, in one exchange.

    They have one row. None if there is nothing to send.
    """
    if not tensors:
        return []
    total = yield Sum(torch.cat([t.flatten(1) for t in tensors], 1) * (1.0 / ctx.workers))
    sizes = [t[0].numel() for t in tensors]
    return [p.view(1, *t.shape[1:]) for p, t in zip(total.split(sizes, 1), tensors, strict=True)]


def uncompressed(x: Tensor, ctx: Context) -> Reduced:
    """A step in which everything travels as it is."""
    (mean,) = yield from averaged([x], ctx)
    return mean, x


def orthonormal(stacks: Sequence[Tensor]) -> list[Tensor]:
    """Matrices (…, height, rank) with the same span and orthonormal columns, zero where there is nothing to span.

    By Cholesky factors of their Gram matrices, twice, in float64: all matrices of a rank in one batch, where a QR
    decomposition would take one matrix after the other. The shift keeps the factor in reach for columns that depend on
    each other; the second time mends what it has bent.
    """
    exact = [s.double() for s in stacks]
    for _ in range(2):
        grams = [(s.mT @ s).flatten(0, -3) for s in exact]
        turns: list[Tensor] = [g for g in grams]
        for rank in {g.shape[-1] for g in grams}:
            alike = [i for i, g in enumerate(grams) if g.shape[-1] == rank]
            gram = torch.cat([grams[i] for i in alike])
            trace = gram.diagonal(dim1=-2, dim2=-1).sum(-1)[:, None, None]
            one = torch.eye(rank, dtype=gram.dtype, device=gram.device)
            shifted = gram + torch.where(trace == 0, 1.0, SHIFT * trace) * one
            root = torch.linalg.cholesky_ex(shifted).L
            inverse = torch.linalg.solve_triangular(root, one.expand_as(root), upper=False).mT
            for i, part in zip(alike, inverse.split([len(grams[i]) for i in alike]), strict=True):
                turns[i] = part
        exact = [s @ turn.view(*s.shape[:-2], *turn.shape[-2:]) for s, turn in zip(exact, turns, strict=True)]
    return [e.to(s.dtype) for e, s in zip(exact, stacks, strict=True)]


@dataclass(frozen=True)
class Alternation:
    """Two rounds that lead from right factors Q to P and to new right factors, for M̂ = P Qᵀ.

    P is the basis, by `bases`, of the mean over the workers of M `turned(Q)`, and the new Q the mean of Mᵀ `dual(P)`.
    """

    turned: Callable[[Tensor], Tensor]
    bases: Callable[[Sequence[Tensor]], list[Tensor]]
    dual: Callable[[Tensor], Tensor]
    rank: int
    min_rate: float
    iterations: int = 1
    warm: bool = True

    def reduce(self, x: Tensor, ctx: Context) -> Reduced:
        """The mean, and as own part each worker's P Qᵀ with its own Q."""
        batches, vectors, bases, right, factors, means = yield from self._factors(x, ctx)
        plain = [ctx.layout.split(x)[i] for i in vectors]
        mean = products(ctx.layout, batches, bases, factors, vectors, means, 1)
        if not ctx.wants_own:
            return mean, None
        return mean, products(ctx.layout, batches, bases, right, vectors, plain, len(x))

    def reduce_to(self, source: Window, target: Window, feedback: Feedback | None, ctx: Context) -> Program[Flag]:
        """The same in place: the own part is taken off the error, and the mean written, by the products themselves."""
        x = source.read() if feedback is None else feedback.compensated(source)
        batches, vectors, bases, right, factors, means = yield from self._factors(x, ctx)
        offsets, sizes = ctx.layout.offsets, ctx.layout.sizes
        direct = target.buffer.dtype == torch.float32
        for batch, p, own, q in zip(batches, bases, right, factors, strict=True):
            for j, i in enumerate(batch.members):
                place = slice(offsets[i], offsets[i] + sizes[i])
                if feedback is not None:
                    error = _matrices(feedback.out[:, place], batch)
                    error.baddbmm_(p[:, j].expand(len(x), -1, -1), own[:, j].mT, alpha=-1)
                out = _matrices(target.at(place.start, place.stop), batch)
                if direct:
                    torch.bmm(p[:, j], q[:, j].mT, out=out)
                else:
                    out.copy_(p[:, j] @ q[:, j].mT)
        for i, mean in zip(vectors, means, strict=True):
            target.at(offsets[i], offsets[i] + sizes[i]).copy_(mean)
            if feedback is not None:
                feedback.out[:, offsets[i] : offsets[i] + sizes[i]] = 0.0
        return nonfinite_flag(torch.cat([t.flatten() for t in [*bases, *factors, *means]]))

    def _factors(
        self, x: Tensor, ctx: Context
    ) -> Program[tuple[Sequence[Batch], Sequence[int], list[Tensor], list[Tensor], list[Tensor], list[Tensor]]]:
        """Batches and vectors; P, the workers' own Q, the mean of Q, by batch; and the means of the vectors."""
        batches, vectors = plan(ctx.layout, self.rank, self.min_rate)
        pieces = ctx.layout.split(x)
        factors = [f[None] for f in starts(batches, ctx, x.device, warm=self.warm)]
        beside = [pieces[i] for i in vectors]  # travels with the first exchange
        means: list[Tensor] = []
        for _ in range(self.iterations):
            left = [_times(pieces, b, self.turned(q)) for b, q in zip(batches, factors, strict=True)]
            answer = yield from averaged([*left, *beside], ctx)
            means, beside = means + answer[len(left) :], []
            bases = self.bases(answer[: len(left)])
            right = [_times(pieces, b, self.dual(p), turned=True) for b, p in zip(batches, bases, strict=True)]
            factors = yield from averaged(right, ctx)
        if self.warm:
            keep(batches, [f[0] for f in factors], ctx)
        return batches, vectors, bases, right, factors, means


def _matrices(piece: Tensor, batch: Batch) -> Tensor:
    """The piece of each row as a matrix, where it lies: (rows, height, width)."""
    return piece.as_strided((len(piece), batch.height, batch.width), (piece.stride(0), batch.width, 1))


def _times(pieces: Sequence[Tensor], batch: Batch, factors: Tensor, turned: bool = False) -> Tensor:
    """M F for each matrix of a batch, or Mᵀ F: (rows, members, …, rank). Matrices are read where they lie."""
    found = []
    for j, i in enumerate(batch.members):
        m = _matrices(pieces[i], batch)
        found.append(torch.bmm(m.mT if turned else m, factors[:, j].expand(len(m), -1, -1)))
    return torch.stack(found, 1)
