r"""Global top-k: the k largest coordinates of the mean gradient itself, which takes the whole of it to find.

.. math::  \bar a = \frac1n \sum_w a^w, \qquad
           C(a)_i = \bar a_i \ \text{if}\ |\bar a_i| \text{ is among the } k \text{ largest, else } 0,
           \qquad k = \max(1, \lceil \text{ratio}\cdot d \rceil)

The best k-sparse approximation of the mean, and as such the yardstick of all methods that send k coordinates: an
oracle, for comparison only. For the mean a contraction with delta = k/d. What error feedback subtracts is the worker's
own gradient on the common support.
Wire: the whole gradient, 4 bytes an element, in one all-reduce.

The name is from Han et al., Beyond Throughput and Compression Ratios, 2024, arXiv:2407.01378, section 3.1.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from gradwire.codecs.sparsification._sparse_payload import kept
from gradwire.core.codec import Codec, Combine, Context, Reduced, Traits, register
from gradwire.core.exchange import Sum
from gradwire.core.registry import Check
from gradwire.kernels.scatter import scatter
from gradwire.kernels.select import top


@register
@dataclass(frozen=True)
class GlobalTopK(Codec):
    """The largest coordinates of the mean: an oracle."""

    name: ClassVar[str] = "globaltopk"
    family: ClassVar[str] = "sparsification"
    paper: ClassVar[str] = "Han et al., 2024, arXiv:2407.01378"
    variants: ClassVar[tuple[str, ...]] = ("globaltopk(ratio=0.3)", "globaltopk(ratio=1)")
    ratio: float = 0.01

    def __post_init__(self) -> None:
        Check(self.name).share("ratio", self.ratio)

    @property
    def traits(self) -> Traits:
        return Traits(
            combine=Combine.ROUNDS,
            memory="error_feedback",
            delta=self.ratio,
            sparse=True,
            ignores_shapes=True,
            oracle=True,
        )

    def reduce(self, x: Tensor, ctx: Context) -> Reduced:
        mean = yield Sum(x * (1.0 / ctx.workers))
        support = top(mean, kept(self.ratio, x.shape[1]))
        return _only(mean, support), _only(x, support.expand(len(x), -1)) if ctx.wants_own else None


def _only(x: Tensor, support: Tensor) -> Tensor:
    """The rows `x` on the support, and zero elsewhere."""
    return scatter(x.gather(1, support), support, x.shape[1])
