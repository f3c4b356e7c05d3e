r"""Momentum correction: momentum is accumulated before selection, as Deep Gradient Compression needs it.

.. math::  u \leftarrow m u + g, \qquad v \leftarrow v + u \qquad\text{(plain)}
.. math::  u \leftarrow m (u + g), \qquad v \leftarrow v + u + g \qquad\text{(Nesterov)}

`v` is encoded; where an element was sent, `v` keeps what the wire format dropped of it (nothing, for
float32 values) and, with `masking`, `u` is set to zero (factor masking). For sparse codecs only. The
optimizer's own momentum must be 0, or momentum is applied twice. A codec that sends everything gives
momentum SGD without masking, and plain SGD with it. Tensors that travel as they are get their momentum here too.

`clip` > 0 first scales the worker's gradient g of the unit down to a norm of at most clip/√workers, so that the sum of
as many independent gradients has a norm of about `clip` at most. The unit is a bucket in overlap mode, and all
compressed tensors of the model in after_backward mode. The norm is that of the gradient as it comes, loss scale
included.

Lin et al., Deep Gradient Compression, ICLR 2018, arXiv:1712.01887, section 3.
"""

from __future__ import annotations

import math
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
    """`momentum` is DGC's m; `clip` bounds the norm of the sum of the workers' gradients, 0 leaves it alone."""

    name: ClassVar[str] = "momentum_correction"
    momentum: float = 0.9
    nesterov: bool = False
    masking: bool = True
    clip: float = 0.0

    def __post_init__(self) -> None:
        check = Check(self.name)
        check.number("momentum", self.momentum, 0, 1, "a factor in [0, 1]")
        check.one_of("nesterov", self.nesterov, (True, False))
        check.one_of("masking", self.masking, (True, False))
        check.number("clip", self.clip, 0, math.inf, "a norm, or 0 for none")

    def fit(self, codec: Codec) -> Codec:
        if not codec.traits.sparse:
            raise Incompatible(
                f"{codec.name} cannot run under momentum_correction: factor masking needs a sparse codec, whose sent "
                "elements are known. Use memory='error_feedback' or 'none', or a codec such as topk."
            )
        return codec

    def compensate(self, x: Tensor, ctx: Context) -> Tensor:
        u, v = ctx.state.flat(MOMENTUM, ctx.layout), ctx.state.flat(ERROR, ctx.layout)
        if self.clip:
            norm = torch.linalg.vector_norm(x, dtype=torch.float64)  # squares of huge values would overflow
            x = x * (self.clip / math.sqrt(ctx.workers) / norm).clamp(max=1).to(x.dtype)
        u = self._accumulated(x, u, ctx)
        v = torch.zeros((), dtype=x.dtype, device=x.device) if v is None else v * ctx.rescale
        return v + u + x if self.nesterov else v + u

    def uncompressed(self, mean: Tensor, ctx: Context) -> Tensor:
        kept, gradient = ctx.state.flat(MOMENTUM, ctx.layout), mean.float()
        u = self._accumulated(gradient, kept, ctx)
        return u + gradient if self.nesterov else u

    def _accumulated(self, x: Tensor, kept: Tensor | None, ctx: Context) -> Tensor:
        """u with `x` in it, which is also kept."""
        u = torch.zeros((), dtype=x.dtype, device=x.device) if kept is None else kept * ctx.rescale
        u = self.momentum * (u + x) if self.nesterov else self.momentum * u + x
        ctx.state.put_flat(MOMENTUM, ctx.layout, u)
        return u

    def update(self, compensated: Tensor, own: Tensor, ctx: Context) -> None:
        if self.masking:
            u = ctx.state.written(MOMENTUM, ctx.layout)
            ctx.state.put_flat(MOMENTUM, ctx.layout, torch.where(own != 0, 0.0, u))
        ctx.state.put_flat(ERROR, ctx.layout, compensated - own)
