"""The two tables of 8-bit quantisation: values from −1 to 1, by code, and how far off the nearest one can be."""

from __future__ import annotations

from functools import lru_cache
from itertools import pairwise


@lru_cache
def magnitudes(form: str) -> tuple[float, ...]:
    """The magnitudes of the table from 0 to 1: 128 of them, or 129, the last of which exists as +1 only."""
    if form == "static":
        return tuple((m + 16 * (e > 0)) / 31 * 2.0 ** (max(e, 1) - 7) for e in range(8) for m in range(16))
    cells = ((0.1 + 0.9 * (j + 0.5) / 2**i) * 10.0 ** (i - 6) for i in range(7) for j in range(2**i))
    return (0.0, *cells, 1.0)


@lru_cache
def contraction(form: str, block: int) -> float:
    """A delta that holds for every block: the best split into small elements and others."""
    m = magnitudes(form)
    gaps = list(pairwise(m))
    relative = [(high - low) / (high + low) for low, high in gaps]
    absolute = [(high - low) / 2 for low, high in gaps]
    if len(m) > 128:  # without -1, the last gap is rounded down whole
        relative[-1] = absolute[-1] = m[-1] - m[-2]
    left = (
        max(relative[k:], default=0.0) ** 2 + block * max(absolute[:k], default=0.0) ** 2 for k in range(len(gaps) + 1)
    )
    return max(0.0, 1 - min(left))


@lru_cache
def codebook(form: str) -> tuple[float, ...]:
    """The value of each code."""
    m = magnitudes(form)
    return (*m, *[0.0] * (129 - len(m)), *(-v for v in m[1:128]))


@lru_cache
def midpoints(form: str) -> tuple[float, ...]:
    """Where the nearest magnitude changes."""
    return tuple((low + high) / 2 for low, high in pairwise(magnitudes(form)))
