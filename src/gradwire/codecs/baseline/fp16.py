r"""FP16: cast to half precision.

.. math::  C(x) = \mathrm{round}_{16}(s\,x) / s

Round to nearest keeps the relative error of a normal number below 2⁻¹¹. Each worker divides by the number of workers
before the cast, so that the sum does not overflow if the mean fits. s = `scale` (a power of two keeps it exact) lifts
small gradients above 6e-8, where half precision ends. Values beyond 65504/s become infinite, and stay visible.
Payloads are all-reduced, in half precision. With `sum` = "float32" they are gathered, or scattered to the owners of
shards, added in float32 and rounded once more on the way back. Wire: 2 bytes an element.

Micikevicius et al., Mixed Precision Training, ICLR 2018, arXiv:1710.03740.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from gradwire.codecs.baseline._sums import off_wire, on_wire, summed_in
from gradwire.core.codec import Codec, Flag, Traits, register
from gradwire.core.exchange import Payload
from gradwire.core.random import Random
from gradwire.core.registry import Check
from gradwire.core.window import Feedback, Window
from gradwire.kernels.cast import from_half, half_from, half_to, to_half
from gradwire.kernels.workspace import room


@register
@dataclass(frozen=True)
class FP16(Codec):
    """Send every element in half precision: half the bytes. The baseline that any compression has to beat.

    Args:
        scale: factor before the cast, undone after it; from 2**-24 to 2**24. 1 fits most gradients. Use a larger power
            of two if gradients are below 6e-8, where half precision ends.
        sum: in what the workers' numbers are added: "float16", by an all-reduce, or "float32".

    Example:
        >>> gradwire.codec("fp16").payload_bytes(1000)
        2000
    """

    name: ClassVar[str] = "fp16"
    family: ClassVar[str] = "baseline"
    paper: ClassVar[str] = "Micikevicius et al., Mixed Precision Training, ICLR 2018, arXiv:1710.03740"
    plain_on_gpu: ClassVar[str] = ""
    variants: ClassVar[tuple[str, ...]] = ("fp16(scale=8.0)", "fp16(sum='float32')")
    scale: float = 1.0
    sum: str = "float16"

    def __post_init__(self) -> None:
        check = Check(self.name)
        check.number("scale", self.scale, 2.0**-24, 2.0**24, "a factor from 2**-24 to 2**24")
        check.one_of("sum", self.sum, ("float16", "float32"))

    @property
    def traits(self) -> Traits:
        return Traits(combine=summed_in(self.sum), elementwise=True, delta=0.0)

    def encode(self, x: Tensor, rng: Random) -> Payload:
        return Payload(on_wire(to_half(x if self.scale == 1 else x * self.scale), self.sum))

    def decode(self, payload: Payload, numel: int, rng: Random) -> Tensor:
        x = from_half(off_wire(payload.data, numel, torch.float16))
        return x if self.scale == 1 else x / self.scale

    def encode_part(
        self, source: Window, feedback: Feedback | None, share: float, rng: Random, factor: float = 1.0
    ) -> Payload:
        if feedback is not None or self.scale != 1 or not source.numel:
            return super().encode_part(source, feedback, share, rng, factor)
        half = room(rng.owner, "half", (source.rows, source.numel), torch.float16, source.buffer.device)
        half_from(source, share, half)
        return Payload(half)

    def decode_to(self, payload: Payload, target: Window, shard: int, rng: Random, factor: float = 1.0) -> Flag:
        plain = payload.data.dtype == torch.float16 and self.scale == 1 and factor == 1
        if not plain or payload.rows != 1 or not target.numel:
            return super().decode_to(payload, target, shard, rng, factor)
        return half_to(payload.data[:, : target.numel], target)

    def payload_bytes(self, numel: int) -> int:
        return 2 * numel
