r"""THC: rotate, round to integers of `bits` bits without bias, and add the integers up.

With L = 2^(bits−1) − 1, H the Hadamard matrix of order m, D random signs that all workers share and R the range of a
chunk of m elements,

.. math::  y = H D x / \sqrt{m}, \qquad c_i = \mathrm{sgn}(y_i) \lfloor L |y_i| / R + u_i \rfloor \in \{-L \ldots L\},
           \qquad \hat{x} = D H (c\,R/L) / \sqrt{m}, \qquad R = \max_i |y_i|

Signs are new in each step, the u are uniform and each worker's own. `rotation="partial"` rotates chunks of m = `chunk`
elements (a power of two; a shorter vector takes the next power of two that holds it), "full" rotates the whole vector
(by "scatter", each whole shard) as one chunk, padded with zeros to a power of two, whose codes travel too, and "none"
rotates nothing and has a range for each `chunk` elements.
Each y_i is sub-Gaussian with variance |x|²/m over the signs, so E[R²] <= 2(ln 2m + 1)|x|²/m, and a step of R/L costs
at most R²/(4L²) an element. E[x̂] = x with variance

.. math::  \omega = \min\Big(\frac{\ln 2m + 1}{2L^2},\ \frac{\sqrt{1 + (m-1)/L^2} - 1}{2}\Big)

and the second alone without rotation: 0.088 for 4 bits and chunks of 1024, against 1.84 unrotated. (For "full", m is
taken as 2³¹.) Where omega < 1 it runs with error feedback, as the authors' code does.

How the integers are added up, `aggregation`:

- "scatter": each worker sends its own R, 4 bytes a chunk, with its codes; the owner of a shard adds up c·R/L and
  encodes the mean again, by the ordinary scatter-reduce-gather, whose owner's memory keeps what that loses (for few
  workers or small units by all-gather). Ranges of one's own are never larger than shared ones, so nothing is
  lost by not agreeing on them, and error feedback stays exact. Wire: `bits` an element and 4 bytes a chunk, each way.
- "sum": the workers agree on R, the largest of all, and then add up codes in one exact all-reduce. The variance holds
  against the worker with the largest range. Wire: 4 bytes a chunk, and 32-bit words of floor(32/w) codes each, with
  w = ceil(log2(2nL + 1)) bits for n workers: 6 for 4 bits and 4 workers, 7 for 8.
- "saturate": agree on R; then a ring in which each hop adds its own codes to those that arrive and clamps the sum to
  ±L, so that it stays in `bits` bits. Large sums are lost, more of them with every worker and most where the workers
  agree: at 4 bits good for about 4 workers. Biased and without a bound, so it runs without memory.
  Wire: `bits` an element and 4 bytes a chunk.

Departs from THC in the uniform grid in place of its table of levels, and in ranges that cut nothing off, where the
authors' code clips at a quantile of the normal distribution and keeps one set of signs for the whole run.

Li et al., THC, NSDI 2024, arXiv:2302.08545; partial rotation and saturation: Han et al., Beyond Throughput and
Compression Ratios, 2024, arXiv:2407.01378, section 3.2.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from gradwire.codecs.quantization._ranges import add_up, agree, values
from gradwire.core.codec import Codec, Combine, Context, Reduced, Traits, register
from gradwire.core.exchange import Gather, Payload, Program, Route, once
from gradwire.core.random import Random, Stream
from gradwire.core.registry import Check
from gradwire.kernels import blockwise, grid, hadamard, rows
from gradwire.kernels.bitpack import pack, packed_bytes, unpack


@register
@dataclass(frozen=True)
class THC(Codec):
    """Rotated integers that add up."""

    name: ClassVar[str] = "thc"
    family: ClassVar[str] = "quantization"
    paper: ClassVar[str] = "Li et al., THC, NSDI 2024, arXiv:2302.08545; Han et al., 2024, arXiv:2407.01378"
    variants: ClassVar[tuple[str, ...]] = (
        "thc(bits=6, rotation='full')",
        "thc(bits=3, rotation='none', chunk=64)",
        "thc(bits=4, chunk=64, aggregation='sum')",
        "thc(bits=4, chunk=64, aggregation='saturate')",
    )
    bits: int = 4
    rotation: str = "partial"
    chunk: int = 1024
    aggregation: str = "scatter"

    def __post_init__(self) -> None:
        check = Check(self.name)
        check.integer("bits", self.bits, 2, 8)
        check.one_of("rotation", self.rotation, ("partial", "full", "none"))
        check.integer("chunk", self.chunk, 32, 2**30)
        if self.chunk & (self.chunk - 1):
            check.fail("chunk", "a power of two", self.chunk)
        check.one_of("aggregation", self.aggregation, ("scatter", "sum", "saturate"))

    @property
    def levels(self) -> int:
        """The largest code, L."""
        return int(2 ** (self.bits - 1) - 1)

    @property
    def traits(self) -> Traits:
        if self.aggregation == "saturate":
            return Traits(combine=Combine.ROUNDS, propagates_nonfinite=True, stochastic=True, ignores_shapes=True)
        size = 2**31 if self.rotation == "full" else self.chunk
        omega = (math.sqrt(1 + (size - 1) / self.levels**2) - 1) / 2
        if self.rotation != "none":
            omega = min(omega, (math.log(2 * size) + 1) / (2 * self.levels**2))
        combine = Combine.GATHER if self.aggregation == "scatter" else Combine.ROUNDS
        memory = "error_feedback" if omega < 1 else "none"
        return Traits(
            combine=combine,
            propagates_nonfinite=True,
            memory=memory,
            unbiased=True,
            omega=omega,
            stochastic=True,
            ignores_shapes=True,
        )

    @property
    def alignment(self) -> int:
        return 32 if self.rotation == "full" else self.chunk

    def encode(self, x: Tensor, rng: Random) -> Payload:
        y, ranges = self._rotated(x, rng)
        codes = grid.encode(y, self.levels / ranges, *self._grid(x.shape[1]), rng.private("round"))
        return Payload(rows.join(ranges, codes))

    def encode_own(self, x: Tensor, rng: Random) -> tuple[Payload, Tensor]:
        y, ranges = self._rotated(x, rng)
        steps, shape = (self.levels / ranges, ranges / self.levels), self._grid(x.shape[1])
        codes, own = grid.encode_own(y, *steps, *shape, rng.private("round"))
        return Payload(rows.join(ranges, codes)), self._turned_back(own, x.shape[1], rng)

    def decode(self, payload: Payload, numel: int, rng: Random) -> Tensor:
        step, codes = self._read(payload, numel)
        return self._turned_back(grid.decode(codes, step, *self._grid(numel), self._coded(numel)), numel, rng)

    def combine(self, payload: Payload, numel: int, rng: Random) -> Tensor:
        step, codes = self._read(payload, numel)
        total = grid.decode_sum(codes, step, *self._grid(numel), self._coded(numel))
        return self._turned_back(total.div_(payload.rows), numel, rng)

    def payload_bytes(self, numel: int) -> int:
        coded = self._coded(numel)
        return packed_bytes(coded, self.bits) + 4 * -(-numel // self._size(numel))

    def reduce(self, x: Tensor, ctx: Context) -> Reduced:
        if self.aggregation == "scatter":
            return (yield from super().reduce(x, ctx))
        numel, coded = x.numel(), self._coded(x.numel())
        y, ranges = self._rotated(x[None], ctx.rng)
        ranges = yield from agree(ranges)
        codes = grid.encode(y, self.levels / ranges, *self._grid(numel), ctx.rng.private("round"))
        step, own = ranges / self.levels, None
        if ctx.wants_own:
            own = self._turned_back(grid.decode(codes, step, *self._grid(numel), coded), numel, ctx.rng)[0]
        if self.aggregation == "sum":
            total = yield from add_up(codes, self.levels, coded, ctx.workers)
        else:
            total = yield from self._ring(codes, coded, ctx)
        return once(total, lambda: self._mean(total, step / ctx.workers, numel, ctx.rng)), own

    def _mean(self, total: Tensor, step: Tensor, numel: int, rng: Random) -> Tensor:
        return self._turned_back(values(total, step, self._size(numel)), numel, rng)[0]

    def _ring(self, codes: Tensor, coded: int, ctx: Context) -> Program[Tensor]:
        """Sums that are clamped at every hop, (1, coded). Shard r starts at worker r and ends, complete, at r − 1."""
        n, rank, top, shard = ctx.workers, ctx.rank, self.levels, -(-coded // ctx.workers)
        parts = F.pad(self._signed(codes, coded), (0, n * shard - coded)).view(n, 1, shard)
        part = parts[rank]
        for hop in range(1, n):
            there = yield Route(Payload(pack(part + top, self.bits)), to=(rank + 1) % n, source=(rank - 1) % n)
            part = (self._signed(there.data, shard) + parts[(rank - hop) % n]).clamp_(-top, top)
        # not a relay: the codes that this worker added last go out with it for the first time
        done = yield Gather(Payload(pack(part + top, self.bits)))
        return once(done, lambda: self._signed(done.data, shard).roll(1, 0).view(1, -1)[:, :coded])

    def _signed(self, data: Tensor, numel: int) -> Tensor:
        return unpack(data, self.bits, numel).to(torch.int32).sub_(self.levels)

    def _read(self, payload: Payload, numel: int) -> tuple[Tensor, Tensor]:
        """Steps and packed codes."""
        ranges, start = rows.take(payload.data, 0, -(-numel // self._size(numel)), torch.float32)
        return ranges / self.levels, payload.data[:, start:]

    def _grid(self, numel: int) -> tuple[int, int, int]:
        """Chunk, and the largest codes on either side."""
        return self._size(numel), self.levels, self.levels

    def _size(self, numel: int) -> int:
        """Elements of a chunk."""
        if self.rotation == "none":
            return self.chunk
        whole = 1 << (numel - 1).bit_length()
        return whole if self.rotation == "full" else min(self.chunk, whole)

    def _coded(self, numel: int) -> int:
        """Elements that have a code: with rotation, whole chunks."""
        return numel if self.rotation == "none" else -(-numel // self._size(numel)) * self._size(numel)

    def _rotated(self, x: Tensor, rng: Random) -> tuple[Tensor, Tensor]:
        """The rotated rows and their ranges."""
        numel = x.shape[1]
        if self.rotation != "none":
            padded = F.pad(x, (0, self._coded(numel) - numel))
            x = _turn(hadamard.rotate, padded, self._size(numel), numel, rng.shared("signs"))
        return x, grid.usable(blockwise.abs_max(x, self._size(numel)), self.levels)

    def _turned_back(self, y: Tensor, numel: int, rng: Random) -> Tensor:
        if self.rotation == "none":
            return y
        return _turn(hadamard.unrotate, y, self._size(numel), numel, rng.shared("signs"))[:, :numel].contiguous()


def _turn(transform: Callable[..., Tensor], x: Tensor, size: int, numel: int, signs: Stream) -> Tensor:
    """Every row, padded or not: row i takes the signs from i·`numel` on, so that its owner finds them there."""
    if x.shape[0] == 1 or x.shape[1] == numel:
        return transform(x, size, signs)
    each = (
        transform(row, size, Stream(signs.key, signs.offset + i * numel)) for i, row in enumerate(torch.split(x, 1))
    )
    return torch.cat(tuple(each))
