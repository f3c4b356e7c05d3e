r"""Adaptive sparsification (Wangni et al.): unbiased, each coordinate with a probability that grows with its magnitude.

.. math::  p_i = \min(1, |x_i| / \tau), \qquad
           Q(x)_i = x_i \ \text{if}\ p_i = 1, \quad \tau\,\mathrm{sgn}(x_i) \ \text{with probability}\ p_i < 1,
           \quad \text{else } 0

τ (1/λ in the paper) is chosen so that at most `ratio`·n coordinates are expected: it starts at ‖x‖₁/(ratio·n), and each
of `sweeps` sweeps sets it to Σ|x_i| over p_i < 1, divided by ratio·n less the number of certain ones. Of all unbiased
sparsifications with as many coordinates this one has the least variance, up to the sweeps.
E‖Q(x)‖² = Σ x_i²/p_i ≤ ‖x‖² + τ‖x‖₁ ≤ ‖x‖² + ‖x‖₁²/(ratio·n) ≤ (1 + 1/ratio) ‖x‖², so omega = 1/ratio.
Wire: per row k_A and k_B in 4 bytes each, τ in 4; the k_A certain values in 4 bytes each; the indices of A and of B,
each set in its shortest coding, see `topk`; k_B sign bits. No byte at all where both sets are empty and τ is finite.

Wangni et al., Gradient Sparsification for Communication-Efficient Distributed Optimization, NeurIPS 2018,
arXiv:1710.09854, algorithms 1 and 3.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from gradwire.codecs._parameters import checked
from gradwire.codecs.sparsification._ragged import RowByRow, all_nan, no_bytes, ragged
from gradwire.codecs.sparsification._sparse_payload import read, read_signs, support_bytes, write, write_signs
from gradwire.core.codec import Combine, Traits, register
from gradwire.core.exchange import Payload
from gradwire.core.random import Random
from gradwire.kernels import rows
from gradwire.kernels.bitpack import packed_bytes
from gradwire.kernels.random import uniform


@register
@dataclass(frozen=True)
class Wangni(RowByRow):
    """Send elements at random, large ones more often, so that the result is right on average.

    Args:
        ratio: expected share of the elements to send, in (0, 1]. The variance grows as 1/ratio.
        sweeps: rounds that spend what large elements, which are always sent, leave of the budget. 2 as published.

    Example:
        >>> gradwire.VirtualCluster(1, "wangni(ratio=1)").reduce({"w": [torch.tensor([2.0, 2.0, 2.0])]})["w"]
        tensor([2., 2., 2.])
    """

    name: ClassVar[str] = "wangni"
    family: ClassVar[str] = "sparsification"
    paper: ClassVar[str] = "Wangni et al., NeurIPS 2018, arXiv:1710.09854"
    plain_on_gpu: ClassVar[str] = "how many elements are sent changes from step to step"
    variants: ClassVar[tuple[str, ...]] = ("wangni(ratio=0.5, sweeps=0)",)
    ratio: float = 0.05
    sweeps: int = 2

    def __post_init__(self) -> None:
        checked(self).integer("sweeps", self.sweeps, 0)

    @property
    def traits(self) -> Traits:
        return Traits(combine=Combine.GATHER, unbiased=True, omega=1 / self.ratio, stochastic=True, fixed_size=False)

    def encode(self, x: Tensor, rng: Random) -> Payload:
        magnitude = x.abs()
        step = self.step(magnitude)
        certain = (magnitude >= step) & (magnitude > 0)
        drawn = (uniform(rng.private("draw"), x.shape, x.device) + 2.0**-25) * step < magnitude
        drawn &= ~certain
        return ragged([self._row(x[i : i + 1], step[i], certain[i], drawn[i]) for i in range(x.shape[0])])

    def step(self, magnitude: Tensor) -> Tensor:
        """τ of each row: (rows, 1) float32."""
        budget = self.ratio * magnitude.shape[1]
        step = (magnitude.sum(1, keepdim=True, dtype=torch.float64) / budget).float()
        for _ in range(self.sweeps):
            inside = magnitude < step
            left = budget - inside.logical_not().sum(1, keepdim=True)
            total = torch.where(inside, magnitude, 0.0).sum(1, keepdim=True, dtype=torch.float64)
            better = (total / left).float()
            step = torch.where((left > 0) & (better > 0), torch.minimum(step, better), step)
        return step

    def payload_bytes(self, numel: int) -> int:
        return 8 + 12 + 4 * numel + 3 * packed_bytes(numel, 1)

    def _row(self, x: Tensor, step: Tensor, certain: Tensor, drawn: Tensor) -> Tensor:
        """One row's bytes."""
        a, b = (mask.nonzero().view(1, -1) for mask in (certain, drawn))
        if not a.shape[1] and not b.shape[1] and bool(step.isfinite()):
            return no_bytes(x)
        counts = torch.tensor([[a.shape[1], b.shape[1]]], dtype=torch.int32, device=x.device)
        return rows.join(
            counts,
            step.view(1, 1),
            write(x.gather(1, a), a, x.shape[1], steady=False),
            write_signs(x.gather(1, b), b, x.shape[1]),
        )

    def entries(self, data: Tensor, numel: int) -> tuple[Tensor, Tensor]:
        counts, start = rows.take(data, 0, 2, torch.int32)
        step, start = rows.take(data, start, 1, torch.float32)
        in_a, in_b = counts[0].tolist()
        if not in_a and not in_b:  # sent because τ is not finite
            return all_nan(data, numel)
        values, sure = read(data[:, start:], numel, in_a, steady=False)
        start += support_bytes(numel, in_a)
        signed, drawn = read_signs(data[:, start:], numel, in_b, step)
        where, order = torch.cat((sure[0], drawn[0])).sort()
        return torch.cat((values[0], signed[0]))[order], where
