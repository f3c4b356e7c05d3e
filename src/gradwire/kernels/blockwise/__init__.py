"""Statistics of each block of a row: (rows, numel) float32 -> (rows, ceil(numel/block)) float32.

Sums are taken in a fixed order, so that every device and kernel gives the same bits: a block is padded with zeros to a
power of two, and its upper half is added to its lower half until one number is left. The last block may be shorter.
"""

from __future__ import annotations

from importlib import import_module

from torch import Tensor

from gradwire.core.window import Feedback, Window
from gradwire.kernels.backend import fast, run
from gradwire.kernels.blockwise import reference
from gradwire.kernels.window import one_pass as window_in_one_pass


def abs_max(x: Tensor, block: int) -> Tensor:
    """The largest magnitude of each block; NaN if one of them is."""
    return run(reference.abs_max, x, block)


def abs_sum(x: Tensor, block: int) -> Tensor:
    """The sum of magnitudes of each block."""
    return run(reference.abs_sum, x, block)


def square_sum(x: Tensor, block: int) -> Tensor:
    """The sum of squares of each block."""
    return run(reference.square_sum, x, block)


def in_one_pass(block: int, window: Window, feedback: Feedback | None = None) -> bool:
    """Whether `square_sum_from` can treat a window."""
    return window_in_one_pass(window, feedback, on_gpu=lambda: import_module(f"{__name__}.gpu").serves(block))


def square_sum_from(source: Window, feedback: Feedback | None, block: int) -> Tensor:
    """`square_sum` of the compensated gradients, which go to ``feedback.out``: one pass, for such windows."""
    found: Tensor = fast(__name__, "square_sum_from", source.buffer)(source, feedback, block)
    return found
