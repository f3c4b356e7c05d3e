"""Reading and writing gradients where they lie, a tile at a time: what the one-pass kernels on the CPU share."""

from __future__ import annotations

import torch
from torch import Tensor

from gradwire.core.window import Feedback, Window
from gradwire.kernels.backend import compiled


def one_pass(source: Window, feedback: Feedback | None = None) -> bool:
    """Whether the compiled kernels can read `source` and keep its error in one pass."""
    if source.buffer.dtype != torch.float32 or not compiled(source.buffer) or not source.numel:
        return False
    return feedback is None or not isinstance(feedback.decay, torch.Tensor)


def read(window: Window, dtype: torch.dtype = torch.float32) -> Tensor:
    """`Window.read`, all spans in one call."""
    if not _many(window) or dtype != torch.float32:
        return window.read(dtype)
    from gradwire.kernels.window import cpu

    return cpu.read(window)


def write(window: Window, values: Tensor) -> None:
    """`Window.write_`, all spans in one call."""
    if not _many(window) or values.dtype != torch.float32:
        window.write_(values)
        return
    from gradwire.kernels.window import cpu

    cpu.write(window, values)


def _many(window: Window) -> bool:
    return len(window.spans) > 2 and window.buffer.dtype == torch.float32 and compiled(window.buffer)
