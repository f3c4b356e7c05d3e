"""How sure a number is: the interval that holds the median of what was measured, by order statistics.

Nothing is assumed of how values are spread. Of n of them, the k-th smallest and the k-th largest enclose the median
unless fewer than k fall on one side of it, which coins would tell the chance of.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from gradwire.core.baselines import WIN
from gradwire.core.records import quantile

SURE = 0.95


@dataclass(frozen=True)
class Interval:
    """A median, and between which values it lies.

    >>> print(median([1.02, 1.01, 1.04, 1.03, 1.02, 1.01, 1.05]))
    1.020 (1.010 to 1.050)
    """

    middle: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.middle:.3f} ({self.low:.3f} to {self.high:.3f})"


def median(values: Sequence[float], sure: float = SURE) -> Interval:
    """The median of the values, and an interval that holds the true one with probability `sure`.

    With fewer than six values no interval does at 95 %: it is then the least and the greatest.
    """
    ordered = sorted(values)
    n, beyond, k = len(ordered), 0.0, 0
    while k < n // 2:  # the chance that at most k of n coins show heads, twice
        beyond += 2 * math.comb(n, k) / 2**n
        if beyond > 1 - sure:
            break
        k += 1
    first = max(k - 1, 0)
    return Interval(quantile(ordered, 0.5), ordered[first], ordered[n - 1 - first])


def ratio(values: Sequence[float], others: Sequence[float]) -> Interval:
    """The median of values over others that were measured beside them, pair by pair.

    >>> print(ratio([2.0, 4.4, 6.0], [2.0, 4.0, 5.0]))
    1.100 (1.000 to 1.200)
    """
    return median([value / other for value, other in zip(values, others, strict=True)])


def of_medians(values: Sequence[float], others: Sequence[float], sure: float = SURE) -> Interval:
    """The median of values over that of others that were not measured in pairs.

    Each median lies in its interval but for half of what may be left to chance, so their ratio lies between the ends.

    >>> print(of_medians([2.0, 2.2, 2.4], [1.0, 1.0, 1.1]))
    2.200 (1.818 to 2.400)
    """
    each = 1 - (1 - sure) / 2
    above, below = median(values, each), median(others, each)
    return Interval(above.middle / below.middle, above.low / below.high, above.high / below.low)


def beats(values: Sequence[float], others: Sequence[float]) -> bool:
    """Whether times are a win over others: in the median by as much as a win needs, and by more than noise.

    >>> beats([1.0, 1.01, 1.02], [1.2, 1.21, 1.19]), beats([1.0, 1.3, 0.9], [1.1, 1.2, 1.0])
    (True, False)
    """
    found = of_medians(others, values)
    return found.middle >= WIN and found.low > 1
