r"""Randomised Hadamard rotation of every run of `size` elements, a power of two:

.. math::  y = H D x / \sqrt{\text{size}}

D holds random signs, element i of the flattened rows taking coin i of a stream (no stream: no signs). `unrotate` is
the inverse, :math:`x = D H y / \sqrt{\text{size}}`. Rows must be a multiple of `size` long. The sums of H are taken
in the order of the fast transform: neighbours first, then runs of 2, 4, …
"""

from __future__ import annotations

from torch import Tensor

from gradwire.core.random import Stream
from gradwire.kernels.backend import run
from gradwire.kernels.hadamard import reference


def rotate(x: Tensor, size: int, signs: Stream | None) -> Tensor:
    """(rows, numel) -> (rows, numel)."""
    return run(reference.rotate, x, size, signs)


def unrotate(y: Tensor, size: int, signs: Stream | None) -> Tensor:
    """The inverse of `rotate`."""
    return run(reference.unrotate, y, size, signs)
