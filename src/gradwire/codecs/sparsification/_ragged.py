"""Rows of different lengths: base of the codecs that send as many elements as the data asks for."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from gradwire.codecs.sparsification._sparse_payload import read, write
from gradwire.core.codec import Codec, Flag, nonfinite_flag
from gradwire.core.exchange import Payload
from gradwire.core.random import Random
from gradwire.core.window import Window
from gradwire.kernels import rows
from gradwire.kernels.scatter import put_to
from gradwire.kernels.select import above, top
from gradwire.kernels.window import one_pass


def ragged(parts: Sequence[Tensor]) -> Payload:
    """Rows of different lengths: each a (1, bytes) uint8, or without bytes."""
    width = max(p.shape[1] for p in parts)
    data = torch.cat([F.pad(p, (0, width - p.shape[1])) for p in parts])
    return Payload(data, torch.tensor([p.shape[1] for p in parts]))


def rows_above(x: Tensor, value: float, most: int | None = None) -> list[tuple[Tensor, Tensor]]:
    """Elements of each row whose magnitude exceeds `value`, at most the `most` largest: values and ascending indices.

    Both are (1, k). NaN exceeds any magnitude.
    """
    where, counts = above(x, x.new_full((x.shape[0],), value))
    picked = []
    for i, count in enumerate(counts.tolist()):
        row = x[i : i + 1]
        chosen = where[i : i + 1, :count] if most is None or count <= most else top(row, most)
        picked.append((row.gather(1, chosen), chosen))
    return picked


def no_bytes(x: Tensor) -> Tensor:
    """The row that stands for zeros."""
    return x.new_empty((1, 0), dtype=torch.uint8)


def all_nan(data: Tensor, numel: int) -> tuple[Tensor, Tensor]:
    """The entries of a row that is not finite."""
    return torch.full((numel,), math.nan, device=data.device), torch.arange(numel, device=data.device)


def write_counted(values: Tensor, where: Tensor, numel: int, value_bits: int) -> Tensor:
    """A row of its count k in 4 bytes, k values and k indices, given as (1, k); no bytes where k = 0."""
    if not values.numel():
        return no_bytes(values)
    count = torch.tensor([[values.shape[1]]], dtype=torch.int32, device=values.device)
    return rows.join(count, write(values, where, numel, value_bits))


def read_counted(data: Tensor, numel: int, value_bits: int) -> tuple[Tensor, Tensor]:
    """The inverse, for a row with bytes: values and indices, flat."""
    count, start = rows.take(data, 0, 1, torch.int32)
    values, where = read(data[:, start:], numel, int(count), value_bits)
    return values[0], where[0]


class RowByRow(Codec):
    """A codec whose rows differ in size: it writes `entries`. A row without bytes stands for zeros."""

    @abstractmethod
    def entries(self, data: Tensor, numel: int) -> tuple[Tensor, Tensor]:
        """Values and ascending indices, both flat, that one row holds: (1, bytes) uint8 with at least one byte."""

    def decode(self, payload: Payload, numel: int, rng: Random) -> Tensor:
        out = torch.zeros((payload.rows, numel), device=payload.data.device)
        for row, (values, where) in zip(out, self._held(payload, numel), strict=True):
            row.index_add_(0, where, values)
        return out

    def combine(self, payload: Payload, numel: int, rng: Random, groups: int = 1) -> Tensor:
        total, size = torch.zeros((groups, numel), device=payload.data.device), payload.rows // groups
        for i, (values, where) in enumerate(self._held(payload, numel)):  # worker by worker: the order of sums is fixed
            total[i // size].index_add_(0, where, values)
        return total.div_(size)

    def decode_to(self, payload: Payload, target: Window, shard: int, rng: Random, factor: float = 1.0) -> Flag:
        if not one_pass(target):
            return super().decode_to(payload, target, shard, rng, factor)
        held = self._held(payload, shard)
        put_to(held, shard, target, factor)
        return nonfinite_flag(torch.cat([values for values, _ in held]))

    def _held(self, payload: Payload, numel: int) -> list[tuple[Tensor, Tensor]]:
        """The entries of each row."""
        assert payload.lengths is not None
        data = payload.data
        empty = torch.empty(0, device=data.device), torch.empty(0, dtype=torch.int64, device=data.device)
        lengths = payload.lengths.tolist()
        return [self.entries(data[i : i + 1, :n], numel) if n else empty for i, n in enumerate(lengths)]
