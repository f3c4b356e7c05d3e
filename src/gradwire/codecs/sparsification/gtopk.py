r"""gTop-k: sums of k-sparse vectors, cut back to their k largest coordinates at each of log2 n pairwise merges.

.. math::  G^0_w = \mathrm{top}_k(a^w), \qquad
           G^{l+1}_w = \mathrm{top}_k\big(G^l_w + G^l_{w \oplus 2^l}\big), \qquad
           C(a) = \tfrac1n\, G^{\log_2 n}, \qquad k = \max(1, \lceil \text{ratio}\cdot d \rceil)

A butterfly: in round l worker w swaps its vector with worker w XOR 2^l, and both merge, to the same bits. Where n is no
power of two, the workers from 2^m = 2^floor(log2 n) on first hand their vectors to worker w − 2^m, and get the result
in a last round, with one bit a coordinate that says whether their own entry is in it.

A worker's own share is what of its entries is in the result. An entry that was cut off at any merge stays in the
memory, even if its coordinate comes back through another worker. With 16-bit values the sums are rounded at every
merge, and the first of the workers that contributed keeps the error. delta = 0 (1 where nothing is cut).
Wire: a row of k values of `value_bits` bits and k indices in the shortest coding, see `gradwire.kernels.indices`. Each
worker below 2^m sends m rows, where top-k by all-gather sends n − 1; the others send one, and those that serve them one
more, of ceil(k/8) bytes beyond.

Departs from the paper in the own share: its algorithm looks at the final support alone, and so loses entries.

Shi et al., A Distributed Synchronous SGD Algorithm with Global Top-k Sparsification for Low Bandwidth Networks, ICDCS
2019, arXiv:1901.04359.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from gradwire.codecs._parameters import checked
from gradwire.codecs.sparsification._sparse_payload import kept, rounded, support_bytes
from gradwire.codecs.sparsification._sparse_sums import Sparse, chosen, mask, merged
from gradwire.core.codec import Codec, Combine, Context, Flag, Reduced, Traits, register
from gradwire.core.exchange import Payload, Program, Route
from gradwire.core.window import Feedback, Window
from gradwire.kernels import rows
from gradwire.kernels.bitpack import pack, unpack
from gradwire.kernels.scatter import put_rows_to, scatter
from gradwire.kernels.select import top, top_from
from gradwire.kernels.window import compensate, one_launch


@register
@dataclass(frozen=True)
class GTopK(Codec):
    """Merge the workers' largest elements pair by pair, and keep only the largest of each sum.

    Args:
        ratio: share of the elements to send and to keep, in (0, 1]. 0.01 keeps 1 %.
        value_bits: of a sent value: 32 keeps it exact, 16 rounds it to half precision at every merge.

    Example:
        >>> cluster = gradwire.VirtualCluster(workers=2, codec="gtopk(ratio=0.5)")
        >>> cluster.reduce({"w": [torch.tensor([4.0, 1.0]), torch.tensor([2.0, 3.0])]})["w"]
        tensor([2., 0.])
    """

    name: ClassVar[str] = "gtopk"
    family: ClassVar[str] = "sparsification"
    paper: ClassVar[str] = "Shi et al., ICDCS 2019, arXiv:1901.04359"
    plain_on_gpu: ClassVar[str] = ""
    variants: ClassVar[tuple[str, ...]] = ("gtopk(ratio=0.3, value_bits=16)", "gtopk(ratio=1)")
    ratio: float = 0.01
    value_bits: int = 32

    def __post_init__(self) -> None:
        checked(self)

    @property
    def traits(self) -> Traits:
        whole = self.ratio == 1 and self.value_bits == 32
        delta = 1.0 if whole else 0.0
        return Traits(combine=Combine.ROUNDS, memory="error_feedback", delta=delta, sparse=True, ignores_shapes=True)

    def reduce(self, x: Tensor, ctx: Context) -> Reduced:
        where = top(x, kept(self.ratio, x.shape[1]))
        values, own, total = yield from self._merged(x.gather(1, where), where, x.shape[1], ctx)
        mean = scatter(values[:1], total[:1], x.shape[1])
        return mean, scatter(own, total, x.shape[1]) if ctx.wants_own else None

    def reduce_to(self, source: Window, target: Window, feedback: Feedback | None, ctx: Context) -> Program[Flag]:
        if ctx.moved or not (one_launch(source, feedback) and one_launch(target)):
            return (yield from super().reduce_to(source, target, feedback, ctx))
        numel, k = source.numel, kept(self.ratio, source.numel)
        x, bad = compensate(source, feedback)
        values, where = top_from(Window.whole(x), None, 1, numel, k)
        values = values.masked_fill(bad, math.nan)  # and the first, as of a row that is NaN throughout
        where = torch.where(bad, torch.arange(k, device=where.device), where)
        values, own, where = yield from self._merged(values, where, numel, ctx)
        if feedback is not None:
            x.scatter_(1, where, x.gather(1, where) - own)
            if feedback.momentum is not None:
                feedback.momentum.scatter_(1, where, torch.where(own != 0, 0.0, feedback.momentum.gather(1, where)))
        return put_rows_to(values[:1], where[:1], numel, target, 1.0)

    def _merged(
        self, values: Tensor, where: Tensor, numel: int, ctx: Context
    ) -> Program[tuple[Tensor, Tensor, Tensor]]:
        """Given the workers' largest elements, (rows, k): what the mean has, each worker's own part, and where."""
        n, device, k = ctx.workers, where.device, where.shape[1]
        levels = n.bit_length() - 1
        base = 1 << levels
        unit = 0.5 ** (n - 1).bit_length()  # sums over the workers stay in the range of their values
        values = rounded(values * unit, self.value_bits)
        state = Sparse.new(values, where)

        guests = tuple(r + base if r + base < n else None for r in ctx.ranks)  # hand their vectors in here
        hosts = tuple(r - base if r >= base else None for r in ctx.ranks)
        if base < n:
            row = yield Route(Payload(state.row(numel, self.value_bits)), to=hosts, source=guests)
            there = Sparse.read(row.data, numel, k, self.value_bits)
            both = merged(state, there, mask([True] * len(where), device), self.value_bits, follow=True)
            state = chosen(mask([g is not None for g in guests], device), both, state)
        for level in range(levels):
            peers = tuple(r ^ (1 << level) if r < base else None for r in ctx.ranks)
            relay = level > 0 or base < n
            row = yield Route(Payload(state.row(numel, self.value_bits)), to=peers, source=peers, relay=relay)
            there = Sparse.read(row.data, numel, k, self.value_bits)
            first = mask([r % (2 << level) == 0 for r in ctx.ranks], device)
            both = merged(state, there, first, self.value_bits)
            state = chosen(mask([r < base for r in ctx.ranks], device), both, state)
        own, total = state.own, state
        if base < n:
            result = rows.join(state.row(numel, self.value_bits), pack(state.guest != 0, 1))  # what is of the guest
            row = yield Route(Payload(result), to=guests, source=hosts, relay=True)
            final = Sparse.read(row.data, numel, k, self.value_bits)
            alive = unpack(row.data[:, support_bytes(numel, k, self.value_bits) :], 1, k) != 0
            served = mask([h is not None for h in hosts], device)
            own = torch.where(served, torch.where(alive, state.at(state.own, final.where), 0.0), own)
            total = chosen(served, final, state)
        return total.values / (unit * n), own / unit, total.where
