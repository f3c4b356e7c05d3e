"""Large ranges of elements cut over torch's number of threads, for kernels that release the interpreter lock.

Kernels write disjoint pieces and take sums in an order of their own, so that the result does not depend on the cut.
A piece must not call `split` again.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager
from itertools import pairwise

import torch

LARGE = 1 << 20  # elements below which threads cost more than they save
_pools: list[ThreadPoolExecutor] = []
_listeners: list[list[int]] = []


def split(work: Callable[[int, int], object], numel: int, align: int = 1) -> None:
    """Call ``work(start, stop)`` for pieces that together cover ``range(numel)``, all at multiples of `align`.

    With one thread, or less than `LARGE` elements, this is ``work(0, numel)``.
    """
    for heard in _listeners:
        heard.append(numel)
    count = torch.get_num_threads() if numel >= LARGE else 1
    units = -(-numel // align)
    cuts = sorted({min(numel, units * i // count * align) for i in range(count + 1)})
    if len(cuts) <= 2:
        work(0, numel)
        return
    rest = [_pool().submit(work, *piece) for piece in pairwise(cuts[1:])]
    try:
        work(cuts[0], cuts[1])
    finally:
        wait(rest)
    for piece in rest:
        piece.result()


def split_rows(work: Callable[[int, int], object], rows: int, numel: int, tile: int) -> None:
    """Call ``work(first, last)`` for ranges of tiles that together cover `rows` rows of `numel` elements.

    With k = ceil(numel/tile), tile t is the part of row t div k that begins at element (t mod k)·tile.
    """
    split(lambda start, stop: work(start // tile, stop // tile), rows * -(-numel // tile) * tile, tile)


@contextmanager
def counted() -> Iterator[list[int]]:
    """How many elements each kernel that is called inside goes over."""
    heard: list[int] = []
    _listeners.append(heard)
    try:
        yield heard
    finally:
        _listeners.remove(heard)


def _pool() -> ThreadPoolExecutor:
    if not _pools:
        _pools.append(ThreadPoolExecutor(os.cpu_count(), thread_name_prefix="gradwire-kernel"))
    return _pools[-1]


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_pools.clear)  # threads do not survive a fork
