r"""GradZip: one sweep of alternating least squares with a ridge towards a rank-r approximation, warm-started.

With M the gradient of one tensor seen as a matrix (first dimension × the rest), R the factor of the last step and a bar
the mean over the workers,

.. math::  P = \overline{M R\,(R^\top R + \lambda_R I)^{-1}}, \qquad
           R' = \overline{M^\top P\,(P^\top P + \lambda_P I)^{-1}}, \qquad C(M) = P R'^\top

and λ = `ridge` times the mean eigenvalue of the r × r matrix that it is added to, so that the result scales with
the gradient. Two rounds, both all-reduces. As the ridge goes to 0, the result becomes PowerSGD's from the same start. A
worker's own part is P R'ᵀ with its own R'. It shrinks each direction of its gradient by a factor in [0, 1]: delta = 0,
and it runs with error feedback, which the paper leaves open.
The equations are solved in float64, from factors scaled to a largest magnitude of 1. A fixed dense R takes the place of
a zero one, which would stay zero for ever.
Wire: r (m + l) values of 4 bytes for an m × l matrix, r no larger than m and l; other tensors as they are.

Cho, Muthusamy, Nemanich, Puri: GradZip: Gradient Compression using Alternating Matrix Factorization for Large-scale
Deep Learning, NeurIPS 2019 workshop.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from gradwire.codecs._parameters import checked
from gradwire.codecs.lowrank._alternation import AlternatingCodec, revived
from gradwire.core.codec import Combine, Traits, register
from gradwire.kernels.factors import Shapes, regressed, unit


@register
@dataclass(frozen=True)
class GradZip(AlternatingCodec):
    """Send two thin factors of each gradient matrix, found by ridge regression; vectors travel as they are.

    Args:
        rank: columns of the factors, at least 1. 4 as in `powersgd`.
        ridge: penalty of the regression, as a share of the mean eigenvalue, 1e-10 to 1. Small is close to `powersgd`.
        min_rate: factor a matrix only if it gets more than this many times smaller. 0 factors all.
        start: steps at the beginning that send everything as it is.

    Example:
        >>> cluster = gradwire.VirtualCluster(workers=2, codec="gradzip(rank=1)")
        >>> _ = cluster.reduce({"w": [torch.ones(64, 64), torch.ones(64, 64)]})
        >>> cluster.payload_bytes  # of 16384
        512
    """

    name: ClassVar[str] = "gradzip"
    paper: ClassVar[str] = "Cho et al., GradZip, NeurIPS 2019 workshop"
    plain_on_gpu: ClassVar[str] = ""
    variants: ClassVar[tuple[str, ...]] = ("gradzip(rank=1)", "gradzip(rank=2, ridge=0.01, min_rate=2, start=2)")
    rank: int = 4
    ridge: float = 1e-6
    min_rate: float = 0.0
    start: int = 0

    def __post_init__(self) -> None:
        checked(self).number("ridge", self.ridge, 1e-10, 1, "a share of the mean eigenvalue from 1e-10 to 1")

    @property
    def traits(self) -> Traits:
        return Traits(combine=Combine.ROUNDS, memory="error_feedback", delta=0.0, propagates_nonfinite=True)

    def turned(self, right: Tensor, shapes: Shapes) -> Tensor:
        return regressed(revived(right, shapes), shapes, self.ridge, turned=True)

    def bases(self, left: Tensor, shapes: Shapes) -> Tensor:
        return unit(left, shapes)[0]

    def dual(self, left: Tensor, shapes: Shapes) -> Tensor:
        return regressed(left, shapes, self.ridge)
