r"""TernGrad: −1, 0 or 1 an element, at random, times the largest magnitude of its block.

.. math::  Q(x_i) = s\,\mathrm{sgn}(x_i)\, b_i, \qquad P(b_i = 1) = \min(1, |x_i| / s), \qquad
           s = \min\big(\max_{j \in B} |x_j|,\ c\,\sigma_B\big)

c = `clip` cuts the rare large elements, which would make all others improbable; then E[Q(x)] is x clipped at ±s, which
is biased, and nothing is claimed. ``clip=None`` leaves s at the maximum: E[Q(x)] = x with
E‖Q(x)‖² = s‖x‖₁ ≤ (1+√B)/2 ‖x‖², hence omega = (√B − 1)/2 for blocks of B elements, attained where one element is
√B + 1 times as large as all others. Such a bound needs blocks: with ``block=None`` a whole unit (or shard) shares one
scale, as a layer does in the paper, and no omega is claimed. The scales of blocks of 2048 cost 1 % of the bytes and
limit what a single large element can do to the others.
Runs without memory: clipped, it is not a contraction, and error feedback over the unclipped form scales it to one.

``share_scale=True`` lets the workers agree on the largest of their scales first. Codes then add up exactly as integers,
so two all-reduces do: one of scales, one of codes. Each worker then clips at the shared scale. The rounding
stays independent and, without clipping, unbiased, but its variance depends on the other workers' gradients, so nothing
is claimed.
Wire: one float32 scale for each block, then codes + 1: ``packing="trits"`` five to a byte, ``"bits"`` two bits each.
With shared scales, n workers' codes + 1 in fields of bit_length(2n) bits, as many as fit in each 32-bit word.

Departs from the paper in the unit (blocks instead of layers) and in sigma, which is taken about zero and over the
non-zero elements: a constant block would otherwise be clipped to nothing, and so would one that is mostly padding.

Wen et al., TernGrad, NeurIPS 2017, arXiv:1705.07878, sections 3.1 and 3.4.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from gradwire.codecs.quantization._ranges import add_up, agree, values
from gradwire.core.codec import Codec, Combine, Context, Reduced, Traits, register
from gradwire.core.exchange import Payload, once
from gradwire.core.random import Random
from gradwire.core.registry import Check
from gradwire.kernels import bitpack, grid, rows, trits
from gradwire.kernels.blockwise import abs_max, abs_sum, square_sum

_LEVEL = 1  # the grid is −1, 0, 1
_WIDTH = grid.code_width(_LEVEL, _LEVEL)


@register
@dataclass(frozen=True)
class TernGrad(Codec):
    """Ternary codes."""

    name: ClassVar[str] = "terngrad"
    family: ClassVar[str] = "quantization"
    paper: ClassVar[str] = "Wen et al., TernGrad, NeurIPS 2017, arXiv:1705.07878"
    variants: ClassVar[tuple[str, ...]] = (
        "terngrad(clip=None, block=64)",
        "terngrad(clip=None, block=7, packing='bits')",
        "terngrad(block=None)",
        "terngrad(share_scale=True, block=64)",
        "terngrad(clip=None, block=None, share_scale=True)",
    )
    clip: float | None = 2.5
    block: int | None = 2048
    packing: str = "trits"
    share_scale: bool = False

    def __post_init__(self) -> None:
        check = Check(self.name)
        if self.clip is not None:
            check.number("clip", self.clip, 2.0**-20, 2.0**20, "a positive multiple of sigma, or None for no clipping")
        if self.block is not None:
            check.integer("block", self.block, 1)
        check.one_of("packing", self.packing, ("trits", "bits"))
        check.one_of("share_scale", self.share_scale, (True, False))

    @property
    def traits(self) -> Traits:
        if self.share_scale:
            return Traits(combine=Combine.ROUNDS, propagates_nonfinite=True, stochastic=True, ignores_shapes=True)
        if self.clip is not None or self.block is None:
            return Traits(combine=Combine.GATHER, propagates_nonfinite=True, stochastic=True)
        return Traits(
            combine=Combine.GATHER,
            propagates_nonfinite=True,
            stochastic=True,
            unbiased=True,
            omega=(math.sqrt(self.block) - 1) / 2,
        )

    @property
    def alignment(self) -> int:
        return math.lcm(self.block or 1, 8)

    def encode(self, x: Tensor, rng: Random) -> Payload:
        scales = self._scales(x)
        data = self._codes(x, scales, rng)
        if self.packing == "trits":
            data = trits.pack(bitpack.unpack(data, _WIDTH, x.shape[1]))
        return Payload(rows.join(scales, data))

    def decode(self, payload: Payload, numel: int, rng: Random) -> Tensor:
        return grid.decode(*self._read(payload, numel), self._block(numel), _LEVEL, _LEVEL, numel)

    def combine(self, payload: Payload, numel: int, rng: Random) -> Tensor:
        total = grid.decode_sum(*self._read(payload, numel), self._block(numel), _LEVEL, _LEVEL, numel)
        return total.div_(payload.rows)

    def payload_bytes(self, numel: int) -> int:
        codes = trits.trit_bytes(numel) if self.packing == "trits" else bitpack.packed_bytes(numel, _WIDTH)
        return codes + 4 * self._blocks(numel)

    def reduce(self, x: Tensor, ctx: Context) -> Reduced:
        if not self.share_scale:
            return (yield from super().reduce(x, ctx))
        numel, block = x.numel(), self._block(x.numel())
        scales = yield from agree(self._scales(x[None]))
        data = self._codes(x[None], scales, ctx.rng)
        own = grid.decode(data, scales, block, _LEVEL, _LEVEL, numel)[0] if ctx.wants_own else None
        total = yield from add_up(data, _LEVEL, numel, ctx.workers)
        return once(total, lambda: values(total, scales / ctx.workers, block)[0]), own

    def _scales(self, x: Tensor) -> Tensor:
        """s of each block."""
        block = self._block(x.shape[1])
        largest = grid.usable(abs_max(x, block), _LEVEL)
        if self.clip is None:
            return largest
        shares = (rows.blocks(x, block) / largest.unsqueeze(2)).flatten(1)  # squares of tiny values would underflow
        mean_square = square_sum(shares, block) / abs_sum((x != 0).to(x.dtype), block).clamp_(min=1)
        return grid.usable(largest * mean_square.sqrt_().mul_(self.clip).clamp_(max=1), _LEVEL)

    def _codes(self, x: Tensor, scales: Tensor, rng: Random) -> Tensor:
        """Codes + 1 in two bits each."""
        return grid.encode(x, 1 / scales, self._block(x.shape[1]), _LEVEL, _LEVEL, rng.private("round"))

    def _read(self, payload: Payload, numel: int) -> tuple[Tensor, Tensor]:
        """Codes + 1 in two bits each, and the scales."""
        scales, start = rows.take(payload.data, 0, self._blocks(numel), torch.float32)
        data = payload.data[:, start:]
        return (bitpack.pack(trits.unpack(data, numel), _WIDTH) if self.packing == "trits" else data), scales

    def _block(self, numel: int) -> int:
        return self.block or max(1, numel)

    def _blocks(self, numel: int) -> int:
        return -(-numel // self._block(numel))
