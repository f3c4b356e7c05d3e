r"""Threshold-v: each worker sends the coordinates whose magnitude exceeds a fixed `value`.

.. math::  C(a)_i = a_i \ \text{if}\ |a_i| > \text{value, else } 0

How many that are depends on the gradient; none is legal, and an empty row takes no byte beside its travelling length.
Runs with error feedback, whose memory never holds more than `value` in any coordinate (with float32 values and no
`capacity`). `capacity` bounds what is sent to this share of all coordinates: the largest go, the others wait in the
memory. A contraction with delta = 0 only, since a gradient below the threshold sends nothing. The threshold is in the
units of the gradient as it comes, loss scale included.
Wire: per row the count k in 4 bytes, k values of `value_bits` bits, and k indices in the shortest coding, see `topk`;
nothing where k = 0.

Dutta et al., On the Discrepancy between the Theoretical Analysis and Practical Implementations of Compressed
Communication, AAAI 2020, arXiv:1911.08250.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from gradwire.codecs.sparsification._sparse_payload import VALUE_BITS, RowByRow, kept, ragged, read, rounded, write
from gradwire.core.codec import Combine, Flag, Traits, nonfinite_flag, register
from gradwire.core.exchange import Payload
from gradwire.core.random import Random
from gradwire.core.registry import Check
from gradwire.core.window import Feedback, Window
from gradwire.kernels import rows
from gradwire.kernels.indices import index_bytes
from gradwire.kernels.scatter import put_to, scatter
from gradwire.kernels.select import above, above_from, settle, top
from gradwire.kernels.window import one_pass


@register
@dataclass(frozen=True)
class Threshold(RowByRow):
    """Whatever exceeds a fixed magnitude."""

    name: ClassVar[str] = "threshold"
    family: ClassVar[str] = "sparsification"
    paper: ClassVar[str] = "Dutta et al., AAAI 2020, arXiv:1911.08250"
    variants: ClassVar[tuple[str, ...]] = (
        "threshold(value=1.5)",
        "threshold(value=0.5, capacity=0.1, value_bits=16)",
    )
    value: float = 0.01
    capacity: float | None = None
    value_bits: int = 32

    def __post_init__(self) -> None:
        check = Check(self.name)
        check.number("value", self.value, 0, math.inf, "a magnitude of at least 0")
        if self.capacity is not None:
            check.share("capacity", self.capacity)
        check.one_of("value_bits", self.value_bits, VALUE_BITS)

    @property
    def traits(self) -> Traits:
        return Traits(
            combine=Combine.GATHER,
            memory="error_feedback",
            delta=0.0,
            sparse=True,
            propagates_nonfinite=True,  # it exceeds any magnitude
            fixed_size=False,
            homogeneous=False,
        )

    def encode(self, x: Tensor, rng: Random) -> Payload:
        return ragged([self._write(*chosen, x.shape[1]) for chosen in self._pick(x)])

    def encode_own(self, x: Tensor, rng: Random) -> tuple[Payload, Tensor]:
        picked = self._pick(x)
        own = [scatter(rounded(values, self.value_bits), where, x.shape[1]) for values, where in picked]
        return ragged([self._write(*chosen, x.shape[1]) for chosen in picked]), torch.cat(own)

    def encode_from(
        self, source: Window, feedback: Feedback | None, shards: int, shard: int, rng: Random, factor: float = 1.0
    ) -> Payload:
        if self.capacity is not None or not one_pass(source, feedback):
            return super().encode_from(source, feedback, shards, shard, rng, factor)
        chosen = above_from(source, feedback, shards, shard, self.value)
        for i, (values, where) in enumerate(chosen if feedback is not None else ()):
            assert feedback is not None
            row, number = divmod(i, shards)
            sent = rounded(values[0], self.value_bits)
            settle(feedback, row, number * shard, where[0], sent if factor == 1 else sent * factor)
        return ragged([self._write(*one, shard) for one in chosen])

    def decode_to(self, payload: Payload, target: Window, shard: int, rng: Random, factor: float = 1.0) -> Flag:
        if not one_pass(target):
            return super().decode_to(payload, target, shard, rng, factor)
        assert payload.lengths is not None
        held = [self._entries(payload.data[i : i + 1, :n], shard) for i, n in enumerate(payload.lengths.tolist())]
        put_to(held, shard, target, factor)
        return nonfinite_flag(torch.cat([values for values, _ in held]))

    def payload_bytes(self, numel: int) -> int:
        most = self._most(numel)
        indices = min(index_bytes(numel, most, "packed"), index_bytes(numel, most, "bitmap"))
        return 8 + 4 + most * self.value_bits // 8 + indices

    def _most(self, numel: int) -> int:
        return numel if self.capacity is None else kept(self.capacity, numel)

    def _pick(self, x: Tensor) -> list[tuple[Tensor, Tensor]]:
        """Values and ascending indices of what each row sends, both (1, k)."""
        where, counts = above(x, x.new_full((x.shape[0],), self.value))
        most, picked = self._most(x.shape[1]), []
        for i, count in enumerate(counts.tolist()):
            row = x[i : i + 1]
            chosen = where[i : i + 1, :count] if count <= most else top(row, most)
            picked.append((row.gather(1, chosen), chosen))
        return picked

    def _write(self, values: Tensor, where: Tensor, numel: int) -> Tensor:
        """One row's bytes."""
        if not values.numel():
            return values.new_empty((1, 0), dtype=torch.uint8)
        count = torch.tensor([[values.shape[1]]], dtype=torch.int32, device=values.device)
        return rows.join(count, write(values, where, numel, self.value_bits))

    def _entries(self, data: Tensor, numel: int) -> tuple[Tensor, Tensor]:
        """Values and indices that a row holds."""
        if not data.numel():
            return data.new_empty(0, dtype=torch.float32), data.new_empty(0, dtype=torch.int64)
        count, start = rows.take(data, 0, 1, torch.int32)
        values, where = read(data[:, start:], numel, int(count), self.value_bits)
        return values[0], where[0]

    def _add(self, data: Tensor, into: Tensor) -> None:
        values, where = self._entries(data, into.numel())
        into.index_add_(0, where, values)
