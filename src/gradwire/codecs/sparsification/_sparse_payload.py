"""The payload that sparse codecs share: k values of a row, and where they stand.

Wire: k values of `value_bits` bits (float32 or float16), in ascending order of their indices, then the k indices in the
coding `coding`, see `gradwire.kernels.indices`. The size follows from the number of elements and k alone.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from gradwire.core.codec import Codec
from gradwire.core.exchange import Payload
from gradwire.core.random import Random, Stream
from gradwire.kernels import indices as index_sets
from gradwire.kernels import rows
from gradwire.kernels.cast import from_half, to_half
from gradwire.kernels.random import words

VALUE_BITS = (32, 16)
CODINGS = ("best", *index_sets.CODINGS)


def kept(ratio: float, numel: int) -> int:
    """k: the share `ratio` of `numel` elements, rounded up, and at least one of them."""
    return min(numel, max(1, math.ceil(ratio * numel)))


def support_bytes(numel: int, k: int, value_bits: int = 32, coding: str = "best") -> int:
    """Bytes of a row."""
    return k * value_bits // 8 + index_sets.index_bytes(numel, k, coding)


def write(values: Tensor, indices: Tensor, numel: int, value_bits: int = 32, coding: str = "best") -> Tensor:
    """(rows, k) float32 values at (rows, k) int64 indices, distinct and ascending -> (rows, bytes) uint8."""
    sent = values if value_bits == 32 else to_half(values)
    return rows.join(sent, index_sets.encode(indices, numel, coding))


def read(data: Tensor, numel: int, k: int, value_bits: int = 32, coding: str = "best") -> tuple[Tensor, Tensor]:
    """The inverse: (rows, k) float32 values and (rows, k) int64 indices."""
    sent, start = rows.take(data, 0, k, torch.float32 if value_bits == 32 else torch.float16)
    stop = start + index_sets.index_bytes(numel, k, coding)
    where = index_sets.decode(data[:, start:stop], numel, k, coding)
    return sent if value_bits == 32 else from_half(sent), where


def rounded(values: Tensor, value_bits: int = 32) -> Tensor:
    """What `read` will give for these values."""
    return values if value_bits == 32 else from_half(to_half(values))


def ragged(parts: Sequence[Tensor]) -> Payload:
    """Rows of different lengths: each a (1, bytes) uint8, or without bytes."""
    width = max(p.shape[1] for p in parts)
    data = torch.cat([F.pad(p, (0, width - p.shape[1])) for p in parts])
    return Payload(data, torch.tensor([p.shape[1] for p in parts]))


def any_index(draw: Stream, numel: int, device: torch.device) -> Tensor:
    """One index below `numel`, all equally likely to a part in 2⁶³/numel."""
    draws = words(draw, (2,), device)
    return ((draws[0] << 31) | (draws[1] >> 1)) % numel


class RowByRow(Codec):
    """A codec whose rows differ in size: it writes `_add`, and a row without bytes stands for zeros."""

    def decode(self, payload: Payload, numel: int, rng: Random) -> Tensor:
        out = torch.zeros((payload.rows, numel), device=payload.data.device)
        for i in range(payload.rows):
            self._add_row(payload, i, out[i])
        return out

    def combine(self, payload: Payload, numel: int, rng: Random, groups: int = 1) -> Tensor:
        total, size = torch.zeros((groups, numel), device=payload.data.device), payload.rows // groups
        for i in range(payload.rows):  # worker by worker: the order of sums is fixed
            self._add_row(payload, i, total[i // size])
        return total.div_(size)

    def _add_row(self, payload: Payload, i: int, into: Tensor) -> None:
        assert payload.lengths is not None
        length = int(payload.lengths[i])
        if length:
            self._add(payload.data[i : i + 1, :length], into)

    @abstractmethod
    def _add(self, data: Tensor, into: Tensor) -> None:
        """Add what one row, (1, bytes) uint8, holds to the flat tensor `into`."""
