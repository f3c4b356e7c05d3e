r"""MSTopK: top-k by a bisected threshold, which accelerators find faster than an exact selection.

With c(t) the number of |a_i| ≥ t, `rounds` halvings between the mean and the maximum of |a| (or between 0 and the mean,
if fewer than k reach the mean) leave two thresholds t₂ ≤ t₁ with c(t₁) ≤ k ≤ c(t₂). Sent are

.. math::  \{i : |a_i| \ge t_1\} \ \cup\ \text{a run of}\ k - c(t_1)\ \text{elements of the band}\
           \{i : t_2 \le |a_i| < t_1\}, \qquad k = \max(1, \lceil \text{ratio}\cdot n \rceil)

The run follows the order of indices from a random start, which all workers share, and continues at the beginning of the
band where it reaches its end. So exactly k are sent, each element of the band is as likely to be sent as any other, and
E‖a − C(a)‖² ≤ (1 − k/n) ‖a‖²: delta = k/n; runs with error feedback. All counts are taken on the device, `WAYS` − 1
thresholds at a time; the host waits for nothing.
Wire: as `topk`.

Departs from the paper where fewer than k elements reach the mean: the bisection goes on below it, instead of a run from
the band [0, mean).

Shi et al., Towards Scalable Distributed Training of Deep Learning on Public Cloud Clusters, MLSys 2021,
arXiv:2010.10458, algorithm 1.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from gradwire.codecs.sparsification.topk import TopK
from gradwire.core.codec import register
from gradwire.core.exchange import Payload
from gradwire.core.random import Random
from gradwire.core.registry import Check
from gradwire.core.window import Feedback, Window
from gradwire.kernels import band
from gradwire.kernels.band import WAYS
from gradwire.kernels.bitpack import pack
from gradwire.kernels.indices import decode as positions
from gradwire.kernels.random import words
from gradwire.kernels.select import count_above
from gradwire.kernels.window import one_launch


@register
@dataclass(frozen=True)
class MSTopK(TopK):
    """Send the elements of largest magnitude, found by bisection, which is fast on accelerators.

    Args:
        ratio: share of the elements to send, in (0, 1]. 0.01 sends 1 %.
        value_bits: of a sent value: 32 keeps it exact, 16 rounds it to half precision.
        index: how indices are packed, see `topk`.
        rounds: halvings of the interval in which the threshold lies, at least 1. After 30 it is nearly exact.

    Example:
        >>> gradwire.VirtualCluster(1, "mstopk(ratio=0.4)").reduce({"w": [torch.arange(5.0)]})["w"]
        tensor([0., 0., 0., 3., 4.])
    """

    name: ClassVar[str] = "mstopk"
    paper: ClassVar[str] = "Shi et al., MLSys 2021, arXiv:2010.10458"
    plain_on_gpu: ClassVar[str] = ""
    variants: ClassVar[tuple[str, ...]] = ("mstopk(ratio=0.3, rounds=3, value_bits=16)", "mstopk(ratio=0.9)")
    rounds: int = 30

    def __post_init__(self) -> None:
        super().__post_init__()
        Check(self.name).integer("rounds", self.rounds, 1)

    @property
    def selects_exactly(self) -> bool:
        return False

    def encode(self, x: Tensor, rng: Random) -> Payload:
        if one_launch(Window.whole(x)):
            return self.encode_from(Window.whole(x), None, 1, x.shape[1], rng)
        return super().encode(x, rng)

    def encode_from(
        self, source: Window, feedback: Feedback | None, shards: int, shard: int, rng: Random, factor: float = 1.0
    ) -> Payload:
        if not one_launch(source, feedback):
            return super().encode_from(source, feedback, shards, shard, rng, factor)
        how = self.count(shard, rng), self._steps, self.value_bits, factor, rng.shared("start")
        return self._written_row(*band.send_from(source, feedback, shards, shard, *how), shard)

    @property
    def _steps(self) -> int:
        return math.ceil(self.rounds / math.log2(WAYS))

    def pick(self, x: Tensor, rng: Random) -> tuple[Tensor, Tensor]:
        k, magnitude = self.count(x.shape[1], rng), x.abs()
        mean = magnitude.mean(1, keepdim=True, dtype=torch.float64).float()
        bad = mean * 0  # 0, or NaN if the row is not finite; comparisons below then put the whole row into the band
        low, high = self._bisect(x, k, mean, magnitude.amax(1, keepdim=True), bad)
        sure = magnitude >= high
        between = (magnitude >= low).logical_or_(low.isnan()).logical_and_(~sure)
        missing = (k - sure.sum(1, keepdim=True)).int()
        rank = between.cumsum(1, dtype=torch.int32)  # from 1 on
        size = rank[:, -1:]
        start = (words(rng.shared("start"), (x.shape[0], 1), x.device) * size >> 32).int()
        start = torch.where(bad == 0, start, 0)  # behind the end of a shard nobody would see the NaN
        turned = rank - (start + 1)
        run = ((turned >= 0) & (turned < missing)) | (turned < missing - size)
        where = positions(pack(sure | (between & run), 1), x.shape[1], k, "bitmap")
        return x.gather(1, where) + bad, where

    def _bisect(self, x: Tensor, k: int, mean: Tensor, largest: Tensor, bad: Tensor) -> tuple[Tensor, Tensor]:
        """Two thresholds a row, t₂ and t₁, with at least and at most k magnitudes that reach them."""
        enough = count_above(x, mean) > k
        low = torch.where(enough, mean, 0.0) + bad
        high = torch.where(enough, math.inf, mean) + bad
        parts = torch.arange(1, WAYS, device=x.device) / WAYS
        for _ in range(self._steps):
            tried = low + (torch.minimum(high, largest) - low) * parts
            over = count_above(x, tried) > k
            low = torch.maximum(low, torch.where(over, tried, 0.0).amax(1, keepdim=True))
            high = torch.minimum(high, torch.where(over, math.inf, tried).amin(1, keepdim=True))
        return low, high
