"""DDP's buckets: which gradients travel together, in which order.

After the first step DDP orders parameters as their gradients arrive, which is about the model's order backwards, and
fills buckets with them: the first closes at 1 MiB, so that exchange begins early, the others at 25 MiB. A
bucket closes when it has reached its size, so one large tensor makes a large bucket.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

FIRST_BYTES = 1 << 20
CAP_BYTES = 25 << 20
ELEMENT_BYTES = 4


def buckets(
    shapes: Sequence[Sequence[int]], *, first_bytes: int = FIRST_BYTES, cap_bytes: int = CAP_BYTES
) -> list[list[int]]:
    """Positions of the tensors of each bucket, in the order in which buckets are exchanged.

    >>> buckets([(1 << 20, 8), (1024, 1024), (10,)])
    [[2, 1], [0]]
    """
    filled: list[list[int]] = []
    current: list[int] = []
    size, limit = 0, first_bytes
    for position in reversed(range(len(shapes))):
        current.append(position)
        size += ELEMENT_BYTES * math.prod(shapes[position])
        if size >= limit:
            filled.append(current)
            current, size, limit = [], 0, cap_bytes
    return [*filled, current] if current else filled
