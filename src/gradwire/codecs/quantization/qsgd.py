r"""QSGD: stochastic rounding to `levels` steps of each block's norm.

With N the norm of the block and s = `levels`, coordinate i becomes

.. math::  Q(x_i) = \frac{N}{s}\,\mathrm{sgn}(x_i)\,\xi_i, \qquad
           \xi_i = \min\big(s,\ \lfloor y_i + u_i \rfloor\big), \quad y_i = s\,|x_i| / N,\ u_i \sim U[0,1)

E[Q(x)] = x; variance omega = min(B/(4s²), √B/s) for block length B and either norm: `norm="max"` takes the largest
magnitude (far smaller errors at few levels), `norm="l2"` the Euclidean norm of the paper. Rounding is independent
across workers, so errors average out. The minimum guards against y > s by rounding. Runs without memory; under error
feedback it is scaled by 1/(1+omega) where omega >= 1.
Wire: ceil(log2(2s+1)) bits a coordinate, packed, and 4 bytes for each block; no entropy coding.

With `share_norm` the workers first agree on the largest norm of each block, and the codes then go through one
all-reduce of integers, which is exact: no payload is decoded by anybody but in the sum. The variance holds against
the worker with the largest norm. Wire: 4 bytes for each block, and 32-bit words of floor(32/w) codes each, with
w = ceil(log2(2ns+1)) bits for n workers.

Alistarh et al., QSGD, NeurIPS 2017, arXiv:1610.02132, section 3.1; shared norms: Xin et al., Global-QSGD, 2023,
arXiv:2305.18627.
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
from gradwire.core.random import Random, Stream
from gradwire.core.registry import Check
from gradwire.kernels import blockwise, grid, rows
from gradwire.kernels.bitpack import packed_bytes


@register
@dataclass(frozen=True)
class QSGD(Codec):
    """Stochastic uniform levels."""

    name: ClassVar[str] = "qsgd"
    family: ClassVar[str] = "quantization"
    paper: ClassVar[str] = "Alistarh et al., QSGD, NeurIPS 2017, arXiv:1610.02132"
    variants: ClassVar[tuple[str, ...]] = (
        "qsgd(levels=1)",
        "qsgd(levels=3, block=64, norm='l2')",
        "qsgd(levels=127, block=2048)",
        "qsgd(levels=300, block=5, norm='l2')",
        "qsgd(levels=7, block=64, share_norm=True)",
    )
    levels: int = 7
    block: int = 512
    norm: str = "max"
    share_norm: bool = False

    def __post_init__(self) -> None:
        check = Check(self.name)
        check.integer("levels", self.levels, 1, 32767)
        check.integer("block", self.block, 1)
        check.one_of("norm", self.norm, ("max", "l2"))
        check.one_of("share_norm", self.share_norm, (False, True))

    @property
    def traits(self) -> Traits:
        omega = min(self.block / (4 * self.levels**2), math.sqrt(self.block) / self.levels)
        combine = Combine.ROUNDS if self.share_norm else Combine.GATHER
        return Traits(
            combine=combine, propagates_nonfinite=True, unbiased=True, omega=omega, stochastic=True, ignores_shapes=True
        )

    @property
    def alignment(self) -> int:
        return math.lcm(self.block, 8)

    @property
    def width(self) -> int:
        """Bits of one code."""
        return grid.code_width(self.levels, self.levels)

    def encode(self, x: Tensor, rng: Random) -> Payload:
        norms = self._norms(x)
        return Payload(rows.join(norms, grid.encode(x, self.levels / norms, *self._grid, _noise(rng))))

    def encode_own(self, x: Tensor, rng: Random) -> tuple[Payload, Tensor]:
        norms = self._norms(x)
        codes, own = grid.encode_own(x, self.levels / norms, self._step(norms), *self._grid, _noise(rng))
        return Payload(rows.join(norms, codes)), own

    def decode(self, payload: Payload, numel: int, rng: Random) -> Tensor:
        step, codes = self._read(payload, numel)
        return grid.decode(codes, step, *self._grid, numel)

    def combine(self, payload: Payload, numel: int, rng: Random) -> Tensor:
        step, codes = self._read(payload, numel)
        return grid.decode_sum(codes, step, *self._grid, numel).div_(payload.rows)

    def reduce_and_encode(
        self, payload: Payload, numel: int, rng: Random, down: Random, kept: Tensor | None, remember: bool
    ) -> tuple[Payload, Tensor | None]:
        if self.norm != "max":
            return super().reduce_and_encode(payload, numel, rng, down, kept, remember)
        step, codes = self._read(payload, numel)
        codes, norms, lost = grid.reduce_and_encode(codes, step, *self._grid, numel, kept, _noise(down), remember)
        return Payload(rows.join(norms, codes)), lost

    def payload_bytes(self, numel: int) -> int:
        return packed_bytes(numel, self.width) + 4 * -(-numel // self.block)

    def reduce(self, x: Tensor, ctx: Context) -> Reduced:
        if not self.share_norm:
            return (yield from super().reduce(x, ctx))
        norms = yield from agree(self._norms(x[None]))
        step = self._step(norms)
        codes = grid.encode(x[None], self.levels / norms, *self._grid, _noise(ctx.rng))
        own = grid.decode(codes, step, *self._grid, x.numel())[0] if ctx.wants_own else None
        total = yield from add_up(codes, self.levels, x.numel(), ctx.workers)
        return once(total, lambda: values(total, step / ctx.workers, self.block)[0]), own

    @property
    def _grid(self) -> tuple[int, int, int]:
        """Block, and the largest codes on either side."""
        return self.block, self.levels, self.levels

    def _norms(self, x: Tensor) -> Tensor:
        largest = grid.usable(blockwise.abs_max(x, self.block), self.levels)
        if self.norm == "max":
            return largest
        parts = (rows.blocks(x, self.block) / largest.unsqueeze(2)).flatten(1)  # squares of huge values would overflow
        return torch.maximum(largest, largest * blockwise.square_sum(parts, self.block).sqrt())

    def _step(self, norms: Tensor) -> Tensor:
        return norms / self.levels

    def _read(self, payload: Payload, numel: int) -> tuple[Tensor, Tensor]:
        """Steps and packed codes."""
        norms, start = rows.take(payload.data, 0, -(-numel // self.block), torch.float32)
        return self._step(norms), payload.data[:, start:]


def _noise(rng: Random) -> Stream:
    return rng.private("round")
