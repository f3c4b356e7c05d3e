r"""Momentum that is accumulated before selection, and the sum that is sent, in one pass over memory.

With s the factor that brings what was kept into today's units,

.. math::  u' = m s u + g, \quad v' = s v + u' \qquad\text{(plain)}
.. math::  u' = m (s u + g), \quad v' = s v + u' + g \qquad\text{(Nesterov)}
"""

from __future__ import annotations

from importlib import import_module

import torch
from torch import Tensor

from gradwire.core.window import Window
from gradwire.kernels.backend import GPU, fast, kind_of
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
    tensors = [t for t in (*old, *new) if t is not None]
    if one_pass(source, on_gpu=lambda: import_module(f"{__name__}.gpu").serves(source, tensors)) and (
        kind_of(source.buffer) == GPU or not isinstance(scale, torch.Tensor)
    ):
        fast(__name__, "accumulate", source.buffer)(source, old, new, scale, momentum, nesterov)
        return
    reference.accumulate(source, old, new, scale, momentum, nesterov)
