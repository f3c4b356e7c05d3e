r"""TopK-Chunked: the workers agree on the J chunks of `chunk` elements with the most energy, and sum only those.

.. math::  s_p = \sum_w \|c^w_p\|_2^2, \qquad K = \text{the } J \text{ largest } s_p, \qquad
           C(a) = a \ \text{on the chunks of}\ K,\ 0 \text{ elsewhere}

Two rounds, both all-reduces: chunk energies, then values. All workers keep the same chunks, so no index is sent.
Over all workers together a contraction with delta = J/(number of chunks); runs with error feedback. Give either
`ratio`, the share of chunks kept (0.01 if neither is given), or `bits` b per element, from which
J = floor((b/16 − 1/chunk) n/chunk).
With `permute` the elements are put into another order first, a new one in each step that all workers draw alike: the
paper's test of whether chunks owe their quality to neighbours being alike. They do, so this is for studies alone.
Wire: 2 bytes a chunk (bfloat16 energies) and 2 bytes a kept element (float16): b = 16 (J·chunk/n + 1/chunk) bits.

Departs from the paper where half precision would fail: energies travel as bfloat16, whose range covers squares of small
gradients, and values are scaled by a power of two that all workers derive from the summed energies, so that no sum
overflows and none sinks below half precision's range.

Han et al., Beyond Throughput and Compression Ratios, 2024, arXiv:2407.01378, section 3.1.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from gradwire.core.codec import Codec, Combine, Context, Flag, Reduced, Traits, nonfinite_flag, register
from gradwire.core.errors import ConfigError
from gradwire.core.exchange import Program, Sum
from gradwire.core.registry import Check
from gradwire.core.window import Feedback, Window
from gradwire.kernels import rows
from gradwire.kernels.blockwise import square_sum, square_sum_from
from gradwire.kernels.cast import from_half, to_half
from gradwire.kernels.random import words
from gradwire.kernels.scatter import put_to
from gradwire.kernels.select import settle
from gradwire.kernels.window import one_pass


@register
@dataclass(frozen=True)
class TopKC(Codec):
    """The chunks with the most energy, by consensus."""

    name: ClassVar[str] = "topkc"
    family: ClassVar[str] = "sparsification"
    paper: ClassVar[str] = "Han et al., 2024, arXiv:2407.01378"
    variants: ClassVar[tuple[str, ...]] = (
        "topkc(ratio=0.3, chunk=16)",
        "topkc(bits=2, chunk=64)",
        "topkc(ratio=1)",
        "topkc(ratio=0.3, chunk=16, permute=True)",
    )
    ratio: float | None = None
    chunk: int = 128
    bits: float | None = None
    permute: bool = False

    def __post_init__(self) -> None:
        check = Check(self.name)
        check.integer("chunk", self.chunk, 1)
        check.one_of("permute", self.permute, (True, False))
        if self.ratio is not None:
            check.share("ratio", self.ratio)
        if self.bits is None:
            return
        if self.ratio is not None:
            raise ConfigError(f"topkc: give `ratio` or `bits`, not both; got ratio={self.ratio}, bits={self.bits}")
        low = 16 / self.chunk
        if not low < self.bits <= 16 + low:
            check.fail(
                "bits",
                f"more than 16/chunk = {low:g}, which the energies take, up to {16 + low:g}",
                self.bits,
            )

    @property
    def traits(self) -> Traits:
        return Traits(
            combine=Combine.ROUNDS,
            memory="error_feedback",
            delta=self._share,
            sparse=True,
            ignores_shapes=True,
            propagates_nonfinite=True,  # by the energy of its chunk, which is then the largest
        )

    @property
    def _share(self) -> float:
        if self.bits is not None:
            return min(1.0, self.bits / 16 - 1 / self.chunk)
        return 0.01 if self.ratio is None else self.ratio

    def kept_chunks(self, numel: int) -> int:
        """J for a unit of `numel` elements."""
        chunks = -(-numel // self.chunk)
        wanted = self._share * numel / self.chunk if self.bits is not None else math.ceil(self._share * chunks)
        return min(chunks, max(1, int(wanted)))

    def reduce(self, x: Tensor, ctx: Context) -> Reduced:
        if not self.permute:
            return (yield from self._reduce(x, ctx))
        numel = x.shape[1]
        order = words(ctx.rng.common("permutation"), (numel,), x.device).sort(stable=True).indices
        mean, own = yield from self._reduce(x[:, order], ctx)
        back = torch.empty_like(order).scatter_(0, order, torch.arange(numel, device=x.device))
        return mean[:, back], None if own is None else own[:, back]

    def _reduce(self, x: Tensor, ctx: Context) -> Reduced:
        chunks, numel = rows.blocks(x, self.chunk), x.shape[1]
        energy = yield Sum(square_sum(x, self.chunk).to(torch.bfloat16))
        kept = energy[0].float().sort(descending=True, stable=True).indices[: self.kept_chunks(numel)]
        scale = _power_of_two(energy.float().amax()) / ctx.workers
        mine = to_half(chunks[:, kept] * scale)
        own = self._place(from_half(mine) / scale, kept, numel) if ctx.wants_own else None
        total = yield Sum(mine)
        return self._place(from_half(total) / (scale * ctx.workers), kept, numel), own

    def reduce_to(self, source: Window, target: Window, feedback: Feedback | None, ctx: Context) -> Program[Flag]:
        if self.permute or ctx.moved or not (one_pass(source, feedback) and one_pass(target)):
            return (yield from super().reduce_to(source, target, feedback, ctx))
        energy = yield Sum(square_sum_from(source, feedback, self.chunk).to(torch.bfloat16))
        kept = energy[0].float().sort(descending=True, stable=True).indices[: self.kept_chunks(source.numel)]
        kept = kept.sort().values  # the order of the chunks is nobody's business, and neighbours are quicker
        scale = _power_of_two(energy.float().amax()) / ctx.workers
        where = (kept[:, None] * self.chunk + torch.arange(self.chunk)).view(-1)
        inside = where < source.numel
        x = source.read() if feedback is None else feedback.out
        picked = torch.where(inside, x[:, where.clamp(max=source.numel - 1)], 0.0).view(len(x), -1, self.chunk)
        mine = to_half(picked * scale)
        if feedback is not None:
            own = (from_half(mine) / scale).view(len(x), -1)[:, inside]
            for row in range(len(x)):
                settle(feedback, row, 0, where[inside], own[row])
        total = yield Sum(mine)
        values = (from_half(total) / (scale * ctx.workers)).view(-1)[inside]
        put_to([(values, where[inside])], source.numel, target, 1.0)
        return nonfinite_flag(values)

    def _place(self, values: Tensor, kept: Tensor, numel: int) -> Tensor:
        """The chunks `kept` hold `values`, (rows, chunks, elements), all others zero."""
        out = values.new_zeros((len(values), -(-numel // self.chunk), self.chunk))
        out[:, kept] = values
        return out.view(len(values), -1)[:, :numel]


def _power_of_two(energy: Tensor) -> Tensor:
    """2^e such that sqrt(energy)·2^e lies in [2¹², 2¹⁴): any element of such a chunk fits half precision."""
    exponent = 13 - torch.where(energy > 0, energy, 1.0).log2().mul(0.5).floor()
    return torch.exp2(exponent.clamp(-100, 100))
