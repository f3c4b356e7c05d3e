"""Chunks of neighbours that are sent in half precision, and put where they belong: on a GPU, one launch each way.

Values are multiplied by a scale that is known on the device only, so that they fit half precision.
"""

from __future__ import annotations

from torch import Tensor

from gradwire.core.window import Feedback, Flag, Window
from gradwire.kernels.backend import run
from gradwire.kernels.chunks import reference


def take_from(source: Window, feedback: Feedback | None, kept: Tensor, chunk: int, scale: Tensor) -> Tensor:
    """The chunks `kept`, ascending, of each row, times `scale`, in half precision: (rows, chunks, chunk) float16.

    ``feedback.out`` holds the compensated gradients; what is sent is taken off. Behind the last element are zeros.
    """
    return run(reference.take_from, source, feedback, kept, chunk, scale)


def put_to(values: Tensor, kept: Tensor, chunk: int, scale: Tensor, target: Window) -> Flag:
    """(1, chunks, chunk) float16 over `scale` to the chunks `kept` of a window, and zeros elsewhere."""
    return run(reference.put_to, values, kept, chunk, scale, target)
