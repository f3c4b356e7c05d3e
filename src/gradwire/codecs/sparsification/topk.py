r"""Top-k: each worker keeps the `ratio` of its coordinates with the largest magnitude.

.. math::  C(a)_i = a_i \ \text{if}\ |a_i| \text{ is among the } k \text{ largest, else } 0,
           \qquad k = \max(1, \lceil \text{ratio}\cdot n \rceil)

Among equals the lower index is taken. ‖a − C(a)‖² ≤ (1 − k/n) ‖a‖²: a contraction with delta = k/n; runs with error
feedback. Workers choose different coordinates, so payloads cannot be all-reduced. Under scatter-reduce-gather the k are
spread evenly over the shards, and the owner of a shard selects again among the sums.
Wire: k values of `value_bits` bits, in the order of their indices, then the k indices in the coding `index`, rounded up
to bytes: k·ceil(log2 n) bits as "packed", n as "bitmap", k·(l + 1) + ceil(n/2^l) − 1 with l = floor(log2(n/k)) as
"elias_fano", 16·k + 32·ceil(n/2^16) as "blocks".

Aji and Heafield, Sparse Communication for Distributed Gradient Descent, EMNLP 2017, arXiv:1704.05021; rate from
Stich et al., Sparsified SGD with Memory, NeurIPS 2018, arXiv:1809.07599.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from gradwire.codecs._parameters import checked
from gradwire.codecs.sparsification._entries import Selection
from gradwire.core.codec import Combine, Traits, register


@register
@dataclass(frozen=True)
class TopK(Selection):
    """Send the elements of largest magnitude; error feedback keeps the others for later steps.

    Args:
        ratio: share of the elements to send, in (0, 1]. 0.01 sends 1 %, with about 40 bits for each of them.
        value_bits: of a sent value: 32 keeps it exact, 16 rounds it to half precision.
        index: how indices are packed. "best" takes the shortest, 8.6 bits each at 1 %; "blocks" is the fastest; or
            "packed", "bitmap" or "elias_fano".

    Example:
        >>> cluster = gradwire.VirtualCluster(workers=2, codec="topk(ratio=0.5)")
        >>> cluster.reduce({"w": [torch.tensor([4.0, 1.0]), torch.tensor([2.0, 3.0])]})["w"]
        tensor([2.0000, 1.5000])
    """

    name: ClassVar[str] = "topk"
    paper: ClassVar[str] = "Aji and Heafield, EMNLP 2017, arXiv:1704.05021"
    plain_on_gpu: ClassVar[str] = ""
    variants: ClassVar[tuple[str, ...]] = ("topk(ratio=0.3, value_bits=16, index='elias_fano')", "topk(ratio=1)")
    ratio: float = 0.01
    value_bits: int = 32
    index: str = "best"

    def __post_init__(self) -> None:
        checked(self)

    @property
    def traits(self) -> Traits:
        # NaN and infinity count as largest, so they are always sent
        return Traits(
            combine=Combine.GATHER, memory="error_feedback", delta=self.ratio, sparse=True, propagates_nonfinite=True
        )
