r"""Adaptive threshold: the largest positive and the largest negative coordinates, each side sent as its mean.

.. math::  C(a)_i = \frac{1}{|S^\pm|} \sum_{j \in S^\pm} a_j \ \ (i \in S^\pm), \qquad C(a)_i = 0 \ \text{elsewhere}

S⁺ holds the k largest positive coordinates, S⁻ the k largest negative ones, k = max(1, ceil(ratio·n/2)): where half of
the coordinates are positive, the share `ratio` of either side. A side that has fewer than k sends all it has, and
nothing else. The sum of each side comes out as it went in, and ‖a − C(a)‖² = ‖a‖² − Σ± |S±| mean±² ≤ ‖a‖², with no
better bound for all gradients (delta = 0). Runs with error feedback.
Wire: two means of 4 bytes, and two sets of k indices below n + k in the shortest coding, see
`gradwire.kernels.indices`; the k indices from n on stand for places that a short side leaves empty.

Departs from the paper in the thresholds: there they are estimated from a sample of the gradient, so that the number of
coordinates sent varies; here it is exact.

Dryden et al., Communication Quantization for Data-Parallel Training of Deep Neural Networks, MLHPC 2016.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from gradwire.codecs.sparsification._sparse_payload import kept
from gradwire.core.codec import Codec, Combine, Traits, register
from gradwire.core.exchange import Payload
from gradwire.core.random import Random
from gradwire.core.registry import Check
from gradwire.kernels import indices, rows
from gradwire.kernels.blockwise import abs_sum
from gradwire.kernels.scatter import scatter, scatter_sum
from gradwire.kernels.select import top


@register
@dataclass(frozen=True)
class AdaptiveThreshold(Codec):
    """The largest of both signs, as two means."""

    name: ClassVar[str] = "adaptivethreshold"
    family: ClassVar[str] = "hybrid"
    paper: ClassVar[str] = "Dryden et al., MLHPC 2016"
    variants: ClassVar[tuple[str, ...]] = ("adaptivethreshold(ratio=0.3)", "adaptivethreshold(ratio=1)")
    ratio: float = 0.01

    def __post_init__(self) -> None:
        Check(self.name).share("ratio", self.ratio)

    @property
    def traits(self) -> Traits:
        return Traits(combine=Combine.GATHER, memory="error_feedback", delta=0.0)

    def encode(self, x: Tensor, rng: Random) -> Payload:
        k = kept(self.ratio / 2, x.shape[1])
        (plus, high), (minus, low) = _side(x, k), _side(-x, k)
        reach = x.shape[1] + k
        return Payload(rows.join(plus, -minus, indices.encode(high, reach), indices.encode(low, reach)))

    def decode(self, payload: Payload, numel: int, rng: Random) -> Tensor:
        values, where, reach = self._read(payload, numel)
        return scatter(values, where, reach)[:, :numel].contiguous()

    def combine(self, payload: Payload, numel: int, rng: Random, groups: int = 1) -> Tensor:
        values, where, reach = self._read(payload, numel)
        return scatter_sum(values, where, reach, groups)[:, :numel].div_(payload.rows // groups)

    def payload_bytes(self, numel: int) -> int:
        k = kept(self.ratio / 2, numel)
        return 8 + 2 * indices.index_bytes(numel + k, k)

    def _read(self, payload: Payload, numel: int) -> tuple[Tensor, Tensor, int]:
        """Values of both sides and their places, distinct, those that count for nothing from `numel` on."""
        k = kept(self.ratio / 2, numel)
        means, start = rows.take(payload.data, 0, 2, torch.float32)
        middle = start + indices.index_bytes(numel + k, k)
        high = indices.decode(payload.data[:, start:middle], numel + k, k)
        low = indices.decode(payload.data[:, middle:], numel + k, k)
        low = torch.where(low < numel, low, low + k)
        return means.repeat_interleave(k, dim=1), torch.cat((high, low), dim=1), numel + 2 * k


def _side(x: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """The mean of the k largest positive elements of each row, (rows, 1), and their indices, ascending."""
    positive = x.clamp(min=0)
    where = top(positive, k)
    values = positive.gather(1, where)
    there = values.le(0).logical_not_()
    mean = abs_sum(values / there.sum(1, keepdim=True).clamp(min=1), k)
    empty = x.shape[1] + torch.arange(k, device=x.device)
    return mean, torch.where(there, where, empty).sort(dim=1).values
