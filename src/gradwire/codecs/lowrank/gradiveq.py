r"""GradiVeQ: slices of the gradient in a basis of principal components that is learnt anew in each cycle.

Each tensor's gradient is cut into slices g of K = `slice` elements. In a cycle of `cycle` steps the first `train` send
everything as it is. The slices of their averaged gradients give U, the K × d' matrix (d' = `kept`) of leading principal
components. In all other steps of the cycle

.. math::  c = U^\top g, \qquad C(g) = U c, \qquad U^\top U = I

The code is linear, so codes are all-reduced: the code of the sum is the sum of the codes. C is a projection: what is
left never exceeds the gradient (delta = 0), and is exact for slices in the span of U. It runs with error feedback,
as is recommended; what the cycle has left out is then sent by the next cycle's first step.
``centre=True`` is the paper's form with the mean slice μ taken off, c = Uᵀ(g − μ) and C(g) = U c + μ. That is no
projection: what is left may exceed the gradient, so it claims no delta and runs without memory.
Wire: 4 d' bytes a slice in a compressed step, 4 bytes an element in the others; each tensor's last elements that fill
no slice, and tensors of fewer than K elements, as they are. The last training step also sends U (and μ), 4 d' K bytes a
tensor: rank 0 gives it and the others zeros, so that all workers hold the same bits whatever their machines compute.

Rank 0 keeps, for each tensor and until U is made, the training slices, or their triangular factor if they are more
than K: K² numbers at most, and never more than `train` gradients. A step without a known basis (the state was not
loaded, say) keeps the first d' elements of each slice. Sizes are traced at the first compressed step.
The lengths of cycle and training are this library's choice.

Yu et al., GradiVeQ, NeurIPS 2018, arXiv:1811.03617.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from gradwire.codecs.lowrank._matrices import averaged, unit
from gradwire.core.codec import Codec, Combine, Context, Reduced, Traits, register
from gradwire.core.exchange import Sum
from gradwire.core.layout import Layout
from gradwire.core.registry import Check

ROOT = "root"  # kinds of state: R with RᵀR = the sum of g gᵀ over the training slices so far,
BASIS = "basis"  # U,
CENTRE = "centre"  # and μ


@register
@dataclass(frozen=True)
class GradiVeQ(Codec):
    """Principal components of slices."""

    name: ClassVar[str] = "gradiveq"
    family: ClassVar[str] = "lowrank"
    paper: ClassVar[str] = "Yu et al., GradiVeQ, NeurIPS 2018, arXiv:1811.03617"
    variants: ClassVar[tuple[str, ...]] = (
        "gradiveq(slice=16, kept=4, train=1, cycle=3)",
        "gradiveq(slice=16, kept=4, train=2, cycle=4, centre=True)",
    )
    slice: int = 512
    kept: int = 64
    train: int = 10
    cycle: int = 100
    centre: bool = False

    def __post_init__(self) -> None:
        check = Check(self.name)
        check.integer("slice", self.slice, 1)
        check.integer("kept", self.kept, 1, self.slice)
        check.integer("train", self.train, 1)
        check.integer("cycle", self.cycle, self.train + 1)
        check.one_of("centre", self.centre, (True, False))

    @property
    def traits(self) -> Traits:
        if self.centre:
            return Traits(combine=Combine.ROUNDS, odd=False, homogeneous=False)
        return Traits(combine=Combine.ROUNDS, memory="error_feedback", delta=0.0)

    @property
    def steady_from_step(self) -> int:
        return self.train

    def reduce(self, x: Tensor, ctx: Context) -> Reduced:
        phase = ctx.rng.step % self.cycle
        return (yield from self._compress(x, ctx) if phase >= self.train else self._train(x, ctx, phase))

    def _compress(self, x: Tensor, ctx: Context) -> Reduced:
        heads, tails = self._cut(x, ctx.layout)
        known = {name: self._known(name, x, ctx) for name in heads}
        pairs = zip(heads.values(), known.values(), strict=True)
        # row by row: one product of all rows would round otherwise, and a basis can turn on the last bit
        codes = [torch.stack([row @ u for row in (g if mu is None else g - mu)]) for g, (u, mu) in pairs]
        mine = [*codes, *tails.values()]

        def decode(parts: list[Tensor]) -> Tensor:
            slices = {
                name: torch.stack([c @ u.mT if mu is None else torch.addmm(mu, c, u.mT) for c in code])
                for code, (name, (u, mu)) in zip(parts, known.items(), strict=False)
            }
            return _paste(slices, dict(zip(tails, parts[len(slices) :], strict=True)))

        means = yield from averaged(mine, ctx)
        return decode(means), decode(mine) if ctx.wants_own else None

    def _train(self, x: Tensor, ctx: Context, phase: int) -> Reduced:
        (mean,) = yield from averaged([x], ctx)
        heads, _ = self._cut(mean, ctx.layout)
        first = heads if 0 in ctx.ranks else {}
        roots = {name: self._grow(name, slices[0], phase, ctx) for name, slices in first.items()}
        if phase < self.train - 1:
            for name, root in roots.items():
                ctx.state.put(ROOT, name, root)
        elif heads:
            given = x.new_zeros((len(x), len(heads), self.slice, self.kept + self.centre))
            for i, root in enumerate(roots.values()):
                given[0, i] = self._principal(root)
            taken = yield Sum(given)
            for name, part in zip(heads, taken[0], strict=True):
                ctx.state.forget(ROOT, name)
                ctx.state.put(BASIS, name, part[:, : self.kept])
                if self.centre:
                    ctx.state.put(CENTRE, name, part[:, self.kept])
        return mean, x

    def _cut(self, x: Tensor, layout: Layout) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """Slices, (rows, number, K), of the tensors that have any; what is left of each tensor, (rows, left)."""
        pieces = dict(zip(layout.names, layout.split(x), strict=True))
        whole = {name: piece.shape[1] // self.slice * self.slice for name, piece in pieces.items()}
        heads = {n: piece[:, : whole[n]].reshape(len(x), -1, self.slice) for n, piece in pieces.items() if whole[n]}
        return heads, {name: piece[:, whole[name] :] for name, piece in pieces.items()}

    def _known(self, name: str, x: Tensor, ctx: Context) -> tuple[Tensor, Tensor | None]:
        """U, and μ in today's units if it is wanted, as the last training left them."""
        basis, centre = ctx.state.get(BASIS, name), ctx.state.get(CENTRE, name)
        first = torch.eye(self.slice, self.kept, device=x.device)
        if basis is None or basis.shape != first.shape:
            basis = first
        basis = torch.where(basis.any(), basis, first)  # where the host never waits, a bad step leaves zeros behind
        if not self.centre or centre is None or centre.shape != (self.slice,):
            return basis, None
        centre = centre * ctx.rescale
        ctx.state.put(CENTRE, name, centre)
        return basis, centre

    def _grow(self, name: str, slices: Tensor, phase: int, ctx: Context) -> Tensor:
        """R with these slices under it; with a column of ones before it if the mean is wanted."""
        root = torch.cat([slices.new_ones((len(slices), 1)), slices], 1) if self.centre else slices
        kept = ctx.state.get(ROOT, name) if phase else None
        if kept is not None and kept.shape[1] == root.shape[1]:
            scaled = torch.cat([kept[:, : self.centre], kept[:, self.centre :] * ctx.rescale], 1)
            root = torch.cat([scaled, root])
        return root if root.shape[0] <= root.shape[1] else torch.linalg.qr(root, mode="r").R

    def _principal(self, root: Tensor) -> Tensor:
        """U, (K, d'), and μ as one more column if it is wanted."""
        centre = []
        if self.centre:  # the first row of the factor of [1 | g] is √N [1 | μ], the rest is that of the g − μ
            root = torch.linalg.qr(root, mode="r").R
            centre = [(root[0, 1:] / root[0, 0])[:, None]]
            root = F.pad(root[1:, 1:], (0, 0, 0, 1))  # one slice alone would leave no row
        exact = unit(root).nan_to_num(0.0).double()  # a step that is not finite leaves no basis behind
        basis = torch.linalg.eigh(exact.mT @ exact).eigenvectors.flip(1)[:, : self.kept]
        return torch.cat([basis.to(root.dtype), *centre], 1)


def _paste(heads: dict[str, Tensor], tails: dict[str, Tensor]) -> Tensor:
    """The flat units again, a row each."""
    parts = []
    for name, tail in tails.items():
        parts += [heads[name].flatten(1), tail] if name in heads else [tail]
    return torch.cat(parts, 1)
