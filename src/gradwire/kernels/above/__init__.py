"""Elements beyond a threshold, as many as there are. On a GPU, two passes, between which the host waits for counts."""

from __future__ import annotations

from torch import Tensor

from gradwire.core.window import Feedback, Window
from gradwire.kernels.above import reference
from gradwire.kernels.backend import run


def take_from(
    source: Window,
    feedback: Feedback | None,
    shards: int,
    shard: int,
    threshold: float,
    value_bits: int,
    factor: float,
) -> list[tuple[Tensor, Tensor]]:
    """The compensated gradients whose magnitude exceeds a threshold, or is NaN: values and places of each row.

    Both are (1, count), places ascend. Each worker has `shards` rows of `shard` elements. ``feedback.out`` holds the
    compensated gradients then, less what is sent: the values in `value_bits` bits, times `factor`.
    """
    return run(reference.take_from, source, feedback, shards, shard, threshold, value_bits, factor)
