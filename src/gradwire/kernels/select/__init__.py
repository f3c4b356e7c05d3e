"""Which elements are large: indices in ascending order, the same on every device."""

from __future__ import annotations

from torch import Tensor

from gradwire.kernels.backend import compiled
from gradwire.kernels.select import reference


def top(x: Tensor, k: int) -> Tensor:
    """The k elements of largest magnitude of each row: (rows, k) int64, ascending.

    NaN counts as largest; among equals the lower index is taken.
    """
    if compiled(x):
        from gradwire.kernels.select import cpu

        return cpu.top(x, k)
    return reference.top(x, k)


def above(x: Tensor, threshold: Tensor) -> tuple[Tensor, Tensor]:
    """Where the magnitude exceeds the row's `threshold` (rows,), or is NaN: indices, and how many of each row.

    Indices are int64 of shape (rows, largest count), ascending, zeros behind the end; counts are int64 on the CPU. The
    host waits for the counts.
    """
    if compiled(x, threshold):
        from gradwire.kernels.select import cpu

        return cpu.above(x, threshold)
    return reference.above(x, threshold)


def count_above(x: Tensor, thresholds: Tensor) -> Tensor:
    """How many magnitudes of each row reach each of the row's ascending `thresholds` (rows, m): (rows, m) int64.

    A magnitude equal to a threshold counts; NaN never does.
    """
    if compiled(x, thresholds):
        from gradwire.kernels.select import cpu

        return cpu.count_above(x, thresholds)
    return reference.count_above(x, thresholds)
