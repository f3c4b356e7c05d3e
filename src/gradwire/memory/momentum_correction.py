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
from gradwire.core.window import Feedback, Window
from gradwire.kernels import momentum
from gradwire.memory.base import ERROR, Memory, memories

MOMENTUM = "momentum"


@memories.register
@dataclass(frozen=True)
class MomentumCorrection(Memory):
    """`momentum` is DGC's m; `clip` bounds the norm of the sum of the workers' gradients, 0 leaves it alone."""

    name: ClassVar[str] = "momentum_correction"
    repayable: ClassVar[bool] = False  # momentum is no debt
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

    def prepare(self, source: Window, ctx: Context) -> tuple[Window, Feedback | None]:
        device = source.buffer.device
        if self.clip:
            x = source.read()
            norm = torch.linalg.vector_norm(x, dim=1, keepdim=True, dtype=torch.float64)  # squares may overflow
            source = Window.whole(x * (self.clip / math.sqrt(ctx.workers) / norm).clamp(max=1).to(x.dtype))
        slots = ctx.state.slot(MOMENTUM, ctx.layout), ctx.state.slot(ERROR, ctx.layout)
        u, v = (ctx.state.write(slot, slot.spare(device)) for slot in slots)
        old = slots[0].current, slots[1].current
        momentum.accumulate(source, old, (u, v), ctx.rescale, self.momentum, self.nesterov)
        return Window.whole(v, scratch=True), Feedback(v, momentum=u if self.masking else None)

    def uncompressed(self, mean: Tensor, ctx: Context) -> Tensor:
        """These tensors keep no error: u, and with Nesterov u + g, is what is handed on."""
        gradient = mean.float().expand(ctx.state.rows, -1)
        slot = ctx.state.slot(MOMENTUM, ctx.layout)
        u, v = ctx.state.write(slot, slot.spare(mean.device)), torch.empty_like(gradient)
        old = slot.current, None
        momentum.accumulate(Window.whole(gradient), old, (u, v), ctx.rescale, self.momentum, self.nesterov)
        return v[:1]
