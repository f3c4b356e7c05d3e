r"""SIGNUM: SignSGD on each worker's momentum.

.. math::  m^w \leftarrow \beta m^w + (1-\beta) g^w, \qquad
           \text{out}_i = \mathrm{sgn}\Big(\sum_w \mathrm{sgn}(m^w_i)\Big)

The result is ±1, not a mean, as in SignSGD, and zeros and ties go the same way. Each worker keeps its momentum, by
parameter name, and saves it with its state. The optimizer's own momentum should be 0; weight decay belongs to the
optimizer's step, not into m.
Wire: that of SignSGD.

Bernstein et al., signSGD: compressed optimisation for non-convex problems, ICML 2018, arXiv:1802.04434; with majority
vote is communication efficient and fault tolerant, ICLR 2019, arXiv:1810.05291, algorithm 1.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from gradwire.codecs.quantization.signsgd import SignSGD
from gradwire.core.codec import Context, Flag, register
from gradwire.core.exchange import Program
from gradwire.core.registry import Check
from gradwire.core.window import Feedback, Running, Window
from gradwire.kernels.window import one_launch

MOMENTUM = "signum_momentum"


@register
@dataclass(frozen=True)
class Signum(SignSGD):
    """Send the sign of each worker's momentum. The result is the sign that most workers sent, +1 or −1.

    Args:
        beta: decay of the momentum, in [0, 1). 0.9 as usual; 0 is SignSGD.

    Example:
        >>> gradwire.codec("signum(beta=0.9)").payload_bytes(1000)
        126
    """

    name: ClassVar[str] = "signum"
    plain_on_gpu: ClassVar[str] = ""
    variants: ClassVar[tuple[str, ...]] = ("signum(beta=0.0)",)
    beta: float = 0.9

    def __post_init__(self) -> None:
        Check(self.name).number("beta", self.beta, 0, 1 - 2.0**-20, "a factor in [0, 1)")

    def reduce_to(self, source: Window, target: Window, feedback: Feedback | None, ctx: Context) -> Program[Flag]:
        slot = ctx.state.slot(MOMENTUM, ctx.layout)
        out = ctx.state.write(slot, slot.spare(source.buffer.device))
        running = Running(out, slot.current, self.beta * ctx.rescale, 1 - self.beta)
        if feedback is None and one_launch(source, running):
            return (yield from super().reduce_to(source, target, running, ctx))
        momentum = running.compensated(source)
        return (yield from super().reduce_to(Window.whole(momentum), target, feedback, ctx))
