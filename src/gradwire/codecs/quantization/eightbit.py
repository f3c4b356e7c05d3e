r"""8-bit quantisation: each element of a block becomes the nearest of 256 shares of the block's largest magnitude.

.. math::  C(x)_i = S_B\, T[c_i], \qquad c_i = \arg\min_c |x_i / S_B - T[c]|, \qquad S_B = \max_{i \in B} |x_i|

Two tables T, the magnitudes of which are, in units of S:

- ``form="dynamic"``: the smaller a number, the fewer bits are left for its fraction. For i = 0 … 6 the decade
  [0.1, 1]·10^(i−6) is cut into 2^i cells, the midpoints of which are taken, with both signs; and 0 and +1. There is
  no −1: the block's largest magnitude, if negative, decodes to −0.993 S.
- ``form="static"``: one sign, three exponent bits e and four mantissa bits m, as a small float with gradual underflow,
  scaled so that its largest value is 1: (16 + m)/31 · 2^(e−7) for e >= 1, and m/31 · 2⁻⁶ for e = 0.

Zero is in both tables, so no element's error exceeds the element. Elements above any t·S have a bounded relative error
r(t), the others an absolute one of at most h(t)·S, so ‖C(x) − x‖² ≤ (r² + B h²)‖x‖²; delta is what the best t leaves.
At blocks of 2048 that is 0.992 (dynamic) or 0.998 (static). Runs with error feedback, as in GRACE. A tie goes to the
smaller magnitude.
Wire: 4 bytes for each block of `block` elements, then one byte an element: the index of a magnitude, plus 128 if it is
negative (in the dynamic form 128 itself is +1).

Departs from the paper in two points: scales belong to blocks, not to layers, and the paper's tree, which a sign and a
run of zeros lead into, is written as the sorted table that the same author uses in later public code.

Dettmers, 8-Bit Approximations for Parallelism in Deep Learning, ICLR 2016, arXiv:1511.04561.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import ClassVar

import torch
from torch import Tensor

from gradwire.core.codec import Codec, Combine, Traits, register
from gradwire.core.exchange import Payload
from gradwire.core.random import Random
from gradwire.core.registry import Check
from gradwire.kernels import lookup, rows
from gradwire.kernels.blockwise import abs_max


@register
@dataclass(frozen=True)
class EightBit(Codec):
    """The nearest of 256 values."""

    name: ClassVar[str] = "eightbit"
    family: ClassVar[str] = "quantization"
    paper: ClassVar[str] = "Dettmers, ICLR 2016, arXiv:1511.04561"
    variants: ClassVar[tuple[str, ...]] = ("eightbit(form='static')", "eightbit(block=64)", "eightbit('static', 7)")
    form: str = "dynamic"
    block: int = 2048

    def __post_init__(self) -> None:
        check = Check(self.name)
        check.one_of("form", self.form, ("dynamic", "static"))
        check.integer("block", self.block, 1)

    @property
    def traits(self) -> Traits:
        delta = contraction(self.form, self.block)
        return Traits(
            combine=Combine.GATHER,
            propagates_nonfinite=True,
            memory="error_feedback",
            delta=delta,
            odd=self.form == "static",
        )

    @property
    def alignment(self) -> int:
        return math.lcm(self.block, 8)

    def encode(self, x: Tensor, rng: Random) -> Payload:
        largest = abs_max(x, self.block)
        scale = torch.where(largest > 0, largest, 1.0)
        return Payload(rows.join(largest, lookup.encode(x, scale, self.block, _midpoints(self.form))))

    def decode(self, payload: Payload, numel: int, rng: Random) -> Tensor:
        return lookup.decode(*self._read(payload, numel), self.block, _table(self.form))

    def combine(self, payload: Payload, numel: int, rng: Random, groups: int = 1) -> Tensor:
        total = lookup.decode_sum(*self._read(payload, numel), self.block, _table(self.form), groups)
        return total.div_(payload.rows // groups)

    def payload_bytes(self, numel: int) -> int:
        return numel + 4 * -(-numel // self.block)

    def _read(self, payload: Payload, numel: int) -> tuple[Tensor, Tensor]:
        """Codes and scales."""
        largest, start = rows.take(payload.data, 0, -(-numel // self.block), torch.float32)
        return payload.data[:, start : start + numel], largest


@lru_cache
def magnitudes(form: str) -> tuple[float, ...]:
    """The magnitudes of the table from 0 to 1: 128 of them, or 129, the last of which exists as +1 only."""
    if form == "static":
        return tuple((m + 16 * (e > 0)) / 31 * 2.0 ** (max(e, 1) - 7) for e in range(8) for m in range(16))
    cells = ((0.1 + 0.9 * (j + 0.5) / 2**i) * 10.0 ** (i - 6) for i in range(7) for j in range(2**i))
    return (0.0, *cells, 1.0)


@lru_cache
def contraction(form: str, block: int) -> float:
    """A delta that holds for every block: the best split into small elements and others."""
    m = magnitudes(form)
    gaps = list(pairwise(m))
    relative = [(high - low) / (high + low) for low, high in gaps]
    absolute = [(high - low) / 2 for low, high in gaps]
    if len(m) > 128:  # without -1, the last gap is rounded down whole
        relative[-1] = absolute[-1] = m[-1] - m[-2]
    left = (
        max(relative[k:], default=0.0) ** 2 + block * max(absolute[:k], default=0.0) ** 2 for k in range(len(gaps) + 1)
    )
    return max(0.0, 1 - min(left))


@lru_cache
def _table(form: str) -> tuple[float, ...]:
    """The value of each code."""
    m = magnitudes(form)
    return (*m, *[0.0] * (129 - len(m)), *(-v for v in m[1:128]))


@lru_cache
def _midpoints(form: str) -> tuple[float, ...]:
    """Where the nearest magnitude changes."""
    return tuple((low + high) / 2 for low, high in pairwise(magnitudes(form)))
