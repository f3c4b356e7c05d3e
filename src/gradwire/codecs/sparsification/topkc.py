r"""TopK-Chunked: the workers agree on the J chunks of `chunk` elements with the most energy, and sum only those.

.. math::  s_p = \sum_w \|c^w_p\|_2^2, \qquad K = \text{the } J \text{ largest } s_p, \qquad
           C(a) = a \ \text{on the chunks of}\ K,\ 0 \text{ elsewhere}

Two rounds, both all-reduces: chunk energies, then values. All workers keep the same chunks, so no index is sent.
Over all workers together a contraction with delta = J/(number of chunks); runs with error feedback. From `bits` b
follows J = floor((b/16 − 1/chunk) n/chunk).
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

from gradwire.codecs._parameters import checked
from gradwire.codecs.sparsification._chunks import Chunks
from gradwire.core.codec import Codec, Combine, Context, Flag, Reduced, Traits, register
from gradwire.core.errors import ConfigError
from gradwire.core.exchange import Program
from gradwire.core.window import Feedback, Window
from gradwire.kernels.random import words


@register
@dataclass(frozen=True)
class TopKC(Codec):
    """Agree on the chunks of the gradient with the most energy, and all-reduce only those.

    Args:
        ratio: share of the chunks to keep, in (0, 1]. 0.01 if neither this nor `bits` is given.
        chunk: neighbours that are kept or dropped together, at least 1. 128 makes energies cost 1/8 bit an element.
        bits: instead of `ratio`, bits to send for each element, energies included.
        permute: shuffle the elements first, as the paper's test of whether neighbours are alike. For studies only.

    Example:
        >>> cluster = gradwire.VirtualCluster(workers=2, codec="topkc(ratio=0.5, chunk=2)")
        >>> cluster.reduce({"w": [torch.tensor([4.0, 1.0, 0.0, 1.0]), torch.tensor([2.0, 3.0, 1.0, 1.0])]})["w"]
        tensor([3., 2., 0., 0.])
    """

    name: ClassVar[str] = "topkc"
    family: ClassVar[str] = "sparsification"
    paper: ClassVar[str] = "Han et al., 2024, arXiv:2407.01378"
    plain_on_gpu: ClassVar[str] = ""
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
        check = checked(self)
        if self.bits is None:
            return
        if self.ratio is not None:
            raise ConfigError(f"topkc: give `ratio` or `bits`, not both; got ratio={self.ratio}, bits={self.bits}")
        low = 16 / self.chunk
        if not low < self.bits <= 16 + low:
            check.fail("bits", f"more than 16/chunk = {low:g}, which the energies take, up to {16 + low:g}", self.bits)

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
        chunks, numel = self._chunks(x.shape[1]), x.shape[1]
        if not self.permute:
            return (yield from chunks.reduce(x, ctx))
        order = words(ctx.rng.common("permutation"), (numel,), x.device).sort(stable=True).indices
        mean, own = yield from chunks.reduce(x[:, order], ctx)
        back = torch.empty_like(order).scatter_(0, order, torch.arange(numel, device=x.device))
        return mean[:, back], None if own is None else own[:, back]

    def reduce_to(self, source: Window, target: Window, feedback: Feedback | None, ctx: Context) -> Program[Flag]:
        chunks = self._chunks(source.numel)
        if self.permute or ctx.moved or not chunks.in_one_pass(source, target, feedback):
            return (yield from super().reduce_to(source, target, feedback, ctx))
        return (yield from chunks.in_place(source, target, feedback, ctx))

    def _chunks(self, numel: int) -> Chunks:
        return Chunks(self.chunk, self.kept_chunks(numel))
