r"""ATOMO: singular vectors kept at random, the strong ones more often, so that the result is right on average.

With M = Σ λᵢ uᵢ vᵢᵀ the singular value decomposition of one tensor's gradient (first dimension × the rest),

.. math::  C(M) = \sum_i \frac{t_i}{p_i}\, \lambda_i u_i v_i^\top, \quad t_i \sim \mathrm{Bernoulli}(p_i), \qquad
           p_i = \min\Big(1, \frac{(s - n)\, \lambda_i}{\sum_{j > n} \lambda_j}\Big)

for falling λ, s = `budget`, and n the number of atoms with p = 1: the smallest n for which all others stay below 1.
E[C(M)] = M, and s atoms are sent on average (or as many as M has). Draws are independent across workers. The variance,
of all unbiased choices with s atoms the least, is at most k/s − 1 times |M|², k the smaller side of M. It grows with
the tensor, so no omega is claimed, and error feedback is refused. Exact for matrices of rank <= s.
An all-gather of the atoms, beside an all-reduce of the vectors, and of the matrices for which
m·l <= min_rate·ceil(s)(m + l), which travel as they are.
Wire, for each worker: the number of atoms of each matrix, packed at as many bits as the largest possible number takes,
then 4 (m + l) bytes for each atom kept: u, and v times λ/p.

Departs from the paper in how the decomposition is computed: U from the eigenvectors of M Mᵀ (or V of MᵀM, if that is
smaller), λv = Mᵀu. It is faster, and Σ u (Mᵀu)ᵀ = M for any orthonormal U, so there is no bias.

Wang et al., ATOMO, NeurIPS 2018, arXiv:1806.04090, spectral-ATOMO.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from gradwire.codecs._parameters import checked
from gradwire.codecs.lowrank._matrices import Batch, assemble, plan, stacked
from gradwire.codecs.lowrank._spectrum import atoms, count_width, most_bytes, probabilities, summed
from gradwire.codecs.sparsification._ragged import ragged
from gradwire.core.codec import Codec, Combine, Context, Reduced, Traits, register
from gradwire.core.exchange import Exchange, Gather, Payload, Sum
from gradwire.core.random import Random
from gradwire.kernels import rows
from gradwire.kernels.bitpack import pack
from gradwire.kernels.random import uniform


@register
@dataclass(frozen=True)
class Atomo(Codec):
    """Send a random choice of the singular vectors of each matrix, strong ones more often, right on average.

    Args:
        budget: expected number of singular vectors to send of each matrix, 1e-6 to 1e6. More is more accurate.
        min_rate: factor a matrix only if it gets more than this many times smaller. 0 factors all.

    Example:
        >>> cluster = gradwire.VirtualCluster(workers=1, codec="atomo(budget=2)")
        >>> cluster.reduce({"w": [torch.ones(2, 3)]})["w"].round(decimals=4)  # a matrix of rank 1 is sent whole
        tensor([[1., 1., 1.],
                [1., 1., 1.]])
    """

    name: ClassVar[str] = "atomo"
    family: ClassVar[str] = "lowrank"
    paper: ClassVar[str] = "Wang et al., ATOMO, NeurIPS 2018, arXiv:1806.04090"
    plain_on_gpu: ClassVar[str] = "singular vectors come from torch.linalg"
    variants: ClassVar[tuple[str, ...]] = ("atomo(budget=1.5, min_rate=1)", "atomo(budget=20)")
    budget: float = 3
    min_rate: float = 0.0

    def __post_init__(self) -> None:
        checked(self).number("budget", self.budget, 1e-6, 1e6, "the expected number of atoms, from 1e-6 to 1e6")

    @property
    def traits(self) -> Traits:
        return Traits(combine=Combine.ROUNDS, unbiased=True, stochastic=True, fixed_size=False)

    def reduce(self, x: Tensor, ctx: Context) -> Reduced:
        batches, vectors = plan(ctx.layout, math.ceil(self.budget), self.min_rate)
        pieces = ctx.layout.split(x)
        plain = [pieces[i] for i in vectors]
        exchanges: list[Exchange] = []
        if vectors:
            exchanges.append(Sum(torch.cat(plain, 1) * (1.0 / ctx.workers)))
        mine: list[Payload] = []
        if batches:
            stacks = stacked(pieces, batches)
            sources = [ctx.rng.of((rank,), (0,)) for rank in ctx.ranks]
            mine = [self.encode_matrices([s[i] for s in stacks], batches, rng) for i, rng in enumerate(sources)]
            exchanges.append(Gather(ragged([one.data for one in mine]), most=most_bytes(batches)))
        answers = yield tuple(exchanges)
        means = answers[0].split([p.shape[1] for p in plain], 1) if vectors else ()
        totals = summed(answers[-1], batches) if batches else []
        mean = assemble(batches, [total[None] / ctx.workers for total in totals], vectors, means)
        if not ctx.wants_own:
            return mean, None
        own = [torch.stack(stack) for stack in zip(*(summed(one, batches) for one in mine), strict=True)]
        return mean, assemble(batches, own, vectors, plain)

    def encode_matrices(self, matrices: Sequence[Tensor], batches: Sequence[Batch], rng: Random) -> Payload:
        """One row: how many atoms each matrix keeps, then the atoms of each batch, short sides first."""
        split = [atoms(m) for m in matrices]
        chances = [probabilities(torch.linalg.vector_norm(long, dim=-1), self.budget) for _, long, _ in split]
        draws = uniform(rng.private("atoms"), (sum(p.numel() for p in chances),), chances[0].device)
        counts, parts = [], []
        drawn = torch.split(draws, [p.numel() for p in chances])
        for (short, long, scale), p, u in zip(split, chances, drawn, strict=True):
            kept = u.view(p.shape) < p
            kept[:, 0] |= scale.isnan()  # one atom carries the NaN
            counts.append(kept.sum(1))
            parts += [short[kept], long[kept] * (scale[:, None] / p)[kept][:, None]]
        data = rows.join(pack(torch.cat(counts)[None], count_width(batches)), *[t.reshape(1, -1) for t in parts])
        return Payload(data, torch.tensor([data.shape[1]]))
