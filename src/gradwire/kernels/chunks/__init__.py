"""Chunks of neighbours that are sent in half precision, and put where they belong: on a GPU, one launch each way.

Values are multiplied by a scale that is known on the device only, so that they fit half precision.
"""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

from gradwire.core.window import Feedback, Flag, Window
from gradwire.kernels.backend import run
from gradwire.kernels.chunks import reference


class Agreed(NamedTuple):
    """What all workers know of the chunks that they send."""

    kept: Tensor  # their numbers, ascending
    scale: Tensor  # values are multiplied by this before the cast
    total: Tensor  # and their sum over the workers is divided by this
    slots: Tensor | None = None  # for each chunk, which of those that are kept it is, or -1; None: nobody needs it
    zero: Tensor | None = None  # a scalar, to be written to


def agree(energies: Tensor, count: int, workers: int) -> Agreed:
    """The `count` chunks of the largest energies, (1, chunks) bfloat16, summed over `workers` workers.

    NaN counts as largest; among equals the lower number is taken. The scale is a power of two over `workers`, by which
    neither an element of such chunks nor their sum overflows half precision.
    """
    return run(reference.agree, energies, count, workers)


def take_from(source: Window, feedback: Feedback | None, agreed: Agreed, chunk: int) -> Tensor:
    """The chunks that are kept of each row, times the scale, in half precision: (rows, chunks, chunk) float16.

    ``feedback.out`` holds the compensated gradients; what is sent is taken off. Behind the last element are zeros.
    """
    return run(reference.take_from, source, feedback, agreed, chunk)


def put_to(values: Tensor, agreed: Agreed, chunk: int, target: Window) -> Flag:
    """(1, chunks, chunk) float16, a sum over the workers, as a mean to its chunks of a window, and zeros elsewhere."""
    return run(reference.put_to, values, agreed, chunk, target)
