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

from gradwire.codecs._parameters import checked
from gradwire.codecs.sparsification._sparse_payload import kept
from gradwire.codecs.sparsification._supports import only
from gradwire.core.codec import Codec, Combine, Context, Reduced, Traits, register
from gradwire.core.exchange import Sum
from gradwire.kernels.select import top


@register
@dataclass(frozen=True)
class GlobalTopK(Codec):
    """Send everything, then keep the largest elements of the mean. For comparison only: nothing is saved.

    Args:
        ratio: share of the elements to keep, in (0, 1]. 0.01 keeps 1 %, as `topk` does.

    Example:
        >>> cluster = gradwire.VirtualCluster(workers=2, codec="globaltopk(ratio=0.5)")
        >>> cluster.reduce({"w": [torch.tensor([4.0, 1.0]), torch.tensor([2.0, 3.0])]})["w"]
        tensor([3., 0.])
    """

    name: ClassVar[str] = "globaltopk"
    family: ClassVar[str] = "sparsification"
    paper: ClassVar[str] = "Han et al., 2024, arXiv:2407.01378"
    plain_on_gpu: ClassVar[str] = "its second round has no kernel yet; selection has"
    variants: ClassVar[tuple[str, ...]] = ("globaltopk(ratio=0.3)", "globaltopk(ratio=1)")
    ratio: float = 0.01

    def __post_init__(self) -> None:
        checked(self)

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
        return only(mean, support), only(x, support) if ctx.wants_own else None
