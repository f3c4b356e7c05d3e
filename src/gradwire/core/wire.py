"""How many bytes leave a worker for each kind of exchange: the only home of these three lines. No torch."""

from __future__ import annotations


def reduced(num_bytes: float, workers: int) -> float:
    """Of a tensor that is summed in a ring: it goes round once to be added up, and once to be handed out.

    >>> reduced(8, 4)
    12.0
    """
    return 2 * (workers - 1) * num_bytes / workers


def gathered(num_bytes: float, workers: int) -> float:
    """Of a row that everybody gets."""
    return (workers - 1) * num_bytes


def scattered(num_bytes: float, workers: int) -> float:
    """Of equal rows, one for each worker: the own one stays."""
    return (workers - 1) * num_bytes / workers
