r"""8-bit quantisation: each element of a block becomes the nearest of 256 shares of the block's largest magnitude.

.. math::  C(x)_i = S_B\, T[c_i], \qquad c_i = \arg\min_c |x_i / S_B - T[c]|, \qquad S_B = \max_{i \in B} |x_i|

Two tables T, the magnitudes of which are, in units of S:

- ``form="dynamic"``: for i = 0 … 6 the midpoints of 2^i cells of the decade [0.1, 1]·10^(i−6), with both signs; and 0
  and +1. There is no −1: the block's largest magnitude, if negative, decodes to −0.993 S.
- ``form="static"``: three exponent bits e and four mantissa bits m, with gradual underflow: (16 + m)/31 · 2^(e−7) for
  e >= 1, and m/31 · 2⁻⁶ for e = 0.

Zero is in both tables, so no element's error exceeds the element. Elements above any t·S have a bounded relative error
r(t), the others an absolute one of at most h(t)·S, so ‖C(x) − x‖² ≤ (r² + B h²)‖x‖²; delta is what the best t leaves:
0.992 (dynamic) or 0.998 (static) for blocks of 2048. A tie goes to the smaller magnitude.
Wire: 4 bytes for each block, then one byte an element: the index of a magnitude, plus 128 if it is negative (in the
dynamic form 128 itself is +1).

Departs from the paper in two points: scales belong to blocks, not to layers, and the paper's tree is written as the
sorted table that the same author uses in later public code.

Dettmers, 8-Bit Approximations for Parallelism in Deep Learning, ICLR 2016, arXiv:1511.04561.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from gradwire.codecs._parameters import checked
from gradwire.codecs.quantization._fused import FusedCodec
from gradwire.codecs.quantization._tables import codebook, contraction, midpoints
from gradwire.core.codec import Combine, Traits, register
from gradwire.core.exchange import Payload
from gradwire.core.random import Random
from gradwire.kernels import lookup, rows
from gradwire.kernels.blockwise import abs_max
from gradwire.kernels.fused import Fused


@register
@dataclass(frozen=True)
class EightBit(FusedCodec):
    """Send one byte for each element: the nearest of 256 shares of its block's largest magnitude.

    Args:
        form: the table of shares. "dynamic" reaches down seven decades, "static" is a small float with 3 exponent bits.
        block: elements that share a scale of 4 bytes, at least 1. 2048 makes scales cost 0.2 % of the bytes.

    Example:
        >>> gradwire.codec("eightbit").payload_bytes(2048)
        2052
    """

    name: ClassVar[str] = "eightbit"
    family: ClassVar[str] = "quantization"
    paper: ClassVar[str] = "Dettmers, ICLR 2016, arXiv:1511.04561"
    plain_on_gpu: ClassVar[str] = ""
    variants: ClassVar[tuple[str, ...]] = ("eightbit(form='static')", "eightbit(block=64)", "eightbit('static', 7)")
    form: str = "dynamic"
    block: int = 2048

    def __post_init__(self) -> None:
        checked(self).one_of("form", self.form, ("dynamic", "static"))

    @property
    def traits(self) -> Traits:
        delta, odd = contraction(self.form, self.block), self.form == "static"
        return Traits(combine=Combine.GATHER, propagates_nonfinite=True, memory="error_feedback", delta=delta, odd=odd)

    @property
    def alignment(self) -> int:
        return math.lcm(self.block, 8)

    @property
    def fused(self) -> Fused:
        return lookup.fused(self.block, midpoints(self.form), codebook(self.form))

    def encode(self, x: Tensor, rng: Random) -> Payload:
        largest = abs_max(x, self.block)
        scale = torch.where(largest > 0, largest, 1.0)
        return Payload(rows.join(largest, lookup.encode(x, scale, self.block, midpoints(self.form))))

    def decode(self, payload: Payload, numel: int, rng: Random) -> Tensor:
        return lookup.decode(*self.read(payload, numel), self.block, codebook(self.form))

    def combine(self, payload: Payload, numel: int, rng: Random, groups: int = 1) -> Tensor:
        total = lookup.decode_sum(*self.read(payload, numel), self.block, codebook(self.form), groups)
        return rows.divide_(total, payload.rows // groups)

    def payload_bytes(self, numel: int) -> int:
        return numel + 4 * -(-numel // self.block)

    def read(self, payload: Payload, numel: int) -> tuple[Tensor, Tensor]:
        """Codes and scales."""
        largest, start = rows.take(payload.data, 0, -(-numel // self.block), torch.float32)
        return payload.data[:, start : start + numel], largest
