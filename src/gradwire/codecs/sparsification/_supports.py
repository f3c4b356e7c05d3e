"""Supports that are drawn, equal on all workers, and vectors on a support."""

from __future__ import annotations

from functools import lru_cache

import torch
from torch import Tensor

from gradwire.core.random import Stream
from gradwire.kernels.random import words
from gradwire.kernels.scatter import scatter


def any_index(draw: Stream, numel: int, device: torch.device) -> Tensor:
    """One index below `numel`, all equally likely to a part in 2⁶³/numel."""
    draws = words(draw, (2,), device)
    return ((draws[0] << 31) | (draws[1] >> 1)) % numel


@lru_cache(maxsize=16)  # encoder and decoder, and virtual workers, ask for the same one
def random_support(draw: Stream, turn: Stream, k: int, numel: int, device: torch.device) -> Tensor:
    """k distinct indices below `numel`: one from each of k strata of the range, turned by a random angle."""
    edges = torch.arange(k + 1, device=device) * numel // k
    inside = edges[:-1] + (words(draw, (k,), device) * edges.diff() >> 32)
    return (inside + any_index(turn, numel, device)) % numel


def only(x: Tensor, support: Tensor) -> Tensor:
    """The rows `x` on one support, (1, k), and zero elsewhere."""
    everywhere = support.expand(len(x), -1)
    return scatter(x.gather(1, everywhere), everywhere, x.shape[1])
