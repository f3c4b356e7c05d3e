r"""BF16: cast to bfloat16.

.. math::  C(x) = \mathrm{round}_{bf16}(x)

Range of float32, 8 significant bits: the relative error of a normal number stays below 2⁻⁸, and no gradient
overflows or vanishes. A ring all-reduce adds in bfloat16 and rounds again at each hop: with many workers that is the
larger error. With `sum` = "float32" payloads are not added on the wire: they are gathered, or scattered to the owners
of shards, added in float32 and rounded once more on the way back.
Wire: 2 bytes an element.

Kalamkar et al., A Study of BFLOAT16 for Deep Learning Training, 2019, arXiv:1905.12322.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from gradwire.codecs.baseline._sums import off_wire, on_wire, summed_in
from gradwire.core.codec import Codec, Traits, register
from gradwire.core.exchange import Payload
from gradwire.core.random import Random
from gradwire.core.registry import Check


@register
@dataclass(frozen=True)
class BF16(Codec):
    """Send every element as bfloat16: half the bytes, about three decimal digits.

    Args:
        sum: in what the workers' numbers are added: "bfloat16", by an all-reduce, or "float32".

    Example:
        >>> gradwire.codec("bf16").payload_bytes(1000)
        2000
        >>> many = {"w": [torch.full((8, 8), 1.0)] + [torch.full((8, 8), 2.0**-8)] * 64}
        >>> for spec in ("bf16", "bf16(sum='float32')"):
        ...     print(round(65 * gradwire.VirtualCluster(65, spec, tensors="all").reduce(many)["w"][0, 0].item(), 2))
        1.02
        1.25
    """

    name: ClassVar[str] = "bf16"
    family: ClassVar[str] = "baseline"
    paper: ClassVar[str] = "Kalamkar et al., A Study of BFLOAT16, 2019, arXiv:1905.12322"
    plain_on_gpu: ClassVar[str] = "its casts have no kernel yet, and take longer than those of fp16, which have"
    variants: ClassVar[tuple[str, ...]] = ("bf16(sum='float32')",)
    sum: str = "bfloat16"

    def __post_init__(self) -> None:
        Check(self.name).one_of("sum", self.sum, ("bfloat16", "float32"))

    @property
    def traits(self) -> Traits:
        return Traits(combine=summed_in(self.sum), elementwise=True, delta=0.0)

    def encode(self, x: Tensor, rng: Random) -> Payload:
        return Payload(on_wire(x.to(torch.bfloat16), self.sum))

    def decode(self, payload: Payload, numel: int, rng: Random) -> Tensor:
        return off_wire(payload.data, numel, torch.bfloat16).float()

    def payload_bytes(self, numel: int) -> int:
        return 2 * numel
