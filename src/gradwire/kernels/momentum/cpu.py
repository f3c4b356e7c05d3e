"""Momentum, compiled."""

from __future__ import annotations

from typing import Any

import numpy as np
from torch import Tensor

from gradwire.core.window import Window
from gradwire.kernels.jit import jit
from gradwire.kernels.parallel import split
from gradwire.kernels.window.cpu import Spans, load, spans_of

TILE = 4096
_NOTHING = np.empty(0, np.float32)


@jit
def _accumulate(
    x: np.ndarray,
    spans: Spans,
    old_u: np.ndarray,
    old_v: np.ndarray,
    u: np.ndarray,
    v: np.ndarray,
    scale: Any,
    momentum: Any,
    nesterov: bool,
    first: int,
    last: int,
) -> None:
    tile = np.empty(TILE, np.float32)
    memory = (old_u[:0], np.float32(1), np.float32(1))
    for start in range(first, last, TILE):
        g = tile[: min(TILE, last - start)]
        load(x, spans, memory, start, g)
        a, b = u[start : start + g.size], v[start : start + g.size]
        kept_u, kept_v = old_u[min(start, old_u.size) :], old_v[min(start, old_v.size) :]
        if not old_u.size:
            for i in range(g.size):
                a[i] = g[i]
        elif nesterov:
            for i in range(g.size):
                a[i] = kept_u[i] * scale + g[i]
        else:
            for i in range(g.size):
                a[i] = kept_u[i] * scale * momentum + g[i]
        if nesterov:
            for i in range(g.size):
                a[i] *= momentum
        if old_v.size:
            for i in range(g.size):
                b[i] = kept_v[i] * scale + a[i]
        else:
            for i in range(g.size):
                b[i] = a[i]
        if nesterov:
            for i in range(g.size):
                b[i] += g[i]


def accumulate(
    source: Window,
    old: tuple[Tensor | None, Tensor | None],
    new: tuple[Tensor, Tensor],
    scale: float,
    momentum: float,
    nesterov: bool,
) -> None:
    spans = spans_of(source)
    for row in range(source.rows):
        kept = [_NOTHING if t is None else t[row].numpy() for t in old]
        common = source.buffer[row].numpy(), spans, *kept, *(t[row].numpy() for t in new)
        _accumulate_row((*common, np.float32(scale), np.float32(momentum), nesterov), source.numel)


def _accumulate_row(common: Any, numel: int) -> None:
    split(lambda first, last: _accumulate(*common, first, last), numel, TILE)
