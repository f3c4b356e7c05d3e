"""Where something stops to hold, found by halving. No torch."""

from __future__ import annotations

import math
from collections.abc import Callable


def boundary(holds: Callable[[float], bool], low: float, high: float, precision: float) -> tuple[float, float]:
    """Two places as near as `precision` (relative): it holds at the first and not at the second, as at the ends given.

    >>> [round(x, 3) for x in boundary(lambda x: x * x < 2, 1.0, 4.0, 1e-6)]
    [1.414, 1.414]
    """
    while high / low > 1 + precision:
        middle = math.sqrt(low * high)
        low, high = (middle, high) if holds(middle) else (low, middle)
    return low, high
