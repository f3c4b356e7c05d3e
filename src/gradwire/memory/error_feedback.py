r"""Error feedback: what a codec drops today is added to tomorrow's gradient.

.. math::  a_t = \beta e_t + \gamma g_t, \qquad e_{t+1} = a_t - C(a_t)

With beta = gamma = 1 nothing is lost: the results of T steps and what the memories then hold add up to the
sum of the mean gradients, whatever the codec. Stable for contracting codecs. An unbiased codec of
variance omega < 1 is safe as it is; with omega >= 1 the memory would grow without bound, so its output is scaled by
1/(1+omega), which makes it a contraction with delta = 1/(1+omega), and a warning says so.

`by_learning_rate` multiplies what is kept by the ratio of the last learning rate to the new one, as the
theory wants when the rate changes (it needs ``attach(..., optimizer=...)``).

Seide et al., 1-bit SGD, Interspeech 2014; Karimireddy et al., ICML 2019, arXiv:1901.09847; the beta, gamma form is
GRACE's (Xu et al., ICDCS 2021).
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import ClassVar

from gradwire.core.codec import Codec, Context
from gradwire.core.errors import Incompatible
from gradwire.core.registry import Check
from gradwire.core.scaled import Scaled
from gradwire.core.window import Feedback, Window
from gradwire.memory.base import ERROR, Memory, memories


@memories.register
@dataclass(frozen=True)
class ErrorFeedback(Memory):
    """`beta` discounts the error, `gamma` the gradient."""

    name: ClassVar[str] = "error_feedback"
    beta: float = 1.0
    gamma: float = 1.0
    by_learning_rate: bool = False  # type: ignore[misc]

    def __post_init__(self) -> None:
        check = Check(self.name)
        check.number("beta", self.beta, 0, 1, "a discount in [0, 1]")
        check.number("gamma", self.gamma, 0, float("inf"), "a factor of at least 0")

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
        slot = ctx.state.slot(ERROR, ctx.layout)
        out = ctx.state.write(slot, slot.spare(source.buffer.device))
        decay = ctx.rescale if self.beta == 1 else self.beta * ctx.rescale
        return source, Feedback(out, slot.current, decay, self.gamma)
