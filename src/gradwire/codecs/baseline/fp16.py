r"""FP16: cast to half precision. The baseline that any compression has to beat.

.. math::  C(x) = \mathrm{round}_{16}(s\,x) / s

Round to nearest keeps the relative error of a normal number below 2⁻¹¹. The mean is taken before the cast, so a mean
that is representable does not overflow on the way. `scale` s (a power of two keeps it exact) lifts small gradients
above 6e-8, where half precision ends; values beyond 65504/s become infinite, and stay visible.
Sums of casts are casts of sums up to rounding: payloads may be all-reduced. Under scatter-reduce-gather they are
summed in float32. Wire: 2 bytes an element.

Micikevicius et al., Mixed Precision Training, ICLR 2018, arXiv:1710.03740.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from gradwire.core.codec import Codec, Combine, Flag, Traits, register
from gradwire.core.exchange import Payload
from gradwire.core.random import Random
from gradwire.core.registry import Check
from gradwire.core.window import Feedback, Window
from gradwire.kernels.cast import cast_back, cast_half, from_half, to_half
from gradwire.kernels.finite import nonfinite_flag
from gradwire.kernels.workspace import room

CHUNK = 1 << 16  # elements


@register
@dataclass(frozen=True)
class FP16(Codec):
    """Half precision on the wire."""

    name: ClassVar[str] = "fp16"
    family: ClassVar[str] = "baseline"
    paper: ClassVar[str] = "Micikevicius et al., Mixed Precision Training, ICLR 2018, arXiv:1710.03740"
    variants: ClassVar[tuple[str, ...]] = ("fp16(scale=8.0)",)
    scale: float = 1.0

    def __post_init__(self) -> None:
        Check(self.name).number("scale", self.scale, 2.0**-24, 2.0**24, "a factor from 2**-24 to 2**24")

    @property
    def traits(self) -> Traits:
        return Traits(combine=Combine.SUM, elementwise=True, delta=0.0)

    def encode(self, x: Tensor, rng: Random) -> Payload:
        return Payload(to_half(x if self.scale == 1 else x * self.scale))

    def decode(self, payload: Payload, numel: int, rng: Random) -> Tensor:
        x = from_half(payload.data)
        return x if self.scale == 1 else x / self.scale

    def encode_part(
        self, source: Window, feedback: Feedback | None, share: float, rng: Random, factor: float = 1.0
    ) -> Payload:
        if feedback is not None or self.scale != 1 or len(source.spans) != 1 or source.buffer.device.type != "cpu":
            return super().encode_part(source, feedback, share, rng, factor)
        x = source.parts[0]
        half = room(rng.owner, "half", x.shape, torch.float16)
        piece = room(rng.owner, "piece", (CHUNK,), torch.float32)
        for row, out in zip(x, half, strict=True):
            for start in range(0, x.shape[1], CHUNK):  # the product stays in the cache
                part = row[start : start + CHUNK]
                cast_half(torch.mul(part, share, out=piece[: part.numel()]), out[start : start + CHUNK])
        return Payload(half)

    def decode_to(self, payload: Payload, target: Window, shard: int, rng: Random, factor: float = 1.0) -> Flag:
        if self.scale != 1 or factor != 1 or len(target.spans) != 1 or payload.rows != 1:
            return super().decode_to(payload, target, shard, rng, factor)
        out = target.parts[0]
        cast_back(payload.data[:, : target.numel], out)
        return nonfinite_flag(out)

    def payload_bytes(self, numel: int) -> int:
        return 2 * numel
