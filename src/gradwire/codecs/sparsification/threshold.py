r"""Threshold-v: each worker sends the coordinates whose magnitude exceeds a fixed `value`.

.. math::  C(a)_i = a_i \ \text{if}\ |a_i| > \text{value, else } 0

How many are sent depends on the gradient; it may be none. Runs with error feedback, whose memory never holds more than
`value` in any coordinate (with float32 values and no `capacity`). A contraction with delta = 0 only, since a gradient
below the threshold sends nothing.
Wire: per row the count k in 4 bytes, k values of `value_bits` bits, and k indices in the shortest coding, see `topk`;
nothing where k = 0.

Dutta et al., On the Discrepancy between the Theoretical Analysis and Practical Implementations of Compressed
Communication, AAAI 2020, arXiv:1911.08250.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from gradwire.codecs._parameters import checked
from gradwire.codecs.sparsification._ragged import RowByRow, ragged, read_counted, rows_above, write_counted
from gradwire.codecs.sparsification._sparse_payload import kept, rounded, settle
from gradwire.core.codec import Combine, Traits, register
from gradwire.core.exchange import Payload
from gradwire.core.random import Random
from gradwire.core.window import Feedback, Window
from gradwire.kernels import counted
from gradwire.kernels.above import send_from
from gradwire.kernels.indices import index_bytes
from gradwire.kernels.scatter import scatter
from gradwire.kernels.select import above_from
from gradwire.kernels.window import one_launch, one_pass


@register
@dataclass(frozen=True)
class Threshold(RowByRow):
    """Send the elements whose magnitude exceeds a fixed threshold; error feedback keeps the others.

    Args:
        value: the threshold, at least 0, in the units of the gradient as it comes, loss scale included. No default
            fits all models: look at the gradients first.
        capacity: largest share of the elements to send, in (0, 1]; the largest go first. None for no limit.
        value_bits: of a sent value: 32 keeps it exact, 16 rounds it to half precision.

    Example:
        >>> gradwire.VirtualCluster(1, "threshold(value=1.5)").reduce({"w": [torch.tensor([1.0, -2.0, 3.0])]})["w"]
        tensor([ 0., -2.,  3.])
    """

    name: ClassVar[str] = "threshold"
    family: ClassVar[str] = "sparsification"
    paper: ClassVar[str] = "Dutta et al., AAAI 2020, arXiv:1911.08250"
    plain_on_gpu: ClassVar[str] = ""
    variants: ClassVar[tuple[str, ...]] = ("threshold(value=1.5)", "threshold(value=0.5, capacity=0.1, value_bits=16)")
    value: float = 0.01
    capacity: float | None = None
    value_bits: int = 32

    def __post_init__(self) -> None:
        check = checked(self)
        check.number("value", self.value, 0, math.inf, "a magnitude of at least 0")
        if self.capacity is not None:
            check.share("capacity", self.capacity)

    @property
    def traits(self) -> Traits:
        claims = Traits(combine=Combine.GATHER, memory="error_feedback", delta=0.0, fixed_size=False, homogeneous=False)
        return replace(claims, sparse=True, propagates_nonfinite=True)  # NaN and infinity exceed any magnitude

    def encode(self, x: Tensor, rng: Random) -> Payload:
        if self.capacity is None and one_launch(Window.whole(x)):
            return Payload(*send_from(Window.whole(x), None, 1, x.shape[1], self.value, self.value_bits, 1.0))
        return ragged([write_counted(*chosen, x.shape[1], self.value_bits) for chosen in self._pick(x)])

    def encode_own(self, x: Tensor, rng: Random) -> tuple[Payload, Tensor]:
        picked = self._pick(x)
        own = [scatter(rounded(values, self.value_bits), where, x.shape[1]) for values, where in picked]
        return ragged([write_counted(*chosen, x.shape[1], self.value_bits) for chosen in picked]), torch.cat(own)

    def encode_from(
        self, source: Window, feedback: Feedback | None, shards: int, shard: int, rng: Random, factor: float = 1.0
    ) -> Payload:
        if self.capacity is not None or not one_pass(source, feedback, on_gpu=lambda: True):
            return super().encode_from(source, feedback, shards, shard, rng, factor)
        if one_launch(source, feedback):
            return Payload(*send_from(source, feedback, shards, shard, self.value, self.value_bits, factor))
        chosen = above_from(source, feedback, shards, shard, self.value)
        flat = ((values[0], where[0]) for values, where in chosen)
        settle(feedback, flat, shards, shard, self.value_bits, factor)
        return ragged([write_counted(*one, shard, self.value_bits) for one in chosen])

    def payload_bytes(self, numel: int) -> int:
        most = self._most(numel)
        indices = min(index_bytes(numel, most, "packed"), index_bytes(numel, most, "bitmap"))
        return 8 + 4 + most * self.value_bits // 8 + indices

    def _most(self, numel: int) -> int:
        return numel if self.capacity is None else kept(self.capacity, numel)

    def _pick(self, x: Tensor) -> list[tuple[Tensor, Tensor]]:
        """Values and ascending indices of what each row sends, both (1, k)."""
        return rows_above(x, self.value, self._most(x.shape[1]))

    def entries(self, data: Tensor, numel: int) -> tuple[Tensor, Tensor]:
        return read_counted(data, numel, self.value_bits)

    def level(self, payload: Payload, numel: int) -> tuple[Tensor, Tensor]:
        assert payload.lengths is not None
        return counted.read(payload.data, payload.lengths, numel, self.value_bits)
