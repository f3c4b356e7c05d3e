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
from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from gradwire.codecs.quantization._grid import GridCodec, turn_rows
from gradwire.codecs.quantization._ranges import add_up, agree, values
from gradwire.core.codec import Combine, Context, Reduced, Traits, register
from gradwire.core.exchange import Gather, Payload, Program, Route
from gradwire.core.random import Random
from gradwire.core.registry import Check
from gradwire.kernels import grid, hadamard
from gradwire.kernels.bitpack import pack, unpack
from gradwire.kernels.grid import Rule, bound


@register
@dataclass(frozen=True)
class THC(GridCodec):
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
        omega = bound(Rule(size, self.levels, self.levels))
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

    def rule(self, numel: int) -> Rule:
        return Rule(self._size(numel), self.levels, self.levels)

    @property
    def rotates(self) -> bool:
        return self.rotation != "none"

    def coded(self, numel: int) -> int:
        """With rotation, whole chunks."""
        return -(-numel // self._size(numel)) * self._size(numel) if self.rotates else numel

    def turned(self, x: Tensor, rng: Random) -> Tensor:
        if not self.rotates:
            return x
        numel = x.shape[1]
        padded = F.pad(x, (0, self.coded(numel) - numel))
        return turn_rows(hadamard.rotate, padded, self._size(numel), numel, rng.shared("signs"))

    def turned_back(self, y: Tensor, numel: int, rng: Random) -> Tensor:
        if not self.rotates:
            return y
        return turn_rows(hadamard.unrotate, y, self._size(numel), numel, rng.shared("signs"))[:, :numel].contiguous()

    def reduce(self, x: Tensor, ctx: Context) -> Reduced:
        count, numel = x.shape
        coded, rule, rng = self.coded(numel), self.rule(numel), ctx.rng
        y = self.turned(x, rng)
        ranges = yield from agree(grid.scale(y, rule))
        everywhere = ranges.expand(count, -1)
        codes = grid.encode(y, self.levels / everywhere, rule.block, self.levels, self.levels, self.noise(rng))
        own = None
        if ctx.wants_own:
            own = self.turned_back(grid.decode_by(codes, everywhere, rule, coded), numel, rng)
        if self.aggregation == "sum":
            total = yield from add_up(codes, self.levels, coded, ctx.workers)
        else:
            total = yield from self._ring(codes, coded, ctx)
        mean = values(total, ranges / self.levels / ctx.workers, rule.block)
        return self.turned_back(mean, numel, rng.of((0,), (0,))), own

    def _ring(self, codes: Tensor, coded: int, ctx: Context) -> Program[Tensor]:
        """Sums that are clamped at every hop, (1, coded). Shard r starts at worker r and ends, complete, at r − 1."""
        n, top, shard = ctx.workers, self.levels, -(-coded // ctx.workers)
        parts = F.pad(self._signed(codes, coded), (0, n * shard - coded)).view(-1, n, shard)
        to, source = (tuple((r + d) % n for r in ctx.ranks) for d in (1, -1))
        part = torch.stack([parts[i, r] for i, r in enumerate(ctx.ranks)])
        for hop in range(1, n):
            there = yield Route(Payload(pack(part + top, self.bits)), to, source)
            added = torch.stack([parts[i, (r - hop) % n] for i, r in enumerate(ctx.ranks)])
            part = (self._signed(there.data, shard) + added).clamp_(-top, top)
        # not a relay: the codes that a worker added last go out with it for the first time
        done = yield Gather(Payload(pack(part + top, self.bits)))
        return self._signed(done.data, shard).roll(1, 0).view(1, -1)[:, :coded]

    def _signed(self, data: Tensor, numel: int) -> Tensor:
        return unpack(data, self.bits, numel).to(torch.int32).sub_(self.levels)

    def _size(self, numel: int) -> int:
        """Elements of a chunk."""
        if not self.rotates:
            return self.chunk
        whole = 1 << (numel - 1).bit_length()
        return whole if self.rotation == "full" else min(self.chunk, whole)
