"""Reading and writing gradients where they lie, a tile at a time: what the one-pass kernels share."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from gradwire.core.window import Feedback, Flag, Window, nonfinite_flag
from gradwire.kernels.backend import CPU, GPU, fused, kind_of
from gradwire.kernels.window.places import DTYPES, fits


def one_pass(source: Window, feedback: Feedback | None = None, *, on_gpu: Callable[[], bool] = lambda: False) -> bool:
    """Whether fast kernels can read `source` and keep its error in one pass.

    Args:
        source: where the gradients lie.
        feedback: what a memory adds to them.
        on_gpu: whether the GPU's kernels can treat the rest; asked where there are such kernels.
    """
    kind = kind_of(source.buffer, *(() if feedback is None else (feedback,)))
    if kind == GPU:
        return fits(source) and on_gpu()
    return kind == CPU and source.buffer.dtype == torch.float32 and source.numel > 0


def one_launch(source: Window, feedback: Feedback | None = None, *, on_gpu: Callable[[], bool] = lambda: True) -> bool:
    """`one_pass`, on a GPU only: for kernels that the CPU has none of."""
    return fused(source.buffer.device) and one_pass(source, feedback, on_gpu=on_gpu)


def compensate(source: Window, feedback: Feedback | None) -> tuple[Tensor, Tensor]:
    """`Feedback.compensated` of a `one_launch` window, (rows, numel); and, (rows, 1), which rows are not finite."""
    from gradwire.kernels.window import gpu

    return gpu.compensate(source, feedback)


def read(window: Window, dtype: torch.dtype = torch.float32) -> Tensor:
    """`Window.read`, all spans in one call."""
    if len(window.spans) > 2:
        kind = kind_of(window.buffer)
        if kind == CPU and window.buffer.dtype == dtype == torch.float32:
            from gradwire.kernels.window import cpu

            return cpu.read(window)
        if kind == GPU:
            from gradwire.kernels.window import gpu

            if fits(window) and dtype in DTYPES:
                return gpu.read_spans(window, dtype)
    return window.read(dtype)


def write(window: Window, values: Tensor) -> Flag:
    """`Window.write_`, all spans in one call; 0 where all values are finite, else NaN."""
    kind = kind_of(window.buffer)
    if kind == GPU:
        from gradwire.kernels.window import gpu

        if fits(window) and values.dtype in DTYPES and values.stride(1) == 1:
            return gpu.write_spans(window, values)
    if kind == CPU and len(window.spans) > 2 and window.buffer.dtype == values.dtype == torch.float32:
        from gradwire.kernels.window import cpu

        cpu.write(window, values)
    else:
        window.write_(values)
    return nonfinite_flag(values)
