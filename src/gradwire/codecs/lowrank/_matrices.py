"""Tensors as matrices: which are factored, batches of one shape, and the flat unit put together again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from gradwire.core.codec import Context, Reduced
from gradwire.core.exchange import Program, Sum
from gradwire.core.layout import Layout


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
    means = yield from averaged_flat([t.flatten(1) for t in tensors], ctx)
    sizes = [t[0].numel() for t in tensors]
    return [p.view(1, *t.shape[1:]) for p, t in zip(torch.split(means, sizes, 1), tensors, strict=True)]


def averaged_flat(tensors: Sequence[Tensor], ctx: Context) -> Program[Tensor]:
    """`averaged`, of (rows, n) each and at least one, as one row."""
    share = 1.0 / ctx.workers
    sent = tensors[0] * share if len(tensors) == 1 else torch.cat(list(tensors), 1).mul_(share)
    return (yield Sum(sent))  # type: ignore[no-any-return]


def uncompressed(x: Tensor, ctx: Context) -> Reduced:
    """A step in which everything travels as it is."""
    (mean,) = yield from averaged([x], ctx)
    return mean, x
