r"""1-bit SGD: one bit a coordinate; each of the two classes of a block decodes to its own mean.

.. math::  C(a)_i = \frac{1}{|B_\pm|} \sum_{j \in B_\pm} a_j, \qquad i \in B_\pm, \qquad
           B_+ = \{j \in B : a_j \ge 0\},\quad B_- = \{j \in B : a_j < 0\}

The means make it an orthogonal projection: sums over each class are kept, the error is orthogonal to what is decoded,
and ‖a − C(a)‖² = ‖a‖² − n₊m₊² − n₋m₋². A contraction with delta >= 1/|B| (one non-zero element among zeros attains
it), and 2/π for Gaussian entries; runs with error feedback. Zero counts as non-negative, so C(−a) = −C(a) only where no
element is zero. An empty class has mean 0.
Wire: two float32 means for each block of `block` elements (all of the negative classes first), then ceil(n/8) bytes.

Departs from the paper in the unit of the means: blocks of fixed length instead of columns of a weight matrix.

Seide et al., 1-bit stochastic gradient descent and its application to data-parallel distributed training of speech
DNNs, Interspeech 2014.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from gradwire.codecs.quantization._fused import FusedCodec
from gradwire.codecs.quantization._signs import BlockSigns
from gradwire.core.codec import Combine, Traits, register
from gradwire.core.exchange import Payload
from gradwire.core.random import Random
from gradwire.core.registry import Check
from gradwire.kernels import means, rows, signs
from gradwire.kernels.bitpack import packed_bytes
from gradwire.kernels.blockwise import abs_sum
from gradwire.kernels.fused import Fused


@register
@dataclass(frozen=True)
class OneBit(FusedCodec, BlockSigns):
    """Send one bit for each element, and for each block the mean of its negative and of its other elements.

    Args:
        block: elements that share two means of 4 bytes each, 1 to 2**24. 2048 adds 3 % to the bytes.

    Example:
        >>> gradwire.VirtualCluster(1, "onebit").reduce({"w": [torch.tensor([-2.0, -4.0, 1.0, 5.0])]})["w"]
        tensor([-3., -3.,  3.,  3.])
    """

    name: ClassVar[str] = "onebit"
    paper: ClassVar[str] = "Seide et al., 1-bit stochastic gradient descent, Interspeech 2014"
    plain_on_gpu: ClassVar[str] = ""
    variants: ClassVar[tuple[str, ...]] = ("onebit(block=64)", "onebit(block=7)")
    block: int = 2048

    def __post_init__(self) -> None:
        Check(self.name).integer("block", self.block, 1, 1 << 24)  # counts stay exact in float32

    @property
    def traits(self) -> Traits:
        return Traits(
            combine=Combine.GATHER, propagates_nonfinite=True, memory="error_feedback", delta=1 / self.block, odd=False
        )

    @property
    def fused(self) -> Fused:
        return means.fused(self.block)

    def encode(self, x: Tensor, rng: Random) -> Payload:
        minus, plus = (self._mean_magnitude(x, members) for members in (x < 0, x >= 0))
        return Payload(rows.join(-minus, plus, signs.encode(x)))

    def read(self, payload: Payload, numel: int) -> tuple[Tensor, Tensor, Tensor]:
        blocks = -(-numel // self.block)
        minus, start = rows.take(payload.data, 0, blocks, torch.float32)
        plus, start = rows.take(payload.data, start, blocks, torch.float32)
        return payload.data[:, start:], minus, plus

    def payload_bytes(self, numel: int) -> int:
        return packed_bytes(numel, 1) + 8 * -(-numel // self.block)

    def _mean_magnitude(self, x: Tensor, members: Tensor) -> Tensor:
        """Of the members of each block, all of one sign; NaN wherever the block holds one."""
        kept = members.to(x.dtype)
        return abs_sum(x * kept, self.block) / abs_sum(kept, self.block).clamp_(min=1)
