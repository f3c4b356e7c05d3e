"""The chunks of largest energy, agreed on by all workers, and the means of their values in half precision.

Two rounds, both all-reduces. Energies travel as bfloat16. Values travel as float16, scaled by a power of two that all
workers derive from the summed energies.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from gradwire.codecs.sparsification._sparse_payload import settle
from gradwire.core.codec import Context, Flag, Reduced, nonfinite_flag
from gradwire.core.exchange import Program, Sum
from gradwire.core.window import Feedback, Window
from gradwire.kernels import rows
from gradwire.kernels.blockwise import square_sum, square_sum_from
from gradwire.kernels.cast import from_half, to_half
from gradwire.kernels.scatter import put_to


@dataclass(frozen=True)
class Chunks:
    """Keeps `kept` chunks of `chunk` neighbours."""

    chunk: int
    kept: int

    def reduce(self, x: Tensor, ctx: Context) -> Reduced:
        """The mean of the rows over the workers on the chunks that are kept, and each worker's part."""
        numel = x.shape[1]
        kept, scale = yield from self._agree(square_sum(x, self.chunk), ctx)
        mine = to_half(rows.blocks(x, self.chunk)[:, kept] * scale)
        own = self._place(from_half(mine) / scale, kept, numel) if ctx.wants_own else None
        total = yield Sum(mine)
        return self._place(from_half(total) / (scale * ctx.workers), kept, numel), own

    def in_place(self, source: Window, target: Window, feedback: Feedback | None, ctx: Context) -> Program[Flag]:
        """The same from one window to another, both `one_pass`."""
        numel = source.numel
        kept, scale = yield from self._agree(square_sum_from(source, feedback, self.chunk), ctx)
        where = (kept[:, None] * self.chunk + torch.arange(self.chunk)).view(-1)
        inside = where < numel
        x = source.read() if feedback is None else feedback.out
        picked = torch.where(inside, x[:, where.clamp(max=numel - 1)], 0.0).view(len(x), -1, self.chunk)
        mine = to_half(picked * scale)
        own = (from_half(mine) / scale).view(len(x), -1)[:, inside]
        settle(feedback, ((row, where[inside]) for row in own), 1, numel)
        total = yield Sum(mine)
        values = (from_half(total) / (scale * ctx.workers)).view(-1)[inside]
        put_to([(values, where[inside])], numel, target, 1.0)
        return nonfinite_flag(values)

    def _agree(self, energies: Tensor, ctx: Context) -> Program[tuple[Tensor, Tensor]]:
        """The chunks to keep, ascending, and the factor that brings values into the range of half precision."""
        energy = yield Sum(energies.to(torch.bfloat16))
        kept = energy[0].float().sort(descending=True, stable=True).indices[: self.kept]
        return kept.sort().values, _power_of_two(energy.float().amax()) / ctx.workers

    def _place(self, values: Tensor, kept: Tensor, numel: int) -> Tensor:
        """The chunks `kept` hold `values`, (rows, chunks, elements), all others zero."""
        out = values.new_zeros((len(values), -(-numel // self.chunk), self.chunk))
        out[:, kept] = values
        return out.view(len(values), -1)[:, :numel]


def _power_of_two(energy: Tensor) -> Tensor:
    """2^e such that sqrt(energy)·2^e lies in [2¹², 2¹⁴): any element of such a chunk fits half precision."""
    exponent = 13 - torch.where(energy > 0, energy, 1.0).log2().mul(0.5).floor()
    return torch.exp2(exponent.clamp(-100, 100))
