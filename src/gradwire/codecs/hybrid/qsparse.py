r"""Qsparse: any value codec over a sparse support.

The support S holds k = ⌈ratio·n⌉ coordinates: those of largest magnitude (``support="topk"``), or k that all workers
draw alike (``support="randomk"``, see `randomk`). The vector of the values on S goes through the codec
`values`:

.. math::  C(a)_S = \mathrm{Q}(a_S), \qquad C(a)_i = 0 \ \text{for}\ i \notin S

With ``values="efsignsgd"`` this is the sign of the top k, scaled by their mean magnitude. A contraction, hence runs
with error feedback: if Q contracts by delta', then by delta = ratio·delta'; if Q is unbiased with variance
omega < 1, by ratio·(1 − omega); with omega >= 1, Q is divided by 1 + omega, and delta = ratio/(1 + omega).
Wire: the indices in the smallest coding of `gradwire.kernels.indices` (none where all workers know them, or k = n),
then the payload of `values` for k elements.

Departs from the paper in two ways. Any one-shot codec will do for Q, and the default norm of a block is its largest
magnitude. The local steps between exchanges are apart from the codec: see `gradwire.integrations.local_steps`.

Basu et al., Qsparse-local-SGD, NeurIPS 2019, arXiv:1906.02367, section 2.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from gradwire.codecs.sparsification._sparse_payload import kept
from gradwire.codecs.sparsification.randomk import support
from gradwire.core.codec import Codec, Combine, Traits, codecs, register
from gradwire.core.errors import Incompatible
from gradwire.core.exchange import Payload
from gradwire.core.random import Random
from gradwire.core.registry import Check
from gradwire.core.scaled import Scaled
from gradwire.kernels import indices, rows
from gradwire.kernels.scatter import scatter, scatter_sum
from gradwire.kernels.select import top


@register
@dataclass(frozen=True)
class Qsparse(Codec):
    """A value codec over a sparse support."""

    name: ClassVar[str] = "qsparse"
    family: ClassVar[str] = "hybrid"
    paper: ClassVar[str] = "Basu et al., Qsparse-local-SGD, NeurIPS 2019, arXiv:1906.02367"
    variants: ClassVar[tuple[str, ...]] = (
        "qsparse(ratio=0.3, values='threelc(sparsity=1)')",
        "qsparse(ratio=0.5, support='randomk', values='qsgd(levels=3, block=21)')",
        "qsparse(ratio=1, values='qsgd(levels=1, block=64)')",
    )
    ratio: float = 0.01
    support: str = "topk"
    values: str = "qsgd(levels=7, block=128)"

    def __post_init__(self) -> None:
        check = Check(self.name)
        check.share("ratio", self.ratio)
        check.one_of("support", self.support, ("topk", "randomk"))
        values: object = self.values
        if not isinstance(values, str):
            check.fail("values", "the spec of a codec", values)
        _ = self._contraction

    @cached_property
    def _codec(self) -> Codec:
        """What codes the values, scaled if it has to be."""
        codec = codecs.build(self.values)
        omega = codec.traits.omega
        return codec if omega is None or omega < 1 else Scaled(codec, 1 / (1 + omega))

    @cached_property
    def _contraction(self) -> float:
        """By how much the values contract."""
        traits = self._codec.traits
        if traits.combine is not Combine.GATHER or not traits.is_mean:
            reason = "its payloads are not decoded one by one and averaged"
        elif traits.delta is None and traits.omega is None:
            reason = "it claims neither a contraction nor a bounded variance"
        else:
            return 1 - traits.omega if traits.omega is not None else float(traits.delta or 0)
        raise Incompatible(
            f"qsparse: {self.values!r} cannot code the values: {reason}. Use a codec such as qsgd or efsignsgd."
        )

    @property
    def traits(self) -> Traits:
        return replace(
            self._codec.traits,
            memory="error_feedback",
            unbiased=False,
            omega=None,
            delta=self.ratio * self._contraction,
            elementwise=False,
            propagates_nonfinite=False,  # an element outside the support would not
            sparse=False,
            shards=self._codec.traits.shards and self.support == "topk",
        )

    @property
    def steady_from_step(self) -> int:
        return self._codec.steady_from_step

    def encode(self, x: Tensor, rng: Random) -> Payload:
        where = self._support(x, rng)
        values, draws = x.gather(1, where), self._draws(x.shape[0], x.shape[1], rng)
        return self._join(where, [self._codec.encode(values[p], draws(p)) for p in self._parts(values)], x.shape[1])

    def encode_own(self, x: Tensor, rng: Random) -> tuple[Payload, Tensor]:
        where = self._support(x, rng)
        values, draws = x.gather(1, where), self._draws(x.shape[0], x.shape[1], rng)
        coded, own = zip(*(self._codec.encode_own(values[p], draws(p)) for p in self._parts(values)), strict=True)
        return self._join(where, coded, x.shape[1]), scatter(torch.cat(own), where, x.shape[1])

    def decode(self, payload: Payload, numel: int, rng: Random) -> Tensor:
        where, coded = self._read(payload, numel, rng)
        k, draws = where.shape[1], self._draws(payload.rows, numel, rng)
        values = [self._codec.decode(_part(coded, p), k, draws(p)) for p in self._parts(where)]
        return scatter(torch.cat(values), where, numel)

    def combine(self, payload: Payload, numel: int, rng: Random, groups: int = 1) -> Tensor:
        where, coded = self._read(payload, numel, rng)
        k, draws = where.shape[1], self._draws(payload.rows, numel, rng)
        if not self._index_bytes(numel):
            values = self._codec.combine(coded, k, draws(slice(0, payload.rows)), groups)
            return scatter(values, where[:groups], numel)
        each = [slice(i, i + 1) for i in range(payload.rows)]
        decoded = [self._codec.decode(_part(coded, p), k, draws(p)) for p in each]
        return scatter_sum(torch.cat(decoded), where, numel, groups).div_(payload.rows // groups)

    def payload_bytes(self, numel: int) -> int:
        return self._index_bytes(numel) + self._codec.payload_bytes(kept(self.ratio, numel))

    def _index_bytes(self, numel: int) -> int:
        k = kept(self.ratio, numel)
        return indices.index_bytes(numel, k) if self.support == "topk" and k < numel else 0

    def _support(self, x: Tensor, rng: Random) -> Tensor:
        if self._index_bytes(x.shape[1]):
            return top(x, kept(self.ratio, x.shape[1]))
        return self._known(x, x.shape[1], rng)

    def _known(self, like: Tensor, numel: int, rng: Random) -> Tensor:
        """The support that does not depend on the data, for all rows."""
        k = kept(self.ratio, numel)
        if k == numel:
            one = torch.arange(k, device=like.device)
        else:
            one = support(rng.common("support"), rng.common("turn"), k, numel, like.device)
        return one.expand(like.shape[0], k)

    def _parts(self, values: Tensor) -> list[slice]:
        """Rows that may be coded in one call: all where their length suits the codec, else one by one."""
        count, k = values.shape
        step = count if k % self._codec.alignment == 0 else 1
        return [slice(i, i + step) for i in range(0, count, step)]

    def _draws(self, rows: int, numel: int, rng: Random) -> Callable[[slice], Random]:
        """The source for a part of the rows: a worker's row i begins at element i·k of the values."""
        k, each = kept(self.ratio, numel), rows // len(rng.ranks)
        ranks = [rank for rank in rng.ranks for _ in range(each)]
        offsets = [(offset // numel + i) * k for offset in rng.offsets for i in range(each)]
        return lambda part: rng.fold("values").of(ranks[part], offsets[part])

    def _join(self, where: Tensor, parts: Sequence[Payload], numel: int) -> Payload:
        size, width = self._index_bytes(numel), max(p.data.shape[1] for p in parts)
        data = torch.cat([F.pad(p.data, (0, width - p.data.shape[1])) for p in parts])
        lengths = [p.lengths + size for p in parts if p.lengths is not None]
        data = rows.join(indices.encode(where, numel), data) if size else data
        return Payload(data, torch.cat(lengths) if lengths else None)

    def _read(self, payload: Payload, numel: int, rng: Random) -> tuple[Tensor, Payload]:
        """The support, and the coded values."""
        k, size = kept(self.ratio, numel), self._index_bytes(numel)
        where = indices.decode(payload.data[:, :size], numel, k) if size else self._known(payload.data, numel, rng)
        lengths = None if payload.lengths is None else payload.lengths - size
        return where, Payload(payload.data[:, size:], lengths)


def _part(payload: Payload, part: slice) -> Payload:
    return Payload(payload.data[part], None if payload.lengths is None else payload.lengths[part])
