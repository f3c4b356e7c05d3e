r"""Adaptive sparsification (Wangni et al.): unbiased, each coordinate with a probability that grows with its magnitude.

.. math::  p_i = \min(1, |x_i| / \tau), \qquad
           Q(x)_i = x_i \ \text{if}\ p_i = 1, \quad \tau\,\mathrm{sgn}(x_i) \ \text{with probability}\ p_i < 1,
           \quad \text{else } 0

τ (1/λ in the paper) is chosen so that at most `ratio`·n coordinates are expected: it starts at ‖x‖₁/(ratio·n), and each
of `sweeps` sweeps gives what the certain ones left over to the others, τ ← Σ|x_i| over p_i < 1, divided by ratio·n less
the number of certain ones. Of all unbiased sparsifications with as many coordinates this one has the least variance, up
to the sweeps. E‖Q(x)‖² = Σ x_i²/p_i ≤ ‖x‖² + τ‖x‖₁ ≤ ‖x‖² + ‖x‖₁²/(ratio·n) ≤ (1 + 1/ratio) ‖x‖², so omega = 1/ratio.
The size is random, and nothing may be sampled at all.
Wire: per row k_A and k_B in 4 bytes each, τ in 4; the k_A certain values in 4 bytes each; the indices of A and of B,
each set in its shortest coding, see `topk`; k_B sign bits. No byte at all where both sets are empty and τ is finite.

Wangni et al., Gradient Sparsification for Communication-Efficient Distributed Optimization, NeurIPS 2018,
arXiv:1710.09854, algorithms 1 and 3.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from gradwire.codecs.sparsification._sparse_payload import RowByRow, ragged, read, support_bytes, write
from gradwire.core.codec import Combine, Traits, register
from gradwire.core.exchange import Payload
from gradwire.core.random import Random
from gradwire.core.registry import Check
from gradwire.kernels import indices as index_sets
from gradwire.kernels import rows, signs
from gradwire.kernels.bitpack import packed_bytes
from gradwire.kernels.random import uniform


@register
@dataclass(frozen=True)
class Wangni(RowByRow):
    """Sampling by magnitude."""

    name: ClassVar[str] = "wangni"
    family: ClassVar[str] = "sparsification"
    paper: ClassVar[str] = "Wangni et al., NeurIPS 2018, arXiv:1710.09854"
    variants: ClassVar[tuple[str, ...]] = ("wangni(ratio=0.5, sweeps=0)",)
    ratio: float = 0.05
    sweeps: int = 2

    def __post_init__(self) -> None:
        check = Check(self.name)
        check.share("ratio", self.ratio)
        check.integer("sweeps", self.sweeps, 0)

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
            return x.new_empty((1, 0), dtype=torch.uint8)
        counts = torch.tensor([[a.shape[1], b.shape[1]]], dtype=torch.int32, device=x.device)
        return rows.join(
            counts,
            step.view(1, 1),
            write(x.gather(1, a), a, x.shape[1]),
            index_sets.encode(b, x.shape[1]),
            signs.encode(x.gather(1, b)),
        )

    def _add(self, data: Tensor, into: Tensor) -> None:
        numel = into.numel()
        counts, start = rows.take(data, 0, 2, torch.int32)
        step, start = rows.take(data, start, 1, torch.float32)
        in_a, in_b = counts[0].tolist()
        if not in_a and not in_b:  # sent because τ is not finite
            into.fill_(math.nan)
            return
        values, where = read(data[:, start:], numel, in_a)
        into.index_add_(0, where[0], values[0])
        start += support_bytes(numel, in_a)
        stop = start + index_sets.index_bytes(numel, in_b)
        where = index_sets.decode(data[:, start:stop], numel, in_b)
        into.index_add_(0, where[0], signs.decode(data[:, stop:], -step, step, max(in_b, 1), in_b)[0])
