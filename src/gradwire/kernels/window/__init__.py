"""Reading and writing gradients where they lie, a tile at a time: what the one-pass kernels share."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from gradwire.core.window import Feedback, Window
from gradwire.kernels.backend import CPU, GPU, compiled, kind_of


def one_pass(source: Window, feedback: Feedback | None = None, *, on_gpu: Callable[[], bool] = lambda: False) -> bool:
    """Whether fast kernels can read `source` and keep its error in one pass.

    Args:
        source: where the gradients lie.
        feedback: what a memory adds to them.
        on_gpu: whether the GPU's kernels can treat the rest; asked where there are such kernels.
    """
    kind = kind_of(source.buffer, *(() if feedback is None else (feedback,)))
    if kind == GPU:
        from gradwire.kernels.window import gpu

        fits = 0 < source.numel < gpu.MOST and source.buffer.dtype in gpu.DTYPES and source.buffer.stride(1) == 1
        return fits and on_gpu()
    return kind == CPU and source.buffer.dtype == torch.float32 and source.numel > 0


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
