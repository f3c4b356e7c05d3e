"""The payload that sparse codecs share: k values of a row, and where they stand.

Wire: k values of `value_bits` bits (float32 or float16), in ascending order of their indices, then the k indices in the
coding `coding`, see `gradwire.kernels.indices`. The size follows from the number of elements and k alone.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch
from torch import Tensor

from gradwire.core.window import Feedback
from gradwire.kernels import indices as index_sets
from gradwire.kernels import rows, select, signs
from gradwire.kernels.backend import fused
from gradwire.kernels.cast import from_half, to_half


def kept(ratio: float, numel: int) -> int:
    """k: the share `ratio` of `numel` elements, rounded up, and at least one of them."""
    return min(numel, max(1, math.ceil(ratio * numel)))


def support_bytes(numel: int, k: int, value_bits: int = 32, coding: str = "best") -> int:
    """Bytes of a row."""
    return k * value_bits // 8 + index_sets.index_bytes(numel, k, coding)


def write(
    values: Tensor, indices: Tensor, numel: int, value_bits: int = 32, coding: str = "best", steady: bool = True
) -> Tensor:
    """(rows, k) float32 values at (rows, k) int64 indices, distinct and ascending -> (rows, bytes) uint8.

    `steady`: k is the same in each step.
    """
    if steady and _fused(values, numel, indices.shape[1]):
        return index_sets.write(values, indices, numel, coding, value_bits)
    sent = values if value_bits == 32 else to_half(values)
    return rows.join(sent, index_sets.encode(indices, numel, coding, steady))


def read(
    data: Tensor, numel: int, k: int, value_bits: int = 32, coding: str = "best", steady: bool = True
) -> tuple[Tensor, Tensor]:
    """The inverse: (rows, k) float32 values and (rows, k) int64 indices."""
    if steady and _fused(data, numel, k):
        return index_sets.read(data, numel, k, coding, value_bits)
    sent, start = rows.take(data, 0, k, torch.float32 if value_bits == 32 else torch.float16)
    stop = start + index_sets.index_bytes(numel, k, coding)
    where = index_sets.decode(data[:, start:stop], numel, k, coding, steady)
    return sent if value_bits == 32 else from_half(sent), where


def _fused(data: Tensor, numel: int, k: int) -> bool:
    """Whether there is a launch for values and indices together."""
    return fused(data.device) and index_sets.together(numel, k)


def rounded(values: Tensor, value_bits: int = 32) -> Tensor:
    """What `read` will give for these values."""
    return values if value_bits == 32 else from_half(to_half(values))


def write_signs(values: Tensor, indices: Tensor, numel: int) -> Tensor:
    """The signs of values instead of the values: (rows, bytes) uint8, indices first."""
    return rows.join(index_sets.encode(indices, numel, steady=False), signs.encode(values))


def read_signs(data: Tensor, numel: int, k: int, worth: Tensor) -> tuple[Tensor, Tensor]:
    """The inverse: ±`worth`, which is (rows, 1), and the indices, both (rows, k)."""
    stop = index_sets.index_bytes(numel, k)
    where = index_sets.decode(data[:, :stop], numel, k, steady=False)
    return signs.decode(data[:, stop:], -worth, worth, max(k, 1), k), where


def settle(
    feedback: Feedback | None,
    chosen: Iterable[tuple[Tensor, Tensor]],
    shards: int,
    shard: int,
    value_bits: int = 32,
    factor: float = 1.0,
) -> None:
    """Take what is sent, flat values at flat indices for each row, off the new error. `shards` rows are a worker's."""
    for i, (values, where) in enumerate(chosen if feedback is not None else ()):
        assert feedback is not None
        row, number = divmod(i, shards)
        sent = rounded(values, value_bits)
        select.settle(feedback, row, number * shard, where, sent if factor == 1 else sent * factor)
