r"""Momentum that is accumulated before selection, and the sum that is sent, in one pass over memory.

With s the factor that brings what was kept into today's units,

.. math::  u' = m s u + g, \quad v' = s v + u' \qquad\text{(plain)}
.. math::  u' = m (s u + g), \quad v' = s v + u' + g \qquad\text{(Nesterov)}
"""

from __future__ import annotations

import torch
from torch import Tensor

from gradwire.core.window import Window
from gradwire.kernels.momentum import reference
from gradwire.kernels.window import one_pass


def accumulate(
    source: Window,
    old: tuple[Tensor | None, Tensor | None],
    new: tuple[Tensor, Tensor],
    scale: float | Tensor,
    momentum: float,
    nesterov: bool,
) -> None:
    """Write u' and v' to `new` from u and v in `old` (None: nothing was kept) and the gradients in `source`."""
    if one_pass(source) and not isinstance(scale, torch.Tensor):
        from gradwire.kernels.momentum import cpu

        cpu.accumulate(source, old, new, scale, momentum, nesterov)
        return
    reference.accumulate(source, old, new, scale, momentum, nesterov)
