"""Rows of different lengths: base of the codecs that send as many elements as the data asks for."""

from __future__ import annotations

import math
from abc import abstractmethod
from bisect import bisect_left
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
from gradwire.kernels.counted import row_bytes
from gradwire.kernels.scatter import mean_to, put_rows_to, put_to
from gradwire.kernels.select import above, top
from gradwire.kernels.window import one_launch, one_pass


def ragged(parts: Sequence[Tensor]) -> Payload:
    """Rows of different lengths: each a (1, bytes) uint8, or without bytes."""
    width = max(p.shape[1] for p in parts)
    data = parts[0] if len(parts) == 1 else torch.cat([F.pad(p, (0, width - p.shape[1])) for p in parts])
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
    count = torch.full((1, 1), values.shape[1], dtype=torch.int32, device=values.device)
    return rows.join(count, write(values, where, numel, value_bits, steady=False))


def read_counted(data: Tensor, numel: int, value_bits: int) -> tuple[Tensor, Tensor]:
    """The inverse, for a row with bytes: values and indices, flat."""
    count = _counted(data.shape[1], numel, value_bits)
    if count is None:
        count = int(rows.take(data, 0, 1, torch.int32)[0])
    values, where = read(data[:, 4:], numel, count, value_bits, steady=False)
    return values[0], where[0]


def _counted(length: int, numel: int, value_bits: int) -> int | None:
    """k of a row of `length` bytes: the size says it, so that the host need not wait for the row; None: it does not."""
    count = bisect_left(range(numel), length, key=lambda k: row_bytes(numel, k, value_bits))
    return count if row_bytes(numel, count, value_bits) == length else None


class RowByRow(Codec):
    """A codec whose rows differ in size: it writes `entries`. A row without bytes stands for zeros."""

    @abstractmethod
    def entries(self, data: Tensor, numel: int) -> tuple[Tensor, Tensor]:
        """Values and ascending indices, both flat, that one row holds: (1, bytes) uint8 with at least one byte."""

    def level(self, payload: Payload, numel: int) -> tuple[Tensor, Tensor]:
        """The entries of all rows, (rows, most): places `numel`, behind the end, fill up, and are nobody's."""
        held = self._held(payload, numel)
        most = max(1, *(values.numel() for values, _ in held))
        values = torch.stack([F.pad(one, (0, most - one.numel())) for one, _ in held])
        return values, torch.stack([F.pad(one, (0, most - one.numel()), value=numel) for _, one in held])

    def decode(self, payload: Payload, numel: int, rng: Random) -> Tensor:
        out = torch.zeros((payload.rows, numel), device=payload.data.device)
        for row, (values, where) in zip(out, self._held(payload, numel), strict=True):
            row.index_add_(0, where, values)
        return out

    def combine(self, payload: Payload, numel: int, rng: Random, groups: int = 1) -> Tensor:
        total, size = torch.zeros((groups, numel), device=payload.data.device), payload.rows // groups
        if one_launch(Window.whole(total)):
            mean_to(*self.level(payload, numel), Window.whole(total), 1.0)
            return total
        for i, (values, where) in enumerate(self._held(payload, numel)):  # worker by worker: the order of sums is fixed
            total[i // size].index_add_(0, where, values)
        return rows.divide_(total, size)

    def decode_to(self, payload: Payload, target: Window, shard: int, rng: Random, factor: float = 1.0) -> Flag:
        if not one_pass(target, on_gpu=lambda: True):
            return super().decode_to(payload, target, shard, rng, factor)
        if one_launch(target):
            return put_rows_to(*self.level(payload, shard), shard, target, factor)
        held = self._held(payload, shard)
        put_to(held, shard, target, factor)
        return nonfinite_flag(torch.cat([values for values, _ in held]))

    def combine_to(self, payload: Payload, target: Window, rng: Random, factor: float = 1.0) -> Flag:
        if not one_launch(target):
            return super().combine_to(payload, target, rng, factor)
        return mean_to(*self.level(payload, target.numel), target, factor)

    def _held(self, payload: Payload, numel: int) -> list[tuple[Tensor, Tensor]]:
        """The entries of each row."""
        assert payload.lengths is not None
        data = payload.data
        empty = torch.empty(0, device=data.device), torch.empty(0, dtype=torch.int64, device=data.device)
        lengths = payload.lengths.tolist()
        return [self.entries(data[i : i + 1, :n], numel) if n else empty for i, n in enumerate(lengths)]
