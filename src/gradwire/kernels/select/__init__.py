"""Which elements are large: indices in ascending order, the same on every device."""

from __future__ import annotations

from torch import Tensor

from gradwire.core.window import Feedback, Window
from gradwire.kernels.backend import fast, run
from gradwire.kernels.select import reference


def top(x: Tensor, k: int) -> Tensor:
    """The k elements of largest magnitude of each row: (rows, k) int64, ascending.

    NaN counts as largest; among equals the lower index is taken.

    Args:
        x: of shape (rows, numel).
        k: how many of each row.

    Example:
        >>> import torch
        >>> top(torch.tensor([[1.0, -5.0, 0.0, 3.0]]), 2)
        tensor([[1, 3]])
    """
    return run(reference.top, x, k)


def above(x: Tensor, threshold: Tensor) -> tuple[Tensor, Tensor]:
    """Where the magnitude exceeds the row's `threshold` (rows,), or is NaN: indices, and how many of each row.

    Indices are int64 of shape (rows, largest count), ascending, zeros behind the end; counts are int64 on the CPU. The
    host waits for the counts.
    """
    return run(reference.above, x, threshold)


def count_above(x: Tensor, thresholds: Tensor) -> Tensor:
    """How many magnitudes of each row reach each of the row's ascending `thresholds` (rows, m): (rows, m) int64.

    A magnitude equal to a threshold counts; NaN never does.
    """
    return run(reference.count_above, x, thresholds)


def top_from(source: Window, feedback: Feedback | None, shards: int, shard: int, k: int) -> tuple[Tensor, Tensor]:
    """`top` of the compensated gradients in one pass, for `one_pass` windows: values and places, both (rows, k).

    Each worker has `shards` rows of `shard` elements. ``feedback.out`` holds the compensated gradients then; `settle`
    takes off what is sent, as `send_from` does at once.
    """
    found: tuple[Tensor, Tensor] = fast(__name__, "top_from", source.buffer)(source, feedback, shards, shard, k)
    return found


def above_from(
    source: Window, feedback: Feedback | None, shards: int, shard: int, threshold: float
) -> list[tuple[Tensor, Tensor]]:
    """What exceeds a threshold, in one pass: values and places of each row, both (1, count). See `top_from`."""
    found: list[tuple[Tensor, Tensor]] = fast(__name__, "above_from", source.buffer)(
        source, feedback, shards, shard, threshold
    )
    return found


def send_from(
    source: Window, feedback: Feedback | None, shards: int, shard: int, k: int, value_bits: int, factor: float
) -> tuple[Tensor, Tensor]:
    """`top_from`, and what is sent is taken off ``feedback.out``: the values in `value_bits` bits, times `factor`.

    Where a value that is not zero is sent, the momentum becomes zero.
    """
    found: tuple[Tensor, Tensor] = fast(__name__, "send_from", source.buffer)(
        source, feedback, shards, shard, k, value_bits, factor
    )
    return found


def settle(feedback: Feedback, row: int, position: int, where: Tensor, sent: Tensor) -> None:
    """Take `sent`, at the places `where` behind `position` of a worker's row, off ``feedback.out``."""
    fast(__name__, "settle", feedback.out)(feedback, row, position, where, sent)
