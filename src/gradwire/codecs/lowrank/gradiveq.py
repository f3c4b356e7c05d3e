r"""GradiVeQ: slices of the gradient in a basis of principal components that is learnt anew in each cycle.

Each tensor's gradient is cut into slices g of K = `slice` elements. In a cycle of `cycle` steps the first `train` send
everything as it is. The slices of their averaged gradients give U, the K × d' matrix (d' = `kept`) of leading principal
components. In all other steps of the cycle

.. math::  c = U^\top g, \qquad C(g) = U c, \qquad U^\top U = I

The code is linear, so codes are all-reduced. C is a projection: what is left never exceeds the gradient (delta = 0),
and is zero for slices in the span of U. It runs with error feedback; what the cycle has left out is then sent by the
next cycle's first step. ``centre=True`` is the paper's form with the mean slice μ taken off, c = Uᵀ(g − μ) and
C(g) = U c + μ. That is no projection, so it claims no delta and runs without memory.
Wire: 4 d' bytes a slice in a compressed step, 4 bytes an element in the others; each tensor's last elements that fill
no slice, and tensors of fewer than K elements, as they are. The last training step also sends U (and μ), 4 d' K bytes a
tensor: rank 0 gives it and the others zeros, so that all workers hold the same bits.

Rank 0 keeps, for each tensor and until U is made, the training slices, or their triangular factor if they are more
than K. A step without a known basis keeps the first d' elements of each slice. The lengths of cycle and training are
this library's choice.

Yu et al., GradiVeQ, NeurIPS 2018, arXiv:1811.03617.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from gradwire.codecs._parameters import checked
from gradwire.codecs.lowrank._components import ROOT, grown, known_basis, share_bases
from gradwire.codecs.lowrank._matrices import averaged
from gradwire.codecs.lowrank._slices import cut, paste
from gradwire.core.codec import Codec, Combine, Context, Reduced, Traits, register


@register
@dataclass(frozen=True)
class GradiVeQ(Codec):
    """Cut the gradient into slices, and send each in a small basis that is learnt anew in each cycle.

    Args:
        slice: elements of a slice, at least 1. 512 fits layers of a few thousand elements and up.
        kept: numbers to send of each slice, 1 to `slice`. 64 of 512 is an eighth.
        train: steps at the start of a cycle that send everything and learn the basis, at least 1.
        cycle: steps after which the basis is learnt again, more than `train`.
        centre: take the mean slice off first, as in the paper; then without error feedback.

    Example:
        >>> cluster = gradwire.VirtualCluster(workers=2, codec="gradiveq(slice=16, kept=4, train=1, cycle=10)")
        >>> for step in range(2):
        ...     _ = cluster.reduce({"w": [torch.randn(1600), torch.randn(1600)]})
        >>> cluster.payload_bytes  # of 6400
        1600
    """

    name: ClassVar[str] = "gradiveq"
    family: ClassVar[str] = "lowrank"
    paper: ClassVar[str] = "Yu et al., GradiVeQ, NeurIPS 2018, arXiv:1811.03617"
    plain_on_gpu: ClassVar[str] = "singular vectors come from torch.linalg"
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
        check = checked(self)
        check.integer("slice", self.slice, 1)
        check.integer("kept", self.kept, 1, self.slice)
        check.integer("train", self.train, 1)
        check.integer("cycle", self.cycle, self.train + 1)

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
        heads, tails = cut(x, ctx.layout, self.slice)
        known = {name: known_basis(name, self.slice, self.kept, self.centre, ctx, x.device) for name in heads}
        pairs = zip(heads.values(), known.values(), strict=True)
        # row by row: one product of all rows would round otherwise, and a basis can turn on the last bit
        codes = [torch.stack([row @ u for row in (g if mu is None else g - mu)]) for g, (u, mu) in pairs]
        mine = [*codes, *tails.values()]

        def decode(parts: list[Tensor]) -> Tensor:
            slices = {
                name: torch.stack([c @ u.mT if mu is None else torch.addmm(mu, c, u.mT) for c in code])
                for code, (name, (u, mu)) in zip(parts, known.items(), strict=False)
            }
            return paste(slices, dict(zip(tails, parts[len(slices) :], strict=True)))

        means = yield from averaged(mine, ctx)
        return decode(means), decode(mine) if ctx.wants_own else None

    def _train(self, x: Tensor, ctx: Context, phase: int) -> Reduced:
        (mean,) = yield from averaged([x], ctx)
        heads, _ = cut(mean, ctx.layout, self.slice)
        first = heads if 0 in ctx.ranks else {}
        roots = {name: grown(name, slices[0], self.centre, phase == 0, ctx) for name, slices in first.items()}
        if phase < self.train - 1:
            for name, root in roots.items():
                ctx.state.put(ROOT, name, root)
        elif heads:
            yield from share_bases(list(heads), list(roots.values()), self.slice, self.kept, self.centre, x, ctx)
        return mean, x
