r"""Top-k: each worker keeps the `ratio` of its coordinates with the largest magnitude.

.. math::  C(a)_i = a_i \ \text{if}\ |a_i| \text{ is among the } k \text{ largest, else } 0,
           \qquad k = \max(1, \lceil \text{ratio}\cdot n \rceil)

Among equals the lower index is taken. ‖a − C(a)‖² ≤ (1 − k/n) ‖a‖²: a contraction with delta = k/n; runs with error
feedback. Workers choose different coordinates, so payloads cannot be all-reduced. Under scatter-reduce-gather the k are
spread evenly over the shards, and the owner of a shard selects again among the sums.
Wire: k values of `value_bits` bits, in the order of their indices, then the k indices in the coding `index`, rounded up
to bytes: k·ceil(log2 n) bits as "packed", n as "bitmap", k·(l + 1) + ceil(n/2^l) − 1 with l = floor(log2(n/k)) as
"elias_fano", 16·k + 32·ceil(n/2^16) as "blocks", the fastest; "best" takes the shortest, 8.6 bits an index at 1 %.

Aji and Heafield, Sparse Communication for Distributed Gradient Descent, EMNLP 2017, arXiv:1704.05021; rate from
Stich et al., Sparsified SGD with Memory, NeurIPS 2018, arXiv:1809.07599.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from gradwire.codecs.sparsification._sparse_payload import (
    CODINGS,
    VALUE_BITS,
    kept,
    read,
    rounded,
    support_bytes,
    write,
)
from gradwire.core.codec import Codec, Combine, Flag, Traits, nonfinite_flag, register
from gradwire.core.exchange import Payload
from gradwire.core.random import Random
from gradwire.core.registry import Check
from gradwire.core.window import Feedback, Window
from gradwire.kernels import select
from gradwire.kernels.scatter import mean_to, put_to, scatter, scatter_sum
from gradwire.kernels.select import top
from gradwire.kernels.window import one_pass


@register
@dataclass(frozen=True)
class TopK(Codec):
    """The largest coordinates."""

    name: ClassVar[str] = "topk"
    family: ClassVar[str] = "sparsification"
    paper: ClassVar[str] = "Aji and Heafield, EMNLP 2017, arXiv:1704.05021"
    variants: ClassVar[tuple[str, ...]] = ("topk(ratio=0.3, value_bits=16, index='elias_fano')", "topk(ratio=1)")
    ratio: float = 0.01
    value_bits: int = 32
    index: str = "best"

    def __post_init__(self) -> None:
        check = Check(self.name)
        check.share("ratio", self.ratio)
        check.one_of("value_bits", self.value_bits, VALUE_BITS)
        check.one_of("index", self.index, CODINGS)

    @property
    def traits(self) -> Traits:
        # what is not finite counts as largest, so it is always sent
        return Traits(
            combine=Combine.GATHER, memory="error_feedback", delta=self.ratio, sparse=True, propagates_nonfinite=True
        )

    def encode(self, x: Tensor, rng: Random) -> Payload:
        return self._write(x, *self._pick(x, rng))

    def encode_own(self, x: Tensor, rng: Random) -> tuple[Payload, Tensor]:
        values, where = self._pick(x, rng)
        return self._write(x, values, where), scatter(rounded(values, self.value_bits), where, x.shape[1])

    def decode(self, payload: Payload, numel: int, rng: Random) -> Tensor:
        return scatter(*self._read(payload, numel, rng), numel)

    def combine(self, payload: Payload, numel: int, rng: Random, groups: int = 1) -> Tensor:
        return scatter_sum(*self._read(payload, numel, rng), numel, groups).div_(payload.rows // groups)

    def encode_from(
        self, source: Window, feedback: Feedback | None, shards: int, shard: int, rng: Random, factor: float = 1.0
    ) -> Payload:
        if not self.selects_exactly or not one_pass(source, feedback):
            return super().encode_from(source, feedback, shards, shard, rng, factor)
        values, where = select.top_from(source, feedback, shards, shard, self._k(shard, rng))
        if feedback is not None:
            sent = rounded(values, self.value_bits)
            for i in range(len(where)):
                row, number = divmod(i, shards)
                select.settle(feedback, row, number * shard, where[i], sent[i] if factor == 1 else sent[i] * factor)
        return Payload(write(values, where, shard, self.value_bits, self.index))

    def decode_to(self, payload: Payload, target: Window, shard: int, rng: Random, factor: float = 1.0) -> Flag:
        if not one_pass(target):
            return super().decode_to(payload, target, shard, rng, factor)
        values, where = self._read(payload, shard, rng)
        put_to(list(zip(values, where, strict=True)), shard, target, factor)
        return nonfinite_flag(values)

    def combine_to(self, payload: Payload, target: Window, rng: Random, factor: float = 1.0) -> Flag:
        if not one_pass(target):
            return super().combine_to(payload, target, rng, factor)
        values, where = self._read(payload, target.numel, rng)
        mean_to(values, where, target, factor)
        return nonfinite_flag(values)

    @property
    def selects_exactly(self) -> bool:
        """Whether the largest elements are sent, and no others."""
        return True

    def payload_bytes(self, numel: int) -> int:
        return support_bytes(numel, kept(self.ratio, numel), self.value_bits, self.index)

    def _k(self, numel: int, rng: Random) -> int:
        """Elements to keep in this step."""
        return kept(self.ratio, numel)

    def _pick(self, x: Tensor, rng: Random) -> tuple[Tensor, Tensor]:
        """Values and ascending indices of the elements to send: both (rows, k). NaN counts as largest."""
        where = top(x, self._k(x.shape[1], rng))
        return x.gather(1, where), where

    def _write(self, x: Tensor, values: Tensor, where: Tensor) -> Payload:
        return Payload(write(values, where, x.shape[1], self.value_bits, self.index))

    def _read(self, payload: Payload, numel: int, rng: Random) -> tuple[Tensor, Tensor]:
        return read(payload.data, numel, self._k(numel, rng), self.value_bits, self.index)
