r"""Error feedback: what a codec drops today is added to tomorrow's gradient.

.. math::  a_t = \beta e_t + \gamma g_t, \qquad e_{t+1} = a_t - C(a_t)

With beta = gamma = 1 nothing is lost: the results of T steps and what the memories then hold add up to the
sum of the mean gradients, whatever the codec. Stable for contracting codecs. An unbiased codec of
variance omega < 1 is safe as it is; with omega >= 1 the memory would grow without bound, so its output is scaled by
1/(1+omega), which makes it a contraction with delta = 1/(1+omega), and a warning says so.

`by_learning_rate` multiplies what is kept by the ratio of the last learning rate to the new one, as the
theory wants when the rate changes (it needs ``attach(..., optimizer=...)``).

`bits` = 8 keeps an element in a byte, and a byte for each 64 (`core.packed`): a quarter of the room. What is kept is
then rounded at random, by less than 1/63 of the largest error of its 64 elements, and in the mean by nothing: no
gradient is lost but for noise. While a unit is reduced, its error is there in float32 as well.

Seide et al., 1-bit SGD, Interspeech 2014; Karimireddy et al., ICML 2019, arXiv:1901.09847; the beta, gamma form is
GRACE's (Xu et al., ICDCS 2021).
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import ClassVar

import torch

from gradwire.core.codec import Codec, Context
from gradwire.core.errors import Incompatible
from gradwire.core.packed import pack
from gradwire.core.registry import Check
from gradwire.core.scaled import Scaled
from gradwire.core.slots import PackedSlot
from gradwire.core.window import Feedback, Window
from gradwire.kernels.random import halves
from gradwire.memory.base import ERROR, Memory, memories


@memories.register
@dataclass(frozen=True)
class ErrorFeedback(Memory):
    """`beta` discounts the error, `gamma` the gradient; `bits` of an element that is kept, 32 or 8."""

    name: ClassVar[str] = "error_feedback"
    beta: float = 1.0
    gamma: float = 1.0
    by_learning_rate: bool = False  # type: ignore[misc]
    bits: int = 32

    def __post_init__(self) -> None:
        check = Check(self.name)
        check.number("beta", self.beta, 0, 1, "a discount in [0, 1]")
        check.number("gamma", self.gamma, 0, float("inf"), "a factor of at least 0")
        check.one_of("bits", self.bits, (32, 8))

    def fit(self, codec: Codec) -> Codec:
        traits = codec.traits
        if traits.delta is not None or (traits.omega is not None and traits.omega < 1):
            return codec
        if traits.omega is None:
            raise Incompatible(
                f"{codec.name} cannot run under error_feedback: it claims neither a contraction nor a bounded "
                "variance, so the memory would grow without bound. Use memory='none', or a contracting codec "
                "such as efsignsgd."
            )
        scale = 1 / (1 + traits.omega)
        warnings.warn(
            f"{codec.spec}: error feedback over an unbiased codec of variance omega = {traits.omega:.3g} >= 1 would "
            f"diverge, so its output is scaled by 1/(1+omega) = {scale:.3g}",
            stacklevel=2,
        )
        return Scaled(codec, scale)

    def prepare(self, source: Window, ctx: Context) -> tuple[Window, Feedback | None]:
        decay = ctx.rescale if self.beta == 1 else self.beta * ctx.rescale
        if self.bits == 8:
            error = ctx.state.slot(ERROR, ctx.layout, PackedSlot).values
            out = source.buffer.new_empty((source.rows, source.numel), dtype=torch.float32) if error is None else error
            feedback = Feedback(out, error, decay, self.gamma)
            return Window.whole(feedback.compensated(source), scratch=True), feedback.done()
        slot = ctx.state.slot(ERROR, ctx.layout)
        out = ctx.state.write(slot, slot.spare(source.buffer.device))
        return source, Feedback(out, slot.current, decay, self.gamma)

    def keep(self, feedback: Feedback, ctx: Context) -> None:
        if self.bits == 8:
            error = feedback.out
            noise = halves(ctx.rng.private("memory"), error.shape, error.device)
            slot = ctx.state.slot(ERROR, ctx.layout, PackedSlot)
            ctx.state.write(slot, pack(error, noise, slot.spare(error.device)))
