r"""Top-k: each worker keeps the `ratio` of its coordinates with the largest magnitude.

.. math::  C(a)_i = a_i \ \text{if}\ |a_i| \text{ is among the } k \text{ largest, else } 0,
           \qquad k = \max(1, \lceil \text{ratio}\cdot n \rceil)

‖a − C(a)‖² ≤ (1 − k/n) ‖a‖²: a contraction with delta = k/n; runs with error feedback. Workers choose different
coordinates, so payloads cannot be all-reduced. Under scatter-reduce-gather the k are spread evenly over the shards, and
the owner of a shard selects again among the sums.
Wire: k values of `value_bits` bits, and k indices of ceil(log2 n) bits, packed.

Aji and Heafield, Sparse Communication for Distributed Gradient Descent, EMNLP 2017, arXiv:1704.05021; rate from
Stich et al., Sparsified SGD with Memory, NeurIPS 2018, arXiv:1809.07599.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from gradwire.core.codec import Codec, Combine, Traits, register
from gradwire.core.exchange import Payload
from gradwire.core.random import Random
from gradwire.core.registry import Check
from gradwire.kernels import rows
from gradwire.kernels.bitpack import pack, packed_bytes, unpack


@register
@dataclass(frozen=True)
class TopK(Codec):
    """The largest coordinates."""

    name: ClassVar[str] = "topk"
    family: ClassVar[str] = "sparsification"
    paper: ClassVar[str] = "Aji and Heafield, EMNLP 2017, arXiv:1704.05021"
    variants: ClassVar[tuple[str, ...]] = ("topk(ratio=0.3, value_bits=16)", "topk(ratio=1)")
    ratio: float = 0.01
    value_bits: int = 32

    def __post_init__(self) -> None:
        check = Check(self.name)
        check.share("ratio", self.ratio)
        check.one_of("value_bits", self.value_bits, (32, 16))

    @property
    def traits(self) -> Traits:
        return Traits(combine=Combine.GATHER, memory="error_feedback", delta=self.ratio, sparse=True)

    def encode(self, x: Tensor, rng: Random) -> Payload:
        kept = x.abs().topk(self._k(x.shape[1]), dim=1, sorted=False).indices  # NaN counts as largest
        values = x.gather(1, kept).to(self._dtype)
        return Payload(rows.join(values, pack(kept, _index_width(x.shape[1]))))

    def decode(self, payload: Payload, numel: int, rng: Random) -> Tensor:
        values, kept = self._read(payload, numel)
        return values.new_zeros((payload.rows, numel)).scatter_(1, kept, values)

    def combine(self, payload: Payload, numel: int, rng: Random) -> Tensor:
        values, kept = self._read(payload, numel)
        total = values.new_zeros((1, numel))
        for index, value in zip(kept, values, strict=True):  # worker by worker: the order of sums is fixed
            total[0].index_add_(0, index, value)
        return total.div_(payload.rows)

    def payload_bytes(self, numel: int) -> int:
        k = self._k(numel)
        return k * self._dtype.itemsize + packed_bytes(k, _index_width(numel))

    @property
    def _dtype(self) -> torch.dtype:
        return torch.float32 if self.value_bits == 32 else torch.float16

    def _k(self, numel: int) -> int:
        return min(numel, max(1, math.ceil(self.ratio * numel)))

    def _read(self, payload: Payload, numel: int) -> tuple[Tensor, Tensor]:
        k = self._k(numel)
        values, start = rows.take(payload.data, 0, k, self._dtype)
        return values.float(), unpack(payload.data[:, start:], _index_width(numel), k).long()


def _index_width(numel: int) -> int:
    """Bits of one index below `numel`."""
    return max(1, (numel - 1).bit_length())
