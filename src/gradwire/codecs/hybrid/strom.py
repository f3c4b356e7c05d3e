r"""Strom's threshold: one sign, worth τ, for each coordinate whose magnitude exceeds τ.

.. math::  C(a)_i = \tau\,\mathrm{sgn}(a_i) \ \text{if}\ |a_i| > \tau, \text{ else } 0

Runs with error feedback, which keeps a_i ∓ τ: a coordinate drains by τ a step at most, so τ must not be small against
the gradients. |a_i − C(a)_i| ≤ |a_i|, which is delta = 0. How much is sent depends on the gradient; nothing is legal.
τ is in the units of the gradient as it comes, loss scale included.
Wire: per row the count k in 4 bytes, k indices in the shortest coding, see `gradwire.kernels.indices`, and k signs of
one bit; no byte where k = 0. A row that is not finite is a count of −1.

Departs from the paper in the coding: there each coordinate takes a 32-bit word, 31 bits of index and one of sign.

Strom, Scalable Distributed DNN Training Using Commodity GPU Cloud Computing, Interspeech 2015.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from gradwire.codecs.sparsification._sparse_payload import ragged
from gradwire.core.codec import Codec, Combine, Traits, register
from gradwire.core.exchange import Payload
from gradwire.core.random import Random
from gradwire.core.registry import Check
from gradwire.kernels import indices, rows, signs
from gradwire.kernels.bitpack import packed_bytes
from gradwire.kernels.select import above


@register
@dataclass(frozen=True)
class Strom(Codec):
    """Signs of what exceeds a fixed magnitude."""

    name: ClassVar[str] = "strom"
    family: ClassVar[str] = "hybrid"
    paper: ClassVar[str] = "Strom, Interspeech 2015"
    variants: ClassVar[tuple[str, ...]] = ("strom(tau=1.5)",)
    tau: float = 0.01

    def __post_init__(self) -> None:
        if not isinstance(self.tau, int | float) or isinstance(self.tau, bool) or not 0 < self.tau < math.inf:
            Check(self.name).fail("tau", "a magnitude above 0", self.tau)

    @property
    def traits(self) -> Traits:
        return Traits(combine=Combine.GATHER, memory="error_feedback", delta=0.0, fixed_size=False, homogeneous=False)

    def encode(self, x: Tensor, rng: Random) -> Payload:
        where, counts = above(x, x.new_full((x.shape[0],), self.tau))
        return ragged([self._row(x[i : i + 1], where[i : i + 1, :k]) for i, k in enumerate(counts.tolist())])

    def decode(self, payload: Payload, numel: int, rng: Random) -> Tensor:
        out = torch.zeros((payload.rows, numel), device=payload.data.device)
        for i, row in enumerate(out):
            self._add(payload, i, row)
        return out

    def combine(self, payload: Payload, numel: int, rng: Random, groups: int = 1) -> Tensor:
        total, size = torch.zeros((groups, numel), device=payload.data.device), payload.rows // groups
        for i in range(payload.rows):  # worker by worker: the order of sums is fixed
            self._add(payload, i, total[i // size])
        return total.div_(size)

    def payload_bytes(self, numel: int) -> int:
        return 8 + 4 + 2 * packed_bytes(numel, 1)

    def _row(self, x: Tensor, where: Tensor) -> Tensor:
        """One row's bytes; `where` are the elements beyond tau."""
        count = where.shape[1]
        if not count:
            return x.new_empty((1, 0), dtype=torch.uint8)
        values = x.gather(1, where)
        if bool(values.isnan().any()):
            return rows.join(where.new_full((1, 1), -1, dtype=torch.int32))
        head = where.new_full((1, 1), count, dtype=torch.int32)
        return rows.join(head, indices.encode(where, x.shape[1]), signs.encode(values))

    def _add(self, payload: Payload, i: int, into: Tensor) -> None:
        """Add what row `i` holds to the flat tensor `into`."""
        assert payload.lengths is not None
        if not payload.lengths[i]:
            return
        data = payload.data[i : i + 1]
        head, start = rows.take(data, 0, 1, torch.int32)
        count = int(head)
        if count < 0:
            into += math.nan
            return
        middle = start + indices.index_bytes(into.numel(), count)
        where = indices.decode(data[:, start:middle], into.numel(), count)
        tau = into.new_full((1, 1), self.tau)
        into.index_add_(0, where[0], signs.decode(data[:, middle:], -tau, tau, count, count)[0])
