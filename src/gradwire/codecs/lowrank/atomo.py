r"""ATOMO: singular vectors kept at random, the strong ones more often, so that the result is right on average.

With M = Σ λᵢ uᵢ vᵢᵀ the singular value decomposition of one tensor's gradient (first dimension × the rest),

.. math::  C(M) = \sum_i \frac{t_i}{p_i}\, \lambda_i u_i v_i^\top, \quad t_i \sim \mathrm{Bernoulli}(p_i), \qquad
           p_i = \min\Big(1, \frac{(s - n)\, \lambda_i}{\sum_{j > n} \lambda_j}\Big)

for falling λ, s = `budget`, and n the number of atoms with p = 1: the smallest n for which all others stay below 1.
E[C(M)] = M, and s atoms are sent on average (or as many as M has). The number varies: drawing again until it is s
would bias the result. Draws are independent across workers. The variance, of all unbiased choices with s atoms the
least, is at most k/s − 1 times |M|², k the smaller side of M. It grows with the tensor and depends on its spectrum, so
no omega is claimed, and error feedback is refused. Exact for matrices of rank <= s.
All-gather of the atoms, beside an all-reduce of the vectors, and of the matrices for which
m·l <= min_rate·ceil(s)(m + l), which travel as they are.
Wire, for each worker: the number of atoms of each matrix, packed at as many bits as the largest possible number takes,
then 4 (m + l) bytes for each atom kept: u, and v times λ/p.

Departs from the paper in how the decomposition is computed: U from the eigenvectors of M Mᵀ (or V of MᵀM, if that is
smaller), λv = Mᵀu. It is faster, and Σ u (Mᵀu)ᵀ = M for any orthonormal U, so that small singular values, which
squaring blurs, cost a little variance and no bias.

Wang et al., ATOMO, NeurIPS 2018, arXiv:1806.04090, spectral-ATOMO.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from gradwire.codecs.lowrank._matrices import Batch, assemble, plan, stacked, unit
from gradwire.codecs.sparsification._sparse_payload import ragged
from gradwire.core.codec import Codec, Combine, Context, Reduced, Traits, register
from gradwire.core.exchange import Exchange, Gather, Payload, Sum
from gradwire.core.random import Random
from gradwire.core.registry import Check
from gradwire.kernels import rows
from gradwire.kernels.bitpack import pack, packed_bytes, unpack
from gradwire.kernels.random import uniform


@register
@dataclass(frozen=True)
class Atomo(Codec):
    """Random atoms of the spectrum."""

    name: ClassVar[str] = "atomo"
    family: ClassVar[str] = "lowrank"
    paper: ClassVar[str] = "Wang et al., ATOMO, NeurIPS 2018, arXiv:1806.04090"
    variants: ClassVar[tuple[str, ...]] = ("atomo(budget=1.5, min_rate=1)", "atomo(budget=20)")
    budget: float = 3
    min_rate: float = 0.0

    def __post_init__(self) -> None:
        check = Check(self.name)
        check.number("budget", self.budget, 1e-6, 1e6, "the expected number of atoms, from 1e-6 to 1e6")
        check.number("min_rate", self.min_rate, 0, math.inf, "a compression rate of at least 0")

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
            exchanges.append(Gather(ragged([one.data for one in mine])))
        answers = yield tuple(exchanges)
        means = answers[0].split([p.shape[1] for p in plain], 1) if vectors else ()
        atoms = summed(answers[-1], batches) if batches else []
        mean = assemble(batches, [total[None] / ctx.workers for total in atoms], vectors, means)
        if not ctx.wants_own:
            return mean, None
        own = [torch.stack(stack) for stack in zip(*(summed(one, batches) for one in mine), strict=True)]
        return mean, assemble(batches, own, vectors, plain)

    def encode_matrices(self, matrices: Sequence[Tensor], batches: Sequence[Batch], rng: Random) -> Payload:
        """One row: how many atoms each matrix keeps, then the atoms of each batch, short sides first."""
        split = [_atoms(m) for m in matrices]
        chances = [probabilities(torch.linalg.vector_norm(long, dim=-1), self.budget) for _, long, _ in split]
        draws = uniform(rng.private("atoms"), (sum(p.numel() for p in chances),), chances[0].device)
        counts, parts = [], []
        drawn = torch.split(draws, [p.numel() for p in chances])
        for (short, long, scale), p, u in zip(split, chances, drawn, strict=True):
            kept = u.view(p.shape) < p
            kept[:, 0] |= scale.isnan()  # one atom carries the NaN
            counts.append(kept.sum(1))
            parts += [short[kept], long[kept] * (scale[:, None] / p)[kept][:, None]]
        data = rows.join(pack(torch.cat(counts)[None], _width(batches)), *[t.reshape(1, -1) for t in parts])
        return Payload(data, torch.tensor([data.shape[1]]))


def _atoms(matrices: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Short sides u, orthonormal, (matrices, k, k); long sides, (matrices, k, l); and the scale c: M = c Σ u longᵀ."""
    wide = matrices if matrices.shape[1] <= matrices.shape[2] else matrices.mT
    scaled = unit(wide).nan_to_num(0.0)
    short = torch.linalg.eigh(scaled @ scaled.mT).eigenvectors.mT
    return short, short @ scaled, wide.abs().amax((1, 2))


def probabilities(strengths: Tensor, budget: float) -> Tensor:
    """p for each row of singular values, in any order: proportional to them, at most 1, with sum `budget`."""
    ordered, order = strengths.double().sort(dim=1, descending=True)
    tails = ordered.flip(1).cumsum(1).flip(1)
    left = budget - torch.arange(ordered.shape[1], device=ordered.device, dtype=ordered.dtype)
    sure = ((left * ordered >= tails) & (ordered > 0)).cumprod(1)
    number = sure.sum(1, keepdim=True)
    tail = torch.cat([tails, torch.zeros_like(tails[:, :1])], 1).gather(1, number)
    shared = (budget - number) * ordered / torch.where(tail > 0, tail, 1.0)
    p = torch.where(sure > 0, 1.0, shared.clamp(max=1.0))
    return torch.zeros_like(p).scatter(1, order, p).to(strengths.dtype)


def _width(batches: Sequence[Batch]) -> int:
    """Bits of the number of atoms."""
    return max(min(b.height, b.width) for b in batches).bit_length()


def summed(payload: Payload, batches: Sequence[Batch]) -> list[Tensor]:
    """The matrices of each batch, (members, height, width), summed over the rows of the payload."""
    number, width = sum(len(b.members) for b in batches), _width(batches)
    head = packed_bytes(number, width)
    atoms: list[tuple[list[Tensor], list[Tensor]]] = [([], []) for _ in range(number)]  # of each matrix, from all rows
    for row, counts in enumerate(unpack(payload.data[:, :head], width, number).tolist()):
        start, first = head, 0
        for b in batches:
            mine = counts[first : first + len(b.members)]
            for side, length in enumerate(sorted((b.height, b.width))):
                values, start = rows.take(payload.data[row : row + 1], start, sum(mine) * length, torch.float32)
                for m, found in enumerate(torch.split(values.view(-1, length), mine)):
                    atoms[first + m][side].append(found)
            first += len(b.members)
    products = iter([torch.cat(short).mT @ torch.cat(long) for short, long in atoms])
    stacks = [torch.stack([next(products) for _ in b.members]) for b in batches]
    return [s if b.height <= b.width else s.mT for s, b in zip(stacks, batches, strict=True)]
