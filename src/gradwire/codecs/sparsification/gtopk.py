r"""gTop-k: sums of k-sparse vectors, cut back to their k largest coordinates at each of log2 n pairwise merges.

.. math::  G^0_w = \mathrm{top}_k(a^w), \qquad
           G^{l+1}_w = \mathrm{top}_k\big(G^l_w + G^l_{w \oplus 2^l}\big), \qquad
           C(a) = \tfrac1n\, G^{\log_2 n}, \qquad k = \max(1, \lceil \text{ratio}\cdot d \rceil)

A butterfly: in round l worker w swaps its vector with worker w XOR 2^l, and both merge, to the same bits. Where n is no
power of two, the workers from 2^m = 2^floor(log2 n) on first hand their vectors to worker w − 2^m, and get the result
in a last round, with one bit a coordinate that says whether their own entry is in it.

A worker's own share is what of its entries is in the result: an entry that was cut off at any merge has left it for
good, even if its coordinate comes back through another worker's entry, and stays in the memory. The published
algorithm looks at the final support alone, and so forgets such entries: gradient mass is lost. With 16-bit values the
sums are rounded at every merge, and the first worker of those that contributed keeps the error. The own share never
exceeds the gradient, but for that rounding: delta = 0 (1 where nothing is cut).
Wire: a row of k values of `value_bits` bits and k indices in the shortest coding, see `gradwire.kernels.indices`. Each
worker below 2^m sends m rows, where top-k by all-gather sends n − 1; the others send one, and those that serve them one
more, of ceil(k/8) bytes beyond.

Departs from the paper in the own share, as said.

Shi et al., A Distributed Synchronous SGD Algorithm with Global Top-k Sparsification for Low Bandwidth Networks, ICDCS
2019, arXiv:1901.04359.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from gradwire.codecs.sparsification import _sparse_payload as support
from gradwire.core.codec import Codec, Combine, Context, Reduced, Traits, register
from gradwire.core.exchange import Payload, Route
from gradwire.core.registry import Check
from gradwire.kernels import rows
from gradwire.kernels.bitpack import pack, unpack
from gradwire.kernels.scatter import scatter
from gradwire.kernels.select import top


@dataclass(frozen=True)
class Sparse:
    """For each worker here a k-sparse sum, what it put into that itself, and what the guest it serves put in."""

    values: Tensor  # (rows, k)
    where: Tensor  # (rows, k), ascending
    own: Tensor  # (rows, k)
    guest: Tensor  # (rows, k), zero where there is no guest

    def at(self, part: Tensor, where: Tensor) -> Tensor:
        """One of the parts on another support."""
        place = torch.searchsorted(self.where, where).clamp_(max=self.where.shape[1] - 1)
        known = self.where.gather(1, place) == where
        return torch.where(known, part.gather(1, place), 0.0)


@register
@dataclass(frozen=True)
class GTopK(Codec):
    """The largest coordinates of pairwise sums."""

    name: ClassVar[str] = "gtopk"
    family: ClassVar[str] = "sparsification"
    paper: ClassVar[str] = "Shi et al., ICDCS 2019, arXiv:1901.04359"
    variants: ClassVar[tuple[str, ...]] = ("gtopk(ratio=0.3, value_bits=16)", "gtopk(ratio=1)")
    ratio: float = 0.01
    value_bits: int = 32

    def __post_init__(self) -> None:
        check = Check(self.name)
        check.share("ratio", self.ratio)
        check.one_of("value_bits", self.value_bits, support.VALUE_BITS)

    @property
    def traits(self) -> Traits:
        whole = self.ratio == 1 and self.value_bits == 32
        delta = 1.0 if whole else 0.0
        return Traits(combine=Combine.ROUNDS, memory="error_feedback", delta=delta, sparse=True, ignores_shapes=True)

    def reduce(self, x: Tensor, ctx: Context) -> Reduced:
        numel, n, device = x.shape[1], ctx.workers, x.device
        k = support.kept(self.ratio, numel)
        levels = n.bit_length() - 1
        base = 1 << levels
        unit = 0.5 ** (n - 1).bit_length()  # sums over the workers stay in the range of their values
        where = top(x, k)
        values = support.rounded(x.gather(1, where) * unit, self.value_bits)
        state = Sparse(values, where, values, torch.zeros_like(values))

        guests = tuple(r + base if r + base < n else None for r in ctx.ranks)  # hand their vectors in here
        hosts = tuple(r - base if r >= base else None for r in ctx.ranks)
        if base < n:
            row = yield Route(self._row(state, numel), to=hosts, source=guests)
            merged = self._merged(state, self._read(row, numel, k), _mask([True] * len(x), device), follow=True)
            state = _chosen(_mask([g is not None for g in guests], device), merged, state)
        for level in range(levels):
            peers = tuple(r ^ (1 << level) if r < base else None for r in ctx.ranks)
            relay = level > 0 or base < n
            row = yield Route(self._row(state, numel), to=peers, source=peers, relay=relay)
            first = _mask([r % (2 << level) == 0 for r in ctx.ranks], device)
            merged = self._merged(state, self._read(row, numel, k), first)
            state = _chosen(_mask([r < base for r in ctx.ranks], device), merged, state)
        own, total = state.own, state
        if base < n:
            row = yield Route(self._result(state, numel), to=guests, source=hosts, relay=True)
            final = self._read(row, numel, k)
            alive = unpack(row.data[:, support.support_bytes(numel, k, self.value_bits) :], 1, k) != 0
            served = _mask([h is not None for h in hosts], device)
            own = torch.where(served, torch.where(alive, state.at(state.own, final.where), 0.0), own)
            total = _chosen(served, final, state)
        mean = scatter(total.values[:1] / (unit * n), total.where[:1], numel)
        return mean, scatter(own / unit, total.where, numel) if ctx.wants_own else None

    def _merged(self, a: Sparse, b: Sparse, first: Tensor, *, follow: bool = False) -> Sparse:
        """The k largest of a + b, with what is known of a's parts; b is a guest's if it is to be followed.

        `first`, (rows, 1): this worker takes the error of rounding the sum upon itself.
        """
        values, where = _union(a, b)
        best = top(values, a.where.shape[1])
        values, where = values.gather(1, best), where.gather(1, best)
        rounded, own = support.rounded(values, self.value_bits), a.at(a.own, where)
        if self.value_bits < 32:
            own = torch.where(first, own + (rounded - values), own)
        return Sparse(rounded, where, own, b.at(b.own, where) if follow else a.at(a.guest, where))

    def _row(self, state: Sparse, numel: int) -> Payload:
        return Payload(support.write(state.values, state.where, numel, self.value_bits))

    def _result(self, state: Sparse, numel: int) -> Payload:
        """The row, and which of its coordinates hold something of the guest's."""
        return Payload(rows.join(self._row(state, numel).data, pack(state.guest != 0, 1)))

    def _read(self, row: Payload, numel: int, k: int) -> Sparse:
        values, where = support.read(row.data, numel, k, self.value_bits)
        return Sparse(values, where, values, torch.zeros_like(values))


def _mask(which: list[bool], device: torch.device) -> Tensor:
    """(rows, 1), without a wait for the device."""
    return torch.tensor(which)[:, None].to(device, non_blocking=True)


def _chosen(which: Tensor, a: Sparse, b: Sparse) -> Sparse:
    """The rows of `a` where `which` says so, else those of `b`: workers without a partner in a round keep theirs."""
    pairs = ((a.values, b.values), (a.where, b.where), (a.own, b.own), (a.guest, b.guest))
    return Sparse(*(torch.where(which, *pair) for pair in pairs))


def _union(a: Sparse, b: Sparse) -> tuple[Tensor, Tensor]:
    """Values and indices of a + b: the distinct ones ascending, then zeros in place of those that stood in both."""
    where, order = torch.cat((a.where, b.where), dim=1).sort(dim=1, stable=True)
    values = torch.cat((a.values, b.values), dim=1).gather(1, order)
    again = torch.zeros_like(where, dtype=torch.bool)
    again[:, 1:] = where[:, 1:] == where[:, :-1]
    second = torch.where(again, values, 0.0)
    values = torch.where(again, 0.0, values)
    values[:, :-1] += second[:, 1:]
    last = again.to(torch.uint8).sort(dim=1, stable=True).indices
    return values.gather(1, last), where.gather(1, last)
