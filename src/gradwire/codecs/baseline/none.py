"""No compression: the gradient in its own dtype, summed by the backend, as plain DDP does it.

Wire: the gradient itself (4 bytes an element in float32).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from gradwire.core.codec import Codec, Combine, Flag, Traits, nonfinite_flag, register
from gradwire.core.exchange import Payload
from gradwire.core.random import Random
from gradwire.core.window import Feedback, Window


@register
@dataclass(frozen=True)
class NoCompression(Codec):
    """Send the gradient as it is. The result is that of plain DDP, bit for bit.

    Example:
        >>> gradwire.codec("none").payload_bytes(1000)
        4000
    """

    name: ClassVar[str] = "none"
    family: ClassVar[str] = "baseline"
    paper: ClassVar[str] = "Li et al., PyTorch Distributed, VLDB 2020, arXiv:2006.15704"
    plain_on_gpu: ClassVar[str] = "there is nothing to compute"

    @property
    def traits(self) -> Traits:
        return Traits(combine=Combine.SUM, lossless=True, elementwise=True, delta=1.0)

    def encode(self, x: Tensor, rng: Random) -> Payload:
        return Payload(x)

    def decode(self, payload: Payload, numel: int, rng: Random) -> Tensor:
        return payload.data

    def encode_part(
        self, source: Window, feedback: Feedback | None, share: float, rng: Random, factor: float = 1.0
    ) -> Payload:
        """In the gradient's own dtype, and in place where that may be overwritten. Nothing is lost, nothing is kept."""
        if feedback is not None:
            return super().encode_part(source, feedback, share, rng, factor)
        x = source.read(source.buffer.dtype)
        return Payload(x.mul_(share) if source.scratch and len(source.spans) == 1 else x * share)

    def decode_to(self, payload: Payload, target: Window, shard: int, rng: Random, factor: float = 1.0) -> Flag:
        if payload.rows != 1 or factor != 1:
            return super().decode_to(payload, target, shard, rng, factor)
        target.write_(payload.data)
        return nonfinite_flag(payload.data) if target.checked else payload.data.new_zeros(())  # a read of it all

    def payload_bytes(self, numel: int) -> int:
        return 4 * numel
