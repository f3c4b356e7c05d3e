"""Elements beyond a threshold, as they travel, as many as there are. On a GPU only.

Two passes, between which the host waits for counts.
"""

from __future__ import annotations

from torch import Tensor

from gradwire.core.window import Feedback, Window
from gradwire.kernels.backend import fast


def send_from(
    source: Window,
    feedback: Feedback | None,
    shards: int,
    shard: int,
    threshold: float,
    value_bits: int,
    factor: float,
) -> tuple[Tensor, Tensor]:
    """The compensated gradients whose magnitude exceeds a threshold, or is NaN: rows of counted entries, their lengths.

    See `gradwire.kernels.counted`. Each worker has `shards` rows of `shard` elements. ``feedback.out`` holds the
    compensated gradients then, less what is sent: the values in `value_bits` bits, times `factor`.
    """
    send = fast(__name__, "send_from", source.buffer)
    found: tuple[Tensor, Tensor] = send(source, feedback, shards, shard, threshold, value_bits, factor)
    return found
