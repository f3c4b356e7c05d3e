"""Rows of as many values each, and where they stand: base of the codecs that keep the share `ratio` of the elements."""

from __future__ import annotations

from abc import abstractmethod
from typing import ClassVar

from torch import Tensor

from gradwire.codecs.sparsification._sparse_payload import kept, read, rounded, support_bytes, write
from gradwire.core.codec import Codec, Flag
from gradwire.core.exchange import Payload
from gradwire.core.random import Random
from gradwire.core.window import Feedback, Window
from gradwire.kernels import rows
from gradwire.kernels.scatter import mean, mean_to, put_rows_to, scatter, scatter_sum
from gradwire.kernels.select import send_from, top
from gradwire.kernels.window import one_pass


class EntriesCodec(Codec):
    """Decodes values at indices. A codec writes `entries`."""

    @abstractmethod
    def entries(self, payload: Payload, numel: int, rng: Random) -> tuple[Tensor, Tensor]:
        """Values and their indices, distinct in each row: both (rows, k)."""

    def reach(self, numel: int) -> int:
        """Indices are below this; what stands from `numel` on is dropped."""
        return numel

    def decode(self, payload: Payload, numel: int, rng: Random) -> Tensor:
        values, where = self.entries(payload, numel, rng)
        return scatter(values, where, self.reach(numel))[:, :numel].contiguous()

    def combine(self, payload: Payload, numel: int, rng: Random, groups: int = 1) -> Tensor:
        values, where = self.entries(payload, numel, rng)
        return rows.divide_(scatter_sum(values, where, self.reach(numel), groups)[:, :numel], payload.rows // groups)


class Selection(EntriesCodec):
    """Sends k elements as they are. A codec has these three fields, and may write `count` and `pick`."""

    family: ClassVar[str] = "sparsification"
    ratio: float
    value_bits: int
    index: str

    @property
    def selects_exactly(self) -> bool:
        """Whether the largest elements are sent, and no others."""
        return True

    def count(self, numel: int, rng: Random) -> int:
        """k, the elements to keep in this step."""
        return kept(self.ratio, numel)

    def pick(self, x: Tensor, rng: Random) -> tuple[Tensor, Tensor]:
        """Values and ascending indices of the elements to send: both (rows, k). NaN counts as largest."""
        where = top(x, self.count(x.shape[1], rng))
        return x.gather(1, where), where

    def encode(self, x: Tensor, rng: Random) -> Payload:
        return self._written_row(*self.pick(x, rng), x.shape[1])

    def encode_own(self, x: Tensor, rng: Random) -> tuple[Payload, Tensor]:
        values, where = self.pick(x, rng)
        own = scatter(rounded(values, self.value_bits), where, x.shape[1])
        return self._written_row(values, where, x.shape[1]), own

    def entries(self, payload: Payload, numel: int, rng: Random) -> tuple[Tensor, Tensor]:
        return read(payload.data, numel, self.count(numel, rng), self.value_bits, self.index)

    def combine(self, payload: Payload, numel: int, rng: Random, groups: int = 1) -> Tensor:
        return mean(*self.entries(payload, numel, rng), numel, groups)

    def payload_bytes(self, numel: int) -> int:
        return support_bytes(numel, kept(self.ratio, numel), self.value_bits, self.index)

    def encode_from(
        self, source: Window, feedback: Feedback | None, shards: int, shard: int, rng: Random, factor: float = 1.0
    ) -> Payload:
        if not self.selects_exactly or not one_pass(source, feedback, on_gpu=lambda: True):
            return super().encode_from(source, feedback, shards, shard, rng, factor)
        k = self.count(shard, rng)
        values, where = send_from(source, feedback, shards, shard, k, self.value_bits, factor)
        return self._written_row(values, where, shard)

    def decode_to(self, payload: Payload, target: Window, shard: int, rng: Random, factor: float = 1.0) -> Flag:
        if not one_pass(target, on_gpu=lambda: True):
            return super().decode_to(payload, target, shard, rng, factor)
        values, where = self.entries(payload, shard, rng)
        return put_rows_to(values, where, shard, target, factor)

    def combine_to(self, payload: Payload, target: Window, rng: Random, factor: float = 1.0) -> Flag:
        if not one_pass(target, on_gpu=lambda: True):
            return super().combine_to(payload, target, rng, factor)
        values, where = self.entries(payload, target.numel, rng)
        return mean_to(values, where, target, factor)

    def _written_row(self, values: Tensor, where: Tensor, numel: int) -> Payload:
        return Payload(write(values, where, numel, self.value_bits, self.index))
