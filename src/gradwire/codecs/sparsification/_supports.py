"""Vectors on a support."""

from __future__ import annotations

from torch import Tensor

from gradwire.kernels.scatter import scatter


def only(x: Tensor, support: Tensor) -> Tensor:
    """The rows `x` on one support, (1, k), and zero elsewhere."""
    everywhere = support.expand(len(x), -1)
    return scatter(x.gather(1, everywhere), everywhere, x.shape[1])
