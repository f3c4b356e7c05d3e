"""Sums of k-sparse vectors, which know what of a worker's own entries they hold."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from gradwire.codecs.sparsification._sparse_payload import read, rounded, write
from gradwire.kernels.select import top


@dataclass(frozen=True)
class Sparse:
    """For each worker here a k-sparse sum, what it put into that itself, and what the guest it serves put in."""

    values: Tensor  # (rows, k)
    where: Tensor  # (rows, k), ascending
    own: Tensor  # (rows, k)
    guest: Tensor  # (rows, k), zero where there is no guest

    @classmethod
    def new(cls, values: Tensor, where: Tensor) -> Sparse:
        """A worker's own vector."""
        return cls(values, where, values, torch.zeros_like(values))

    @classmethod
    def read(cls, data: Tensor, numel: int, k: int, value_bits: int) -> Sparse:
        """What another worker sent by `row`, as if that had put in all of it."""
        return cls.new(*read(data, numel, k, value_bits))

    def row(self, numel: int, value_bits: int) -> Tensor:
        """The bytes of the sum: (rows, bytes)."""
        return write(self.values, self.where, numel, value_bits)

    def at(self, part: Tensor, where: Tensor) -> Tensor:
        """One of the parts on another support."""
        place = torch.searchsorted(self.where, where).clamp_(max=self.where.shape[1] - 1)
        known = self.where.gather(1, place) == where
        return torch.where(known, part.gather(1, place), 0.0)


def mask(which: list[bool], device: torch.device) -> Tensor:
    """(rows, 1), without a wait for the device; made once, so that later steps copy nothing."""
    return _mask(tuple(which), device)


@lru_cache(maxsize=256)
def _mask(which: tuple[bool, ...], device: torch.device) -> Tensor:
    return torch.tensor(which)[:, None].to(device, non_blocking=True)


def chosen(which: Tensor, a: Sparse, b: Sparse) -> Sparse:
    """The rows of `a` where `which` says so, else those of `b`: workers without a partner in a round keep theirs."""
    pairs = ((a.values, b.values), (a.where, b.where), (a.own, b.own), (a.guest, b.guest))
    return Sparse(*(torch.where(which, *pair) for pair in pairs))


def _union(a: Sparse, b: Sparse) -> tuple[Tensor, Tensor]:
    """Values and indices of a + b: the distinct ones ascending, then zeros in place of those that stood in both."""
    where, order = torch.cat((a.where, b.where), dim=1).sort(dim=1, stable=True)
    values = torch.cat((a.values, b.values), dim=1).gather(1, order)
    again = torch.zeros_like(where, dtype=torch.bool)
    again[:, 1:] = where[:, 1:] == where[:, :-1]
    second = torch.where(again, values, 0.0)
    values = torch.where(again, 0.0, values)
    values[:, :-1] += second[:, 1:]
    last = again.to(torch.uint8).sort(dim=1, stable=True).indices
    return values.gather(1, last), where.gather(1, last)


def merged(a: Sparse, b: Sparse, first: Tensor, value_bits: int, *, follow: bool = False) -> Sparse:
    """The k largest of a + b, with what is known of a's parts; b is a guest's if it is to be followed.

    `first`, (rows, 1): this worker takes the error of rounding the sum upon itself.
    """
    values, where = _union(a, b)
    best = top(values, a.where.shape[1])
    values, where = values.gather(1, best), where.gather(1, best)
    sent, own = rounded(values, value_bits), a.at(a.own, where)
    if value_bits < 32:
        own = torch.where(first, own + (sent - values), own)
    return Sparse(sent, where, own, b.at(b.own, where) if follow else a.at(a.guest, where))
