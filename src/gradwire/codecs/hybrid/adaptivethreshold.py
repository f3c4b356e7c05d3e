r"""Adaptive threshold: the largest positive and the largest negative coordinates, each side sent as its mean.

.. math::  C(a)_i = \frac{1}{|S^\pm|} \sum_{j \in S^\pm} a_j \ \ (i \in S^\pm), \qquad C(a)_i = 0 \ \text{elsewhere}

S⁺ holds the k largest positive coordinates, S⁻ the k largest negative ones, k = max(1, ceil(ratio·n/2)); a side that
has fewer sends all it has. The sum of each side comes out as it went in, and ‖a − C(a)‖² = ‖a‖² − Σ± |S±| mean±² ≤
‖a‖², with no better bound for all gradients (delta = 0). Runs with error feedback.
Wire: two means of 4 bytes, and two sets of k indices in the shortest coding; those from n on stand for empty places.

Departs from the paper in k, which is exact here; there thresholds are estimated from a sample.

Dryden et al., Communication Quantization for Data-Parallel Training of Deep Neural Networks, MLHPC 2016.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from gradwire.codecs._parameters import checked
from gradwire.codecs.hybrid._sides import largest_positive
from gradwire.codecs.sparsification._entries import EntriesCodec
from gradwire.codecs.sparsification._sparse_payload import kept
from gradwire.core.codec import Combine, Flag, Traits, register
from gradwire.core.exchange import Payload
from gradwire.core.random import Random
from gradwire.core.window import Feedback, Window
from gradwire.kernels import indices, rows, sides
from gradwire.kernels.scatter import sums_to
from gradwire.kernels.window import one_launch


@register
@dataclass(frozen=True)
class AdaptiveThreshold(EntriesCodec):
    """Send where the largest positive and negative elements are, and one mean for each of the two signs.

    Args:
        ratio: share of the elements to send, in (0, 1], half of them for each sign. 0.01 sends 1 %.

    Example:
        >>> cluster = gradwire.VirtualCluster(workers=1, codec="adaptivethreshold(ratio=0.5)")
        >>> cluster.reduce({"w": [torch.tensor([6.0, -5.0, 4.0, -1.0, 0.0, 1.0, -3.0, 0.0])]})["w"]
        tensor([ 5., -4.,  5.,  0.,  0.,  0., -4.,  0.])
    """

    name: ClassVar[str] = "adaptivethreshold"
    family: ClassVar[str] = "hybrid"
    paper: ClassVar[str] = "Dryden et al., MLHPC 2016"
    plain_on_gpu: ClassVar[str] = ""
    variants: ClassVar[tuple[str, ...]] = ("adaptivethreshold(ratio=0.3)", "adaptivethreshold(ratio=1)")
    ratio: float = 0.01

    def __post_init__(self) -> None:
        checked(self)

    @property
    def traits(self) -> Traits:
        return Traits(combine=Combine.GATHER, memory="error_feedback", delta=0.0)

    def encode(self, x: Tensor, rng: Random) -> Payload:
        k = kept(self.ratio / 2, x.shape[1])
        (plus, high), (minus, low) = largest_positive(x, k), largest_positive(-x, k)
        reach = x.shape[1] + k
        return Payload(rows.join(plus, -minus, indices.encode(high, reach), indices.encode(low, reach)))

    def encode_from(
        self, source: Window, feedback: Feedback | None, shards: int, shard: int, rng: Random, factor: float = 1.0
    ) -> Payload:
        if not one_launch(source, feedback):
            return super().encode_from(source, feedback, shards, shard, rng, factor)
        k = kept(self.ratio / 2, shard)
        means, places = sides.send_from(source, feedback, shards, shard, k, factor)
        return Payload(rows.join(means, indices.encode(places, shard + k).view(len(means), -1)))

    def payload_bytes(self, numel: int) -> int:
        k = kept(self.ratio / 2, numel)
        return 8 + 2 * indices.index_bytes(numel + k, k)

    def reach(self, numel: int) -> int:
        return numel + 2 * kept(self.ratio / 2, numel)

    def combine(self, payload: Payload, numel: int, rng: Random, groups: int = 1) -> Tensor:
        out = torch.empty((groups, numel), device=payload.data.device)
        if not one_launch(Window.whole(out)):
            return super().combine(payload, numel, rng, groups)
        sums_to(*self._lines(payload, numel), 1, numel, payload.rows // groups, Window.whole(out), 1.0)
        return out

    def combine_to(self, payload: Payload, target: Window, rng: Random, factor: float = 1.0) -> Flag:
        if not one_launch(target):
            return super().combine_to(payload, target, rng, factor)
        numel = target.numel
        return sums_to(*self._lines(payload, numel), 1, numel, payload.rows, target, factor)

    def decode_to(self, payload: Payload, target: Window, shard: int, rng: Random, factor: float = 1.0) -> Flag:
        if not one_launch(target):
            return super().decode_to(payload, target, shard, rng, factor)
        return sums_to(*self._lines(payload, shard), payload.rows, shard, 1, target, factor)

    def _lines(self, payload: Payload, numel: int) -> tuple[Tensor, Tensor]:
        """Values and indices of both sides of each row, one after the other: (2·rows, k)."""
        k = kept(self.ratio / 2, numel)
        means, start = rows.take(payload.data, 0, 2, torch.float32)
        size = indices.index_bytes(numel + k, k)
        data = payload.data[:, start : start + 2 * size].reshape(-1, size)
        return means.view(-1, 1).expand(-1, k), indices.decode(data, numel + k, k)

    def entries(self, payload: Payload, numel: int, rng: Random) -> tuple[Tensor, Tensor]:
        k = kept(self.ratio / 2, numel)
        means, start = rows.take(payload.data, 0, 2, torch.float32)
        middle = start + indices.index_bytes(numel + k, k)
        high = indices.decode(payload.data[:, start:middle], numel + k, k)
        low = indices.decode(payload.data[:, middle:], numel + k, k)
        low = torch.where(low < numel, low, low + k)  # empty places of both sides are distinct
        return means.repeat_interleave(k, dim=1), torch.cat((high, low), dim=1)
