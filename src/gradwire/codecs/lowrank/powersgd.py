r"""PowerSGD: one step of power iteration towards a rank-r approximation, warm-started from the last step.

With M the gradient of one tensor seen as a matrix (first dimension × the rest) and a bar the mean over the workers,

.. math::  P = \mathrm{orth}(\overline{M Q}), \qquad Q' = \overline{M^\top P}, \qquad C(M) = P Q'^\top

Two rounds, both all-reduces. Q' is the next step's Q, kept by parameter name. Exact for matrices of rank <= r once
warm. A worker's own part is P (MᵀP)ᵀ, the projection of its gradient on the shared P, which never exceeds the gradient:
delta = 0. Vectors, and matrices for which m·l <= min_rate·r(m + l), travel as they are, with P. `iterations` repeat
both rounds with Q = Q' within a step.
Wire: r (m + l) values of 4 bytes for an m × l matrix and each iteration, r no larger than m and l.

Each column of Q is scaled to a largest magnitude of 1 before it is used, so that M Q neither overflows nor vanishes;
what the columns span stays the same. Not scaled, a column that gradients have nothing for would shrink from step to
step until it is lost. A column of zeros is replaced by a fixed one.

Vogels et al., PowerSGD, NeurIPS 2019, arXiv:1905.13727, algorithms 1 and 2.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from gradwire.codecs._parameters import checked
from gradwire.codecs.lowrank._alternation import AlternatingCodec
from gradwire.core.codec import Combine, Traits, register
from gradwire.kernels.factors import Shapes, orthonormal


@register
@dataclass(frozen=True)
class PowerSGD(AlternatingCodec):
    """Send two thin factors of each gradient matrix, found by power iteration; vectors travel as they are.

    Args:
        rank: columns of the factors, at least 1. 4 is accurate for most networks; 1 or 2 send less.
        min_rate: factor a matrix only if it gets more than this many times smaller. 0 factors all, as published.
        start: steps at the beginning that send everything as it is.
        iterations: of the power method in each step, at least 1. Each sends the factors once more.
        warm: begin with the factor of the last step; False draws a new one each time, which is less accurate.

    Example:
        >>> cluster = gradwire.VirtualCluster(workers=2, codec="powersgd(rank=1)")
        >>> _ = cluster.reduce({"w": [torch.ones(64, 64), torch.ones(64, 64)]})
        >>> cluster.payload_bytes  # of 16384
        512
    """

    name: ClassVar[str] = "powersgd"
    paper: ClassVar[str] = "Vogels et al., PowerSGD, NeurIPS 2019, arXiv:1905.13727"
    plain_on_gpu: ClassVar[str] = ""
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
        checked(self).integer("iterations", self.iterations, 1)

    @property
    def traits(self) -> Traits:
        return Traits(combine=Combine.ROUNDS, memory="error_feedback", delta=0.0, propagates_nonfinite=True)

    def bases(self, left: Tensor, shapes: Shapes) -> Tensor:
        return orthonormal(left, shapes)
