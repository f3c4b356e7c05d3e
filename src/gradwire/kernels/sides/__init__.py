"""The largest positive and the largest negative elements, each side with its mean. On a GPU only.

What is sent is what `adaptivethreshold` says. Lines come in pairs, a positive and a negative one for each row.
"""

from __future__ import annotations

from torch import Tensor

from gradwire.core.window import Feedback, Window
from gradwire.kernels.backend import fast


def send_from(
    source: Window, feedback: Feedback | None, shards: int, shard: int, k: int, factor: float
) -> tuple[Tensor, Tensor]:
    """The mean of each line, (rows, 2), and the ascending places of its k elements, (2·rows, k).

    Where a side has fewer, places behind the end, from `shard` on, fill up. Each worker has `shards` rows of `shard`
    elements. ``feedback.out`` holds the compensated gradients then, less the means of what is sent, times `factor`. A
    row that is not finite has NaN for means, at its first elements.
    """
    send = fast(__name__, "send_from", source.buffer)
    found: tuple[Tensor, Tensor] = send(source, feedback, shards, shard, k, factor)
    return found
