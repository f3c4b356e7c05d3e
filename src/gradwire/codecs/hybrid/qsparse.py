r"""Qsparse: any value codec over a sparse support.

The support S holds k = ⌈ratio·n⌉ coordinates: those of largest magnitude (``support="topk"``), or k that all workers
draw alike (``support="randomk"``, see `randomk`). The vector of the values on S goes through the codec
`values`:

.. math::  C(a)_S = \mathrm{Q}(a_S), \qquad C(a)_i = 0 \ \text{for}\ i \notin S

A contraction, hence runs with error feedback: if Q contracts by delta', then by delta = ratio·delta'; if Q is unbiased
with variance omega < 1, by ratio·(1 − omega); else Q is divided by 1 + omega, and delta = ratio/(1 + omega).
Wire: the indices in the smallest coding of `gradwire.kernels.indices` (none where all workers know them, or k = n),
then the payload of `values` for k elements.

Departs from the paper in two ways. Any one-shot codec will do for Q. Local steps between exchanges are apart from the
codec: see `gradwire.integrations.local_steps`.

Basu et al., Qsparse-local-SGD, NeurIPS 2019, arXiv:1906.02367, section 2.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import ClassVar

from torch import Tensor

from gradwire.codecs._parameters import checked
from gradwire.codecs.hybrid._support_coder import SUPPORTS, SupportCoder
from gradwire.codecs.hybrid._value_coder import ValueCoder
from gradwire.codecs.sparsification._entries import EntriesCodec
from gradwire.codecs.sparsification._sparse_payload import kept
from gradwire.core.codec import Traits, register
from gradwire.core.exchange import Payload
from gradwire.core.random import Random
from gradwire.kernels.scatter import scatter


@register
@dataclass(frozen=True)
class Qsparse(EntriesCodec):
    """Choose a few elements, and send their values by another codec.

    Args:
        ratio: share of the elements to send, in (0, 1]. 0.01 sends 1 %.
        support: which ones: "topk", the largest of each worker, or "randomk", random ones that all workers know.
        values: spec of the codec for the values; one with a bound whose payloads are averaged, such as qsgd (the
            default takes 4 bits a value) or efsignsgd (1 bit).

    Example:
        >>> gradwire.codec("qsparse(ratio=0.01, values='efsignsgd')").payload_bytes(10000)
        124
    """

    name: ClassVar[str] = "qsparse"
    family: ClassVar[str] = "hybrid"
    paper: ClassVar[str] = "Basu et al., Qsparse-local-SGD, NeurIPS 2019, arXiv:1906.02367"
    plain_on_gpu: ClassVar[str] = "quantised values at indices have no kernel yet; selection and indices have"
    variants: ClassVar[tuple[str, ...]] = (
        "qsparse(ratio=0.3, values='threelc(sparsity=1)')",
        "qsparse(ratio=0.5, support='randomk', values='qsgd(levels=3, block=21)')",
        "qsparse(ratio=1, values='qsgd(levels=1, block=64)')",
    )
    ratio: float = 0.01
    support: str = "topk"
    values: str = "qsgd(levels=7, block=128)"

    def __post_init__(self) -> None:
        check = checked(self)
        check.one_of("support", self.support, SUPPORTS)
        values: object = self.values
        if not isinstance(values, str):
            check.fail("values", "the spec of a codec", values)
        _ = self._coder

    @cached_property
    def _coder(self) -> ValueCoder:
        return ValueCoder.of(self.values, self.name)

    @property
    def _support(self) -> SupportCoder:
        return SupportCoder(self.support, self.ratio)

    @property
    def traits(self) -> Traits:
        inner = self._coder.codec.traits
        return replace(
            inner,
            memory="error_feedback",
            unbiased=False,
            omega=None,
            delta=self.ratio * self._coder.contraction,
            elementwise=False,
            propagates_nonfinite=False,  # an element outside the support would not
            sparse=False,
            shards=inner.shards and self.support == "topk",
        )

    @property
    def steady_from_step(self) -> int:
        return self._coder.codec.steady_from_step

    def encode(self, x: Tensor, rng: Random) -> Payload:
        where = self._support.choose(x, rng)
        return self._support.join(where, self._coder.encode(x.gather(1, where), x.shape[1], rng), x.shape[1])

    def encode_own(self, x: Tensor, rng: Random) -> tuple[Payload, Tensor]:
        where = self._support.choose(x, rng)
        coded, own = self._coder.encode_own(x.gather(1, where), x.shape[1], rng)
        return self._support.join(where, coded, x.shape[1]), scatter(own, where, x.shape[1])

    def entries(self, payload: Payload, numel: int, rng: Random) -> tuple[Tensor, Tensor]:
        where, coded = self._support.split(payload, numel, rng)
        return self._coder.decode(coded, where, numel, rng), where

    def combine(self, payload: Payload, numel: int, rng: Random, groups: int = 1) -> Tensor:
        if self._support.index_bytes(numel):
            return super().combine(payload, numel, rng, groups)
        where, coded = self._support.split(payload, numel, rng)
        return scatter(self._coder.combine(coded, where, numel, rng, groups), where[:groups], numel)

    def payload_bytes(self, numel: int) -> int:
        return self._support.index_bytes(numel) + self._coder.codec.payload_bytes(kept(self.ratio, numel))
