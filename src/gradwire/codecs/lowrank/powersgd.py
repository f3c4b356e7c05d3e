r"""PowerSGD: one step of power iteration towards a rank-r approximation, warm-started from the last step.

With M the gradient of one tensor seen as a matrix (first dimension × the rest) and a bar the mean over the workers,

.. math::  P = \mathrm{orth}(\overline{M Q}), \qquad Q' = \overline{M^\top P}, \qquad C(M) = P Q'^\top

Two rounds, both all-reduces. Q' is kept as the next step's Q, keyed by parameter. Exact for matrices of rank <= r once
warm. What is subtracted by error feedback is the worker's own part, P (MᵀP)ᵀ, the projection of its gradient on the
shared P, which never exceeds the gradient. Matrices of the same shape are treated in one batch.
Vectors, and matrices for which m·l <= min_rate·r(m + l), travel as they are, with P; the default of 0 factors every
matrix, as published, and 1 those only that get smaller by it.
Wire: r (m + l) values of 4 bytes for an m × l matrix, r no larger than m and l.

Vogels et al., PowerSGD, NeurIPS 2019, arXiv:1905.13727, algorithms 1 and 2.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar

import torch
from torch import Tensor

from gradwire.core.codec import Codec, Combine, Context, Reduced, Traits, register
from gradwire.core.exchange import Sum
from gradwire.core.layout import Layout
from gradwire.core.random import Random
from gradwire.core.registry import Check
from gradwire.kernels.random import normal


@dataclass(frozen=True)
class Batch:
    """Matrices of one shape, by their position in the layout."""

    members: tuple[int, ...]
    height: int
    width: int
    rank: int


@register
@dataclass(frozen=True)
class PowerSGD(Codec):
    """Low-rank factors."""

    name: ClassVar[str] = "powersgd"
    family: ClassVar[str] = "lowrank"
    paper: ClassVar[str] = "Vogels et al., PowerSGD, NeurIPS 2019, arXiv:1905.13727"
    variants: ClassVar[tuple[str, ...]] = ("powersgd(rank=1)", "powersgd(rank=2, min_rate=2)")
    rank: int = 4
    min_rate: float = 0.0

    def __post_init__(self) -> None:
        check = Check(self.name)
        check.integer("rank", self.rank, 1)
        check.number("min_rate", self.min_rate, 0, math.inf, "a compression rate of at least 0")

    @property
    def traits(self) -> Traits:
        return Traits(combine=Combine.ROUNDS, memory="error_feedback", delta=0.0)

    def reduce(self, x: Tensor, ctx: Context) -> Reduced:
        batches, vectors = plan(ctx.layout, self.rank, self.min_rate)
        pieces, names, share = ctx.layout.split(x), ctx.layout.names, 1.0 / ctx.workers
        matrices = [torch.stack([pieces[i].view(b.height, b.width) for i in b.members]) for b in batches]
        starts = [torch.stack([self._start(names[i], b, x, ctx) for i in b.members]) for b in batches]

        left = [m @ q for m, q in zip(matrices, starts, strict=True)]
        plain = [pieces[i] for i in vectors]
        total = yield Sum(torch.cat([t.flatten() for t in left + plain]) * share)
        *parts, plain_mean = total.split([p.numel() for p in left] + [sum(p.numel() for p in plain)])
        bases = [torch.linalg.qr(t.view(p.shape)).Q for t, p in zip(parts, left, strict=True)]

        right = [m.mT @ p for m, p in zip(matrices, bases, strict=True)]
        means = right
        if right:
            total = yield Sum(torch.cat([q.flatten() for q in right]) * share)
            means = [t.view(q.shape) for t, q in zip(total.split([q.numel() for q in right]), right, strict=True)]
        for b, q in zip(batches, means, strict=True):
            for i, factor in zip(b.members, q, strict=True):
                ctx.state.put("q", names[i], factor)

        mean = _assemble(x, pieces, batches, bases, means, vectors, plain_mean)
        own = _assemble(x, pieces, batches, bases, right, vectors, torch.cat(plain) if plain else plain_mean)
        return mean, own if ctx.wants_own else None

    def _start(self, name: str, batch: Batch, x: Tensor, ctx: Context) -> Tensor:
        """Q of the last step; at first, a random one that all workers draw alike."""
        kept = ctx.state.get("q", name)
        if kept is not None and kept.shape == (batch.width, batch.rank):
            return kept
        stream = Random(seed=ctx.rng.seed).shared(f"powersgd/{name}")
        return normal(stream, (batch.width, batch.rank), x.device)


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


def _assemble(
    x: Tensor,
    pieces: tuple[Tensor, ...],
    batches: tuple[Batch, ...],
    bases: list[Tensor],
    factors: list[Tensor],
    vectors: tuple[int, ...],
    plain: Tensor,
) -> Tensor:
    """The flat vector of all P Qᵀ and of the tensors that travelled as they are."""
    parts = list(pieces)
    for b, p, q in zip(batches, bases, factors, strict=True):
        for i, matrix in zip(b.members, p @ q.mT, strict=True):
            parts[i] = matrix.reshape(-1)
    for i, vector in zip(vectors, torch.split(plain, [pieces[i].numel() for i in vectors]), strict=True):
        parts[i] = vector
    return torch.cat(parts) if parts else x
