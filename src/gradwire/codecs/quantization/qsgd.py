r"""QSGD: stochastic rounding to s = `levels` steps of each block's norm N.

.. math::  Q(x_i) = \frac{N}{s}\,\mathrm{sgn}(x_i)\,\xi_i, \qquad
           \xi_i = \min\big(s,\ \lfloor y_i + u_i \rfloor\big), \quad y_i = s\,|x_i| / N,\ u_i \sim U[0,1)

E[Q(x)] = x. For blocks of B elements the variance is omega = (√(1 + (B−1)/s²) − 1)/2 with the max norm, attained, and
omega = min(B/(4s²), √B/s) with the Euclidean norm of the paper. Errors of workers are independent, and average out.
Wire: ceil(log2(2s+1)) bits a coordinate and 4 bytes for each block. With `share_norm`, 32-bit words of floor(32/w)
codes each, w = ceil(log2(2ns+1)) for n workers; the variance then holds against the largest norm.

Alistarh et al., QSGD, NeurIPS 2017, arXiv:1610.02132; shared norms: Xin et al., Global-QSGD, 2023, arXiv:2305.18627.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import ClassVar

from torch import Tensor

from gradwire.codecs._parameters import checked
from gradwire.codecs.quantization._grid import ROUNDED
from gradwire.codecs.quantization._norms import euclidean
from gradwire.codecs.quantization._ranges import SharedScales
from gradwire.core.codec import Combine, Traits, register
from gradwire.kernels.grid import Rule, bound


@register
@dataclass(frozen=True)
class QSGD(SharedScales):
    """Round each element at random to one of a few steps of its block's norm, right on average.

    Args:
        levels: steps from zero to the norm, 1 to 32767. 7 fits a code in 4 bits.
        block: elements that share a norm of 4 bytes. 512 keeps norms at 2 % of the bytes; smaller is more accurate.
        norm: "max", the largest magnitude (smaller errors at few levels), or "l2", the paper's.
        share_norm: agree on the largest norms first, so that codes can be all-reduced. Pays with many workers.

    Example:
        >>> gradwire.codec("qsgd(levels=7, block=512)").payload_bytes(1024)
        520
    """

    name: ClassVar[str] = "qsgd"
    paper: ClassVar[str] = "Alistarh et al., QSGD, NeurIPS 2017, arXiv:1610.02132"
    plain_on_gpu: ClassVar[str] = ""
    variants: ClassVar[tuple[str, ...]] = (
        "qsgd(levels=1)",
        "qsgd(levels=3, block=64, norm='l2')",
        "qsgd(levels=127, block=2048)",
        "qsgd(levels=300, block=5, norm='l2')",
        "qsgd(levels=7, block=64, share_norm=True)",
    )
    levels: int = 7
    block: int = 512
    norm: str = "max"
    share_norm: bool = False

    def __post_init__(self) -> None:
        check = checked(self)
        check.integer("levels", self.levels, 1, 32767)
        check.one_of("norm", self.norm, ("max", "l2"))

    @property
    def traits(self) -> Traits:
        s, b, combine = self.levels, self.block, Combine.ROUNDS if self.share_norm else Combine.GATHER
        omega = bound(self.rule(b)) if self.scales_by_rule else min(b / (4 * s**2), math.sqrt(b) / s)
        return replace(ROUNDED, combine=combine, unbiased=True, omega=omega, ignores_shapes=True)

    def rule(self, numel: int) -> Rule:
        return Rule(self.block, self.levels, self.levels)

    @property
    def scales_by_rule(self) -> bool:
        return self.norm == "max"

    def scales(self, x: Tensor, rule: Rule) -> Tensor:
        largest = super().scales(x, rule)
        return largest if self.scales_by_rule else euclidean(x, largest, self.block)
