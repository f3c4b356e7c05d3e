r"""Momentum correction: momentum is accumulated before selection, as Deep Gradient Compression needs it.

.. math::  u \leftarrow m u + g, \qquad v \leftarrow v + u \qquad\text{(plain)}
.. math::  u \leftarrow m (u + g), \qquad v \leftarrow v + u + g \qquad\text{(Nesterov)}

`v` is encoded; where an element was sent, `v` keeps what the wire format dropped of it (nothing, for
float32 values) and, with `masking`, `u` is set to zero (factor masking). For sparse codecs only. The
optimizer's own momentum must be 0, or momentum is applied twice. A codec that sends everything gives
momentum SGD without masking, and plain SGD with it.

Lin et al., Deep Gradient Compression, ICLR 2018, arXiv:1712.01887, section 3.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from gradwire.core.codec import Codec, Context
from gradwire.core.errors import Incompatible
from gradwire.core.registry import Check
from gradwire.memory.base import ERROR, Memory, memories

MOMENTUM = "momentum"


@memories.register
@dataclass(frozen=True)
class MomentumCorrection(Memory):
    """`momentum` is DGC's m."""

    name: ClassVar[str] = "momentum_correction"
    momentum: float = 0.9
    nesterov: bool = False
    masking: bool = True

    def __post_init__(self) -> None:
        check = Check(self.name)
        check.number("momentum", self.momentum, 0, 1, "a factor in [0, 1]")
        check.one_of("nesterov", self.nesterov, (True, False))
        check.one_of("masking", self.masking, (True, False))

    def fit(self, codec: Codec) -> Codec:
        if not codec.traits.sparse:
            raise Incompatible(
                f"{codec.name} cannot run under momentum_correction: factor masking needs a sparse codec, whose sent "
                "elements are known. Use memory='error_feedback' or 'none', or a codec such as topk."
            )
        return codec

    def compensate(self, x: Tensor, ctx: Context) -> Tensor:
        u, v = ctx.state.flat(MOMENTUM, ctx.layout), ctx.state.flat(ERROR, ctx.layout)
        zero = torch.zeros((), dtype=x.dtype, device=x.device)
        u = zero if u is None else u * ctx.rescale
        v = zero if v is None else v * ctx.rescale
        u = self.momentum * (u + x) if self.nesterov else self.momentum * u + x
        ctx.state.put_flat(MOMENTUM, ctx.layout, u)
        return v + u + x if self.nesterov else v + u

    def update(self, compensated: Tensor, own: Tensor, ctx: Context) -> None:
        if self.masking:
            u = ctx.state.written(MOMENTUM, ctx.layout)
            ctx.state.put_flat(MOMENTUM, ctx.layout, torch.where(own != 0, 0.0, u))
        ctx.state.put_flat(ERROR, ctx.layout, compensated - own)
