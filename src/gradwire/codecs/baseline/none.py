"""No compression: the gradient in its own dtype, summed by the backend. What plain DDP does, bit for bit.

Wire: the gradient itself (4 bytes an element in float32).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from gradwire.core.codec import Codec, Combine, Traits, register
from gradwire.core.exchange import Payload
from gradwire.core.random import Random


@register
@dataclass(frozen=True)
class NoCompression(Codec):
    """The baseline that changes nothing."""

    name: ClassVar[str] = "none"
    family: ClassVar[str] = "baseline"
    paper: ClassVar[str] = "Li et al., PyTorch Distributed, VLDB 2020, arXiv:2006.15704"

    @property
    def traits(self) -> Traits:
        return Traits(combine=Combine.SUM, lossless=True, elementwise=True, delta=1.0)

    def encode(self, x: Tensor, rng: Random) -> Payload:
        return Payload(x)

    def decode(self, payload: Payload, numel: int, rng: Random) -> Tensor:
        return payload.data

    def payload_bytes(self, numel: int) -> int:
        return 4 * numel
