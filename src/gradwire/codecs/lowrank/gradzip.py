r"""GradZip: one sweep of alternating least squares with a ridge towards a rank-r approximation, warm-started.

With M the gradient of one tensor seen as a matrix (first dimension × the rest), R the factor of the last step and a bar
the mean over the workers,

.. math::  P = \overline{M R\,(R^\top R + \lambda_R I)^{-1}}, \qquad
           R' = \overline{M^\top P\,(P^\top P + \lambda_P I)^{-1}}, \qquad C(M) = P R'^\top

and λ = `ridge` times the mean eigenvalue of the r × r matrix that it is added to, so that the result scales with
the gradient. Two rounds, both all-reduces; systems of r equations in place of PowerSGD's orthogonalisation. As the
ridge goes to 0, the result becomes PowerSGD's from the same start. The worker's own part is P R'ᵀ with its own R'. It
shrinks each direction of its gradient by a factor in [0, 1], so what remains never exceeds the gradient: delta = 0,
and it runs with error feedback, which the paper leaves open.
The equations are solved in float64, from factors scaled to a largest magnitude of 1 (λ scales with them, so this
changes nothing). A zero R, as a zero gradient leaves it, would stay zero for ever: a fixed dense one takes its place.
`min_rate` and `start` are PowerSGD's.
Wire: r (m + l) values of 4 bytes for an m × l matrix, r no larger than m and l; other tensors as they are.

Cho, Muthusamy, Nemanich, Puri: GradZip: Gradient Compression using Alternating Matrix Factorization for Large-scale
Deep Learning, NeurIPS 2019 workshop.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from gradwire.codecs.lowrank._matrices import Alternation, revived, uncompressed, unit
from gradwire.core.codec import Codec, Combine, Context, Reduced, Traits, register
from gradwire.core.registry import Check


@register
@dataclass(frozen=True)
class GradZip(Codec):
    """Low-rank factors by ridge regression."""

    name: ClassVar[str] = "gradzip"
    family: ClassVar[str] = "lowrank"
    paper: ClassVar[str] = "Cho et al., GradZip, NeurIPS 2019 workshop"
    variants: ClassVar[tuple[str, ...]] = ("gradzip(rank=1)", "gradzip(rank=2, ridge=0.01, min_rate=2, start=2)")
    rank: int = 4
    ridge: float = 1e-6
    min_rate: float = 0.0
    start: int = 0

    def __post_init__(self) -> None:
        check = Check(self.name)
        check.integer("rank", self.rank, 1)
        check.number("ridge", self.ridge, 1e-10, 1, "a share of the mean eigenvalue from 1e-10 to 1")
        check.number("min_rate", self.min_rate, 0, math.inf, "a compression rate of at least 0")
        check.integer("start", self.start, 0)

    @property
    def traits(self) -> Traits:
        return Traits(combine=Combine.ROUNDS, memory="error_feedback", delta=0.0)

    @property
    def steady_from_step(self) -> int:
        return self.start

    def reduce(self, x: Tensor, ctx: Context) -> Reduced:
        if ctx.rng.step < self.start:
            return (yield from uncompressed(x, ctx))
        rounds = Alternation(
            turned=lambda r: regress(revived(r), self.ridge),
            bases=lambda stacks: [unit(p) for p in stacks],
            dual=lambda p: regress(p, self.ridge),
            rank=self.rank,
            min_rate=self.min_rate,
        )
        return (yield from rounds.reduce(x, ctx))


def regress(factors: Tensor, ridge: float) -> Tensor:
    """F (FᵀF + λI)⁻¹ for each matrix F; zero for a zero matrix."""
    exact = factors.double()
    gram = exact.mT @ exact
    diagonal = gram.diagonal(dim1=-2, dim2=-1)
    average = diagonal.mean(-1)[..., None, None]
    penalty = torch.where(average == 0, 1.0, ridge * average) * torch.eye(gram.shape[-1], device=gram.device)
    root = torch.linalg.cholesky_ex(gram + penalty).L
    return torch.cholesky_solve(exact.mT, root).mT.to(factors.dtype)
