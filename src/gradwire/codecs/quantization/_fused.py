"""Base of the codecs whose fast form is for a GPU only: elsewhere their simple form is made of fast kernels."""

from __future__ import annotations

from abc import abstractmethod

from gradwire.core.codec import Codec, Flag
from gradwire.core.exchange import Payload
from gradwire.core.random import Random, Stream
from gradwire.core.window import Feedback, Window
from gradwire.kernels.fused import Fused


class FusedCodec(Codec):
    """A codec that writes `fused`, and `noise` if it draws random numbers."""

    @property
    @abstractmethod
    def fused(self) -> Fused:
        """The launches that give what the simple form gives."""

    def noise(self, rng: Random) -> Stream | None:
        """Random numbers to round by."""
        return None

    def encode_from(
        self, source: Window, feedback: Feedback | None, shards: int, shard: int, rng: Random, factor: float = 1.0
    ) -> Payload:
        if not self.fused.reads(source, feedback):
            return super().encode_from(source, feedback, shards, shard, rng, factor)
        return Payload(self.fused.encode_from(source, feedback, shards, shard, self.noise(rng), factor))

    def decode_to(self, payload: Payload, target: Window, shard: int, rng: Random, factor: float = 1.0) -> Flag:
        if not self.fused.reads(target):
            return super().decode_to(payload, target, shard, rng, factor)
        return self.fused.decode_to(payload.data, shard, target, factor)

    def combine_to(self, payload: Payload, target: Window, rng: Random, factor: float = 1.0) -> Flag:
        if not self.fused.reads(target):
            return super().combine_to(payload, target, rng, factor)
        return self.fused.combine_to(payload.data, target, factor)

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
        if not self.fused.takes(payload.data, numel):
            return super().reduce_and_encode(payload, numel, rng, down, feedback, groups, factor)
        noise = self.noise(down)
        return Payload(self.fused.reduce_and_encode(payload.data, numel, feedback, noise, groups, factor))
