r"""EF-signSGD: one bit a coordinate, and the mean magnitude of each block.

.. math::  C(a)_i = \frac{\|a_B\|_1}{|B|}\,\mathrm{sgn}(a_i), \qquad i \in B

A contraction with delta = ‖a‖₁² / (|B| ‖a‖₂²) in each block B, between 1/|B| and 1, and 2/π for Gaussian entries; runs
with error feedback. Zero counts as positive; a block of zeros decodes to zeros.
Wire: ceil(n/8) bytes, and 4 for each block of `block` elements.

Departs from the paper in the unit of the scale: blocks of fixed length instead of layers, after the blockwise scheme
of Zheng et al., NeurIPS 2019, arXiv:1905.10936. The learning rate is not folded into a.

Karimireddy et al., Error Feedback Fixes SignSGD, ICML 2019, arXiv:1901.09847, algorithm 1.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from gradwire.codecs._parameters import checked
from gradwire.codecs.quantization._signs import MeanSigns
from gradwire.core.codec import Combine, Traits, register


@register
@dataclass(frozen=True)
class EFSignSGD(MeanSigns):
    """Send the sign of each element, and the mean magnitude of each block.

    Args:
        block: elements that share a scale of 4 bytes, at least 1. 2048 adds 2 % to the bytes; smaller is more accurate.

    Example:
        >>> gradwire.VirtualCluster(1, "efsignsgd").reduce({"w": [torch.tensor([-2.0, -4.0, 1.0, 5.0])]})["w"]
        tensor([-3., -3.,  3.,  3.])
    """

    name: ClassVar[str] = "efsignsgd"
    paper: ClassVar[str] = "Karimireddy et al., ICML 2019, arXiv:1901.09847"
    plain_on_gpu: ClassVar[str] = ""
    variants: ClassVar[tuple[str, ...]] = ("efsignsgd(block=64)", "efsignsgd(block=7)")
    block: int = 2048

    def __post_init__(self) -> None:
        checked(self)

    @property
    def traits(self) -> Traits:
        return Traits(combine=Combine.GATHER, propagates_nonfinite=True, memory="error_feedback", delta=1 / self.block)

    @property
    def alignment(self) -> int:
        return self.block
