r"""PowerSGD: one step of power iteration towards a rank-r approximation, warm-started from the last step.

With M the gradient of one tensor seen as a matrix (first dimension × the rest) and a bar the mean over the workers,

.. math::  P = \mathrm{orth}(\overline{M Q}), \qquad Q' = \overline{M^\top P}, \qquad C(M) = P Q'^\top

Two rounds, both all-reduces. Q' is kept as the next step's Q, keyed by parameter. Exact for matrices of rank <= r once
warm. What is subtracted by error feedback is the worker's own part, P (MᵀP)ᵀ, the projection of its gradient on the
shared P, which never exceeds the gradient. Matrices of the same shape are treated in one batch.
Vectors, and matrices for which m·l <= min_rate·r(m + l), travel as they are, with P; the default of 0 factors every
matrix, as published, and 1 those only that get smaller by it.
`iterations` > 1 repeats both rounds with Q = Q' within a step, for a better approximation at as many times the bytes.
``warm=False`` draws a new Q in each step and keeps none. The first `start` steps send everything as it is.
Wire: r (m + l) values of 4 bytes for an m × l matrix and each iteration, r no larger than m and l.

Q is scaled to a largest magnitude of 1 before it is used. Neither span nor result changes by that, and M Q neither
overflows nor vanishes where gradients are far from 1. All bases of a unit are found in one batch, by Cholesky factors
taken twice in float64; a direction that M Q does not have gets a column of zeros. A zero Q, as a zero gradient leaves
it, is replaced by a fixed one.

Vogels et al., PowerSGD, NeurIPS 2019, arXiv:1905.13727, algorithms 1 and 2.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from gradwire.codecs.lowrank._matrices import Alternation, orthonormal, revived, uncompressed
from gradwire.core.codec import Codec, Combine, Context, Flag, Reduced, Traits, register
from gradwire.core.exchange import Program
from gradwire.core.registry import Check
from gradwire.core.window import Feedback, Window


@register
@dataclass(frozen=True)
class PowerSGD(Codec):
    """Low-rank factors by power iteration."""

    name: ClassVar[str] = "powersgd"
    family: ClassVar[str] = "lowrank"
    paper: ClassVar[str] = "Vogels et al., PowerSGD, NeurIPS 2019, arXiv:1905.13727"
    variants: ClassVar[tuple[str, ...]] = (
        "powersgd(rank=1)",
        "powersgd(rank=2, min_rate=2, start=2)",
        "powersgd(rank=2, iterations=2, warm=False)",
    )
    rank: int = 4
    min_rate: float = 0.0
    start: int = 0
    iterations: int = 1
    warm: bool = True

    def __post_init__(self) -> None:
        check = Check(self.name)
        check.integer("rank", self.rank, 1)
        check.number("min_rate", self.min_rate, 0, math.inf, "a compression rate of at least 0")
        check.integer("start", self.start, 0)
        check.integer("iterations", self.iterations, 1)
        check.one_of("warm", self.warm, (True, False))

    @property
    def traits(self) -> Traits:
        return Traits(combine=Combine.ROUNDS, memory="error_feedback", delta=0.0, propagates_nonfinite=True)

    @property
    def steady_from_step(self) -> int:
        return self.start

    def reduce(self, x: Tensor, ctx: Context) -> Reduced:
        if ctx.rng.step < self.start:
            return (yield from uncompressed(x, ctx))
        return (yield from self._rounds.reduce(x, ctx))

    def reduce_to(self, source: Window, target: Window, feedback: Feedback | None, ctx: Context) -> Program[Flag]:
        if ctx.rng.step < self.start or ctx.moved:
            return (yield from super().reduce_to(source, target, feedback, ctx))
        return (yield from self._rounds.reduce_to(source, target, feedback, ctx))

    @property
    def _rounds(self) -> Alternation:
        return Alternation(
            turned=revived,
            bases=orthonormal,
            dual=lambda p: p,
            rank=self.rank,
            min_rate=self.min_rate,
            iterations=self.iterations,
            warm=self.warm,
        )
