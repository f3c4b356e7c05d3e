r"""BF16: cast to bfloat16.

.. math::  C(x) = \mathrm{round}_{bf16}(x)

Range of float32, 8 significant bits: the relative error of a normal number stays below 2⁻⁸, and no gradient
overflows or vanishes. A ring all-reduce rounds again at each hop; under scatter-reduce-gather the sum is taken in
float32.
Wire: 2 bytes an element.

Kalamkar et al., A Study of BFLOAT16 for Deep Learning Training, 2019, arXiv:1905.12322.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from gradwire.core.codec import Codec, Combine, Traits, register
from gradwire.core.exchange import Payload
from gradwire.core.random import Random


@register
@dataclass(frozen=True)
class BF16(Codec):
    """Send every element as bfloat16: half the bytes, about three decimal digits.

    Example:
        >>> gradwire.codec("bf16").payload_bytes(1000)
        2000
    """

    name: ClassVar[str] = "bf16"
    family: ClassVar[str] = "baseline"
    paper: ClassVar[str] = "Kalamkar et al., A Study of BFLOAT16, 2019, arXiv:1905.12322"
    plain_on_gpu: ClassVar[str] = "two casts, which torch does as well"

    @property
    def traits(self) -> Traits:
        return Traits(combine=Combine.SUM, elementwise=True, delta=0.0)

    def encode(self, x: Tensor, rng: Random) -> Payload:
        return Payload(x.to(torch.bfloat16))

    def decode(self, payload: Payload, numel: int, rng: Random) -> Tensor:
        return payload.data.float()

    def payload_bytes(self, numel: int) -> int:
        return 2 * numel
