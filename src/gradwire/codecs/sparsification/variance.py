r"""Variance-based sparsification: a coordinate waits until what it has gathered stands out of its own noise.

With r the gradient gathered since the coordinate was last sent (what error feedback hands in) and v the squares of the
per-example gradients gathered meanwhile, in a batch of B examples z,

.. math::  v_i \leftarrow v_i + \sum_z \big(\nabla_z f_i / B\big)^2, \qquad
           \text{send } i \ \text{if}\ r_i^2 > \alpha v_i, \qquad
           v_i \leftarrow 0 \ \text{if sent, else}\ \zeta v_i

A value is sent as a sign and the power of two nearest to it, which is off by no more than a third, in steps down from
the largest exponent among those of its parameter; what lies more than 7 steps below is not sent. The memory keeps
whatever was not sent, rounding included: |r − C(r)| ≤ |r| in each coordinate, which is delta = 0. Useless without
memory.

The squares are those that the user observed (``observe("squares", {name: sums})``, in the units of the gradient). For
parameters without, the worker's whole gradient counts as one example: v gathers g². The test then asks whether the
steps agree instead of the examples, so that a coordinate needs two steps at least (for alpha ≥ 1), and the noise within
a batch goes unseen. The root of v is kept, which neither overflows nor sinks to zero where squares would.
Wire: per worker a byte for each parameter, its largest exponent (255: not finite), and 4 bytes for each coordinate
sent: 28 bits of index, 1 of sign, 3 of exponent. A unit of more than 2²⁸ elements is refused.

Departs from the paper in the rounding, whose error it does not keep, and which there cuts the largest values of a
parameter down to a power of two.

Tsuzuku, Imachi, Akiba, Variance-based Gradient Compression for Efficient Distributed Deep Learning, ICLR 2018 workshop,
arXiv:1802.06058.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from gradwire.codecs.sparsification._sparse_payload import ragged
from gradwire.core.codec import Codec, Combine, Context, Reduced, Traits, nonfinite_flag, register
from gradwire.core.errors import ConfigError, Incompatible
from gradwire.core.exchange import Gather, Payload
from gradwire.core.registry import Check
from gradwire.kernels import rows

DEVIATION = "deviation"  # the root of v
LARGEST = 1 << 28  # elements of a unit
STEPS = 7  # that an exponent may lie below the largest
NOT_FINITE = 255  # in the place of an exponent


@register
@dataclass(frozen=True)
class Variance(Codec):
    """What stands out of its noise, as powers of two."""

    name: ClassVar[str] = "variance"
    family: ClassVar[str] = "sparsification"
    paper: ClassVar[str] = "Tsuzuku et al., ICLR 2018 workshop, arXiv:1802.06058"
    variants: ClassVar[tuple[str, ...]] = ("variance(alpha=2, zeta=0.9)", "variance(alpha=0.5)")
    alpha: float = 1.5
    zeta: float = 0.999

    def __post_init__(self) -> None:
        check = Check(self.name)
        check.number("alpha", self.alpha, 0, math.inf, "a factor of at least 0")
        check.number("zeta", self.zeta, 0, 1, "a discount in [0, 1]")

    @property
    def traits(self) -> Traits:
        return Traits(combine=Combine.ROUNDS, memory="error_feedback", delta=0.0, fixed_size=False, homogeneous=False)

    def reduce(self, x: Tensor, ctx: Context) -> Reduced:
        numel = x.shape[1]
        if numel > LARGEST:
            raise Incompatible(
                f"variance: a unit of {numel} elements is more than the {LARGEST} that a 28-bit index reaches; "
                "compress in smaller units, such as DDP's buckets"
            )
        deviation = self._spread(x, ctx)
        kept = ctx.state.flat(DEVIATION, ctx.layout)
        if kept is not None:
            deviation = torch.hypot(deviation, kept * ctx.rescale)
        starts = torch.tensor(ctx.layout.offsets, device=x.device)
        coded = [self._coded(*pair, starts) for pair in zip(x, deviation, strict=True)]
        mine = ragged([rows.join(exponents.byte()[None], words[None]) for exponents, words in coded])
        received = yield Gather(mine)
        mean = _added(received, starts, numel) / ctx.workers
        own = None
        if ctx.wants_own:
            own = torch.cat([_added(_row(mine, i), starts, numel) for i in range(len(x))])
        after = deviation * math.sqrt(self.zeta)
        for row, (_, words) in zip(after, coded, strict=True):
            row.index_fill_(0, words.long() & (LARGEST - 1), 0.0)
        ctx.state.put_flat(DEVIATION, ctx.layout, after)
        return mean, own

    def _coded(self, x: Tensor, deviation: Tensor, starts: Tensor) -> tuple[Tensor, Tensor]:
        """The largest exponents and the words of one worker."""
        if bool((nonfinite_flag(x) + nonfinite_flag(deviation)).isnan()):
            return torch.full_like(starts, NOT_FINITE), starts[:0].int()
        chosen = x.abs() > math.sqrt(self.alpha) * deviation
        return encode(x, chosen.nonzero().view(-1), starts)

    def _spread(self, x: Tensor, ctx: Context) -> Tensor:
        """The root of this step's part of v, (rows, numel)."""
        gradient = x if ctx.source is None else ctx.source.read()
        observed = ctx.observed.get("squares", {})
        parts = []
        for segment, piece in zip(ctx.layout.segments, ctx.layout.split(gradient), strict=True):
            squares = observed.get(segment.name)
            if squares is not None and squares.numel() != piece.numel():
                raise ConfigError(
                    f"variance: the observed squares of {segment.name!r} are {squares.numel() // len(x)} numbers for "
                    f"{piece.shape[1]} elements; pass one for each element"
                )
            parts.append(piece.abs() if squares is None else squares.reshape(piece.shape).to(piece).sqrt())
        return torch.cat(parts, 1)


def _row(payload: Payload, i: int) -> Payload:
    assert payload.lengths is not None
    return Payload(payload.data[i : i + 1], payload.lengths[i : i + 1])


def _added(payload: Payload, starts: Tensor, numel: int) -> Tensor:
    """The sum of what the rows hold, in their order: (1, numel)."""
    assert payload.lengths is not None
    total = torch.zeros((1, numel), device=starts.device)
    for row, length in zip(payload.data, payload.lengths.tolist(), strict=True):
        exponents, start = rows.take(row[None], 0, starts.numel(), torch.uint8)
        words, _ = rows.take(row[None], start, (length - start) // 4, torch.int32)
        where, values = decode(exponents[0].long(), words[0], starts)
        total[0].index_add_(0, where, values)
        total += torch.where((exponents == NOT_FINITE).any(), math.nan, 0.0)
    return total


def encode(x: Tensor, where: Tensor, starts: Tensor) -> tuple[Tensor, Tensor]:
    """The largest exponent of each parameter, beginning at `starts`, and a word for each element `where` in reach."""
    bits = x[where].view(torch.int32).long()
    exponent = (((bits & 0x7FFFFFFF) + 0x400000) >> 23).clamp_(max=254)  # of the nearest power of two
    group = _groups(where, starts)
    largest = torch.zeros_like(starts).scatter_reduce_(0, group, exponent, "amax")
    steps = largest[group] - exponent
    words = where | (bits < 0).long() << 28 | steps << 29
    return largest, words[(steps <= STEPS) & (exponent > 0)].to(torch.int32)


def decode(largest: Tensor, words: Tensor, starts: Tensor) -> tuple[Tensor, Tensor]:
    """Where the words' elements are, and their values."""
    bits = words.long() & 0xFFFFFFFF
    where = bits & (LARGEST - 1)
    exponent = largest[_groups(where, starts)] - (bits >> 29)
    sign = (bits >> 28 & 1) << 31
    return where, (exponent << 23 | sign).to(torch.int32).view(torch.float32)


def _groups(where: Tensor, starts: Tensor) -> Tensor:
    """Which parameter each index lies in."""
    return torch.bucketize(where, starts, right=True) - 1
