"""Base of the codecs that send a bit for each element. Bit 0 and bit 1 decode to two values of the element's block."""

from __future__ import annotations

import math
from abc import abstractmethod
from typing import ClassVar

import torch
from torch import Tensor

from gradwire.core.codec import Codec, Flag, nonfinite_flag
from gradwire.core.exchange import Payload
from gradwire.core.random import Random
from gradwire.core.window import Feedback, Window
from gradwire.kernels import rows, signs
from gradwire.kernels.bitpack import packed_bytes
from gradwire.kernels.window import one_pass


class SignCodec(Codec):
    """Decodes bits. A codec writes `read`, and `span` if a block is shorter than the row."""

    family: ClassVar[str] = "quantization"

    @abstractmethod
    def read(self, payload: Payload, numel: int) -> tuple[Tensor, Tensor, Tensor]:
        """Packed bits, and what bit 0 and bit 1 stand for in each block, both (rows, blocks)."""

    def span(self, numel: int) -> int:
        """Elements of a block in a row of `numel` elements."""
        return numel

    def decode(self, payload: Payload, numel: int, rng: Random) -> Tensor:
        return signs.decode(*self.read(payload, numel), self.span(numel), numel)

    def decode_to(self, payload: Payload, target: Window, shard: int, rng: Random, factor: float = 1.0) -> Flag:
        if not signs.in_one_pass(target):
            return super().decode_to(payload, target, shard, rng, factor)
        bits, low, high = self.read(payload, shard)
        signs.decode_to(bits, low, high, self.span(shard), shard, target, factor)
        return nonfinite_flag(torch.cat((low, high)))


class BlockSigns(SignCodec):
    """A mean of such rows, with blocks of `block` elements."""

    block: int

    @property
    def alignment(self) -> int:
        return math.lcm(self.block, 8)

    def span(self, numel: int) -> int:
        return self.block

    def combine(self, payload: Payload, numel: int, rng: Random, groups: int = 1) -> Tensor:
        total = signs.decode_sum(*self.read(payload, numel), self.block, numel, groups)
        return rows.divide_(total, payload.rows // groups)

    def combine_to(self, payload: Payload, target: Window, rng: Random, factor: float = 1.0) -> Flag:
        if not one_pass(target):
            return super().combine_to(payload, target, rng, factor)
        bits, low, high = self.read(payload, target.numel)
        signs.combine_to(bits, low, high, self.block, target, factor)
        return nonfinite_flag(torch.cat((low, high)))


class MeanSigns(BlockSigns):
    """Bits are worth plus and minus the mean magnitude of their block."""

    def encode(self, x: Tensor, rng: Random) -> Payload:
        scales, bits, _ = signs.encode_scaled(x, self.block)
        return Payload(rows.join(scales, bits))

    def read(self, payload: Payload, numel: int) -> tuple[Tensor, Tensor, Tensor]:
        scales, bits = signs.split(payload.data, self.block, numel)
        return bits, -scales, scales

    def payload_bytes(self, numel: int) -> int:
        return packed_bytes(numel, 1) + 4 * -(-numel // self.block)

    def encode_from(
        self, source: Window, feedback: Feedback | None, shards: int, shard: int, rng: Random, factor: float = 1.0
    ) -> Payload:
        if not signs.in_one_pass(source, feedback, self.block):
            return super().encode_from(source, feedback, shards, shard, rng, factor)
        return Payload(signs.encode_scaled_from(source, feedback, shards, shard, self.block, factor, rng.owner))

    def decode_to(self, payload: Payload, target: Window, shard: int, rng: Random, factor: float = 1.0) -> Flag:
        if not signs.in_one_pass(target, block=self.block):
            return super().decode_to(payload, target, shard, rng, factor)
        return signs.decode_scaled_to(payload.data, self.block, shard, target, factor)

    def combine_to(self, payload: Payload, target: Window, rng: Random, factor: float = 1.0) -> Flag:
        if not signs.in_one_pass(target, block=self.block):
            return super().combine_to(payload, target, rng, factor)
        return signs.combine_scaled_to(payload.data, self.block, target, factor)

    def reduce_and_encode(
        self,
        payload: Payload,
        numel: int,
        rng: Random,
        down: Random,
        feedback: Feedback | None,
        groups: int,
        factor: float = 1.0,
    ) -> Payload:
        if factor != 1:
            return super().reduce_and_encode(payload, numel, rng, down, feedback, groups, factor)
        return Payload(signs.reduce_and_encode(payload.data, self.block, numel, feedback, groups, down.owner))
