"""About k of the largest elements: all above a bisected threshold, and some of the band below it. On a GPU only.

What is sent is what `mstopk` says. Its bisection asks again and again whether more than k elements reach a threshold:
that is so where the element of rank k + 1 does. So an exact selection takes the place of all counts, and the
bisection is a few operations on numbers.
"""

from __future__ import annotations

from torch import Tensor

from gradwire.core.random import Stream
from gradwire.core.window import Feedback, Window
from gradwire.kernels.backend import fast

WAYS = 4  # parts into which each step of the bisection cuts what is left: log2(WAYS) halvings


def send_from(
    source: Window,
    feedback: Feedback | None,
    shards: int,
    shard: int,
    k: int,
    steps: int,
    value_bits: int,
    factor: float,
    start: Stream,
) -> tuple[Tensor, Tensor]:
    """The k compensated gradients that are sent of each row: values and ascending places, both (rows, k).

    Args:
        source: the gradients, where they lie.
        feedback: holds the compensated gradients in ``out`` then, less what is sent.
        shards: rows of each worker.
        shard: elements of a row.
        k: how many are sent.
        steps: of the bisection.
        value_bits: of a value as it is sent.
        factor: what is sent is worth this much.
        start: where the run of elements of the band begins.
    """
    send = fast(__name__, "send_from", source.buffer)
    given = source, feedback, shards, shard, k, steps, value_bits, factor, start
    found: tuple[Tensor, Tensor] = send(*given)
    return found
