r"""Variance-based sparsification: a coordinate waits until what it has gathered stands out of its own noise.

With r the gradient gathered since the coordinate was last sent (what error feedback hands in) and v the squares of the
per-example gradients gathered meanwhile, in a batch of B examples z,

.. math::  v_i \leftarrow v_i + \sum_z \big(\nabla_z f_i / B\big)^2, \qquad
           \text{send } i \ \text{if}\ r_i^2 > \alpha v_i, \qquad
           v_i \leftarrow 0 \ \text{if sent, else}\ \zeta v_i

A value is sent as a sign and the power of two nearest to it, in steps down from the largest exponent of its parameter;
what lies more than 7 steps below is not sent. The memory keeps whatever was not sent, rounding included:
|r − C(r)| ≤ |r| in each coordinate, which is delta = 0. Useless without memory.

The squares are those that the user observed (``observe("squares", {name: sums})``, in the units of the gradient). For
parameters without, the worker's whole gradient counts as one example: v gathers g². The test then asks whether the
steps agree, so that a coordinate needs two steps at least (for alpha ≥ 1). The root of v is kept, which neither
overflows nor sinks to zero where squares would.
Wire: per worker a byte for each parameter, its largest exponent (255: NaN), and 4 bytes for each coordinate sent. A
unit of more than 2²⁸ elements is refused.

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

from gradwire.codecs.sparsification._power_words import LARGEST, NOT_FINITE, added, encode, written
from gradwire.codecs.sparsification._ragged import ragged
from gradwire.core.codec import Codec, Combine, Context, Reduced, Traits, nonfinite_flag, register
from gradwire.core.errors import ConfigError, Incompatible
from gradwire.core.exchange import Gather
from gradwire.core.registry import Check

DEVIATION = "deviation"  # the root of v


@register
@dataclass(frozen=True)
class Variance(Codec):
    """Send an element once the gradient it has gathered stands out of its own noise, as a power of two.

    Args:
        alpha: how far it must stand out: the square of the gradient against the gathered variance, at least 0. 1.5 is
            one of the paper's settings; larger sends less.
        zeta: decay of the gathered variance of elements that wait, in [0, 1]. 0.999 as published.

    Example:
        >>> cluster = gradwire.VirtualCluster(workers=1, codec="variance")
        >>> for step in range(2):  # a steady element is sent in the second step
        ...     print(cluster.reduce({"w": [torch.tensor([0.5])]})["w"])
        tensor([0.])
        tensor([1.])
    """

    name: ClassVar[str] = "variance"
    family: ClassVar[str] = "sparsification"
    paper: ClassVar[str] = "Tsuzuku et al., ICLR 2018 workshop, arXiv:1802.06058"
    plain_on_gpu: ClassVar[str] = "how many elements are sent changes from step to step"
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
        mine = [written(exponents, words) for exponents, words in coded]
        received = yield Gather(ragged(mine), most=starts.numel() + 4 * numel)  # a byte a parameter, a word an element
        mean = added(received, starts, numel) / ctx.workers
        own = torch.cat([added(ragged([row]), starts, numel) for row in mine]) if ctx.wants_own else None
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
