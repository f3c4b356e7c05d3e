"""The chunks of largest energy, agreed on by all workers, and the means of their values in half precision.

Two rounds, both all-reduces. Energies travel as bfloat16. Values travel as float16, scaled by a power of two that all
workers derive from the summed energies.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from gradwire.core.codec import Context, Flag, Reduced
from gradwire.core.exchange import Program, Sum
from gradwire.core.window import Feedback, Window
from gradwire.kernels import blockwise, chunks, rows
from gradwire.kernels.blockwise import square_sum, square_sum_from
from gradwire.kernels.cast import from_half, to_half


@dataclass(frozen=True)
class Chunks:
    """Keeps `kept` chunks of `chunk` neighbours."""

    chunk: int
    kept: int

    def reduce(self, x: Tensor, ctx: Context) -> Reduced:
        """The mean of the rows over the workers on the chunks that are kept, and each worker's part."""
        numel = x.shape[1]
        agreed = yield from self._agree(square_sum(x, self.chunk), ctx)
        mine = to_half(rows.blocks(x, self.chunk)[:, agreed.kept] * agreed.scale)
        own = self._place(from_half(mine) / agreed.scale, agreed.kept, numel) if ctx.wants_own else None
        total = yield Sum(mine)
        return self._place(from_half(total) / agreed.total, agreed.kept, numel), own

    def in_place(self, source: Window, target: Window, feedback: Feedback | None, ctx: Context) -> Program[Flag]:
        """The same from one window to another, both `in_one_pass`."""
        agreed = yield from self._agree(square_sum_from(source, feedback, self.chunk), ctx)
        total = yield Sum(chunks.take_from(source, feedback, agreed, self.chunk))
        return chunks.put_to(total, agreed, self.chunk, target)

    def _agree(self, energies: Tensor, ctx: Context) -> Program[chunks.Agreed]:
        """The chunks to keep, and the factor that brings values into the range of half precision."""
        energy = yield Sum(energies.to(torch.bfloat16))
        return chunks.agree(energy, self.kept, ctx.workers)

    def in_one_pass(self, source: Window, target: Window, feedback: Feedback | None) -> bool:
        """Whether kernels can treat chunks of these windows."""
        return all(blockwise.in_one_pass(self.chunk, *given) for given in ((source, feedback), (target, None)))

    def _place(self, values: Tensor, kept: Tensor, numel: int) -> Tensor:
        """The chunks `kept` hold `values`, (rows, chunks, elements), all others zero."""
        out = values.new_zeros((len(values), -(-numel // self.chunk), self.chunk))
        out[:, kept] = values
        return out.view(len(values), -1)[:, :numel]
