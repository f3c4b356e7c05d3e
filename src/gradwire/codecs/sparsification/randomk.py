r"""Random-k: all workers send the same k coordinates, drawn anew in each step from a shared seed.

.. math::  C(a)_i = a_i \ \text{if}\ i \in S,\ \text{else } 0, \qquad
           |S| = k = \max(1, \lceil \text{ratio}\cdot n \rceil)

S comes from the seed and not from the data, so no index is sent and payloads may be all-reduced. Each coordinate is in
S with probability k/n exactly: E‖a − C(a)‖² = (1 − k/n)‖a‖², and runs with error feedback. With ``unbiased=True`` the
values are multiplied by n/k, so that E[C(a)] = a with variance omega = n/k − 1, and it runs without memory.
Wire: k values of 4 bytes.

Departs from the paper in how S is drawn: one coordinate from each of k strata of a randomly rotated range, which
takes k random numbers instead of a permutation of n, and keeps the inclusion probability exact.

Stich et al., Sparsified SGD with Memory, NeurIPS 2018, arXiv:1809.07599.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar

import torch
from torch import Tensor

from gradwire.codecs.sparsification._sparse_payload import any_index, kept
from gradwire.core.codec import Codec, Combine, Traits, register
from gradwire.core.exchange import Payload
from gradwire.core.random import Random, Stream
from gradwire.core.registry import Check
from gradwire.kernels.random import words


@register
@dataclass(frozen=True)
class RandomK(Codec):
    """A shared random support."""

    name: ClassVar[str] = "randomk"
    family: ClassVar[str] = "sparsification"
    paper: ClassVar[str] = "Stich et al., NeurIPS 2018, arXiv:1809.07599"
    variants: ClassVar[tuple[str, ...]] = (
        "randomk(ratio=0.3)",
        "randomk(ratio=0.25, unbiased=True)",
        "randomk(ratio=1)",
    )
    ratio: float = 0.01
    unbiased: bool = False

    def __post_init__(self) -> None:
        check = Check(self.name)
        check.share("ratio", self.ratio)
        check.one_of("unbiased", self.unbiased, (True, False))

    @property
    def traits(self) -> Traits:
        if self.unbiased:
            return Traits(combine=Combine.SUM, unbiased=True, omega=1 / self.ratio - 1, shards=False)
        return Traits(combine=Combine.SUM, memory="error_feedback", delta=self.ratio, sparse=True, shards=False)

    def encode(self, x: Tensor, rng: Random) -> Payload:
        values = x[:, self._support(x.shape[1], rng, x.device)]
        return Payload(values * (x.shape[1] / values.shape[1]) if self.unbiased else values)

    def decode(self, payload: Payload, numel: int, rng: Random) -> Tensor:
        out = payload.data.new_zeros((payload.rows, numel))
        out[:, self._support(numel, rng, out.device)] = payload.data
        return out

    def payload_bytes(self, numel: int) -> int:
        return 4 * kept(self.ratio, numel)

    def _support(self, numel: int, rng: Random, device: torch.device) -> Tensor:
        """The k indices of this step."""
        return support(rng.common("support"), rng.common("turn"), kept(self.ratio, numel), numel, device)


@lru_cache(maxsize=16)  # encoder and decoder, and virtual workers, ask for the same one
def support(draw: Stream, turn: Stream, k: int, numel: int, device: torch.device) -> Tensor:
    """k distinct indices below `numel`: one from each of k strata of the range, turned by a random angle."""
    edges = torch.arange(k + 1, device=device) * numel // k
    inside = edges[:-1] + (words(draw, (k,), device) * edges.diff() >> 32)
    return (inside + any_index(turn, numel, device)) % numel
