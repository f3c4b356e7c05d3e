r"""SignSGD with majority vote: one bit a coordinate, and the workers vote.

.. math::  C(x)_i = \mathrm{sgn}(x_i), \qquad \text{out}_i = \mathrm{sgn}\Big(\sum_w \mathrm{sgn}(x^w_i)\Big)

The result is ±1, not a mean: the step length is the learning rate, which must be small (1e-4 or so). Runs without
memory. A zero, and a tie among an even number of workers, is decided by a coin that all workers share, new
in each step, so that untouched coordinates (embedding rows, say) do not drift. Votes are counted on packed bits.
All-gather and scatter-reduce-gather give the same result, bit for bit.
Wire: ceil(n/8) bytes, and one byte that says that the gradient is not finite.

Bernstein et al., signSGD: compressed optimisation for non-convex problems, ICML 2018, arXiv:1802.04434;
with majority vote is communication efficient and fault tolerant, ICLR 2019, arXiv:1810.05291.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from gradwire.core.codec import Codec, Combine, Flag, Traits, nonfinite_flag, register
from gradwire.core.exchange import Payload
from gradwire.core.random import Random
from gradwire.core.window import Feedback, Window
from gradwire.kernels import rows, signs
from gradwire.kernels.bitpack import packed_bytes
from gradwire.kernels.window import one_pass


@register
@dataclass(frozen=True)
class SignSGD(Codec):
    """Signs, by majority."""

    name: ClassVar[str] = "signsgd"
    family: ClassVar[str] = "quantization"
    paper: ClassVar[str] = "Bernstein et al., ICML 2018, arXiv:1802.04434; ICLR 2019, arXiv:1810.05291"

    @property
    def traits(self) -> Traits:
        return Traits(combine=Combine.GATHER, propagates_nonfinite=True, is_mean=False)

    @property
    def alignment(self) -> int:
        return 32  # the coins of a shard begin at a whole word

    def encode(self, x: Tensor, rng: Random) -> Payload:
        positive, bad = signs.encode_or_toss(x, rng.shared("coin"))
        return Payload(rows.join(positive, bad.to(torch.uint8)))

    def decode(self, payload: Payload, numel: int, rng: Random) -> Tensor:
        return _values(payload.data[:, :-1], payload.data[:, -1:] != 0, numel)

    def combine(self, payload: Payload, numel: int, rng: Random, groups: int = 1) -> Tensor:
        return _values(*self._won(payload, numel, rng, groups), numel)

    def encode_from(
        self, source: Window, feedback: Feedback | None, shards: int, shard: int, rng: Random, factor: float = 1.0
    ) -> Payload:
        if feedback is not None or not one_pass(source):
            return super().encode_from(source, feedback, shards, shard, rng, factor)
        positive, bad = signs.encode_or_toss_from(source, shards, shard, rng.shared("coin"), rng.owner)
        return Payload(rows.join(positive, bad.to(torch.uint8)))

    def decode_to(self, payload: Payload, target: Window, shard: int, rng: Random, factor: float = 1.0) -> Flag:
        if not one_pass(target):
            return super().decode_to(payload, target, shard, rng, factor)
        one = torch.where(payload.data[:, -1:] != 0, torch.nan, 1.0)
        signs.decode_to(payload.data[:, :-1], -one, one, shard, shard, target, factor)
        return nonfinite_flag(one)

    def reduce_and_encode(
        self,
        payload: Payload,
        numel: int,
        rng: Random,
        down: Random,
        feedback: Feedback | None,
        groups: int,
        factor: float = 1.0,
    ) -> Payload:
        if feedback is not None:
            return super().reduce_and_encode(payload, numel, rng, down, feedback, groups, factor)
        majority, bad = self._won(payload, numel, rng, groups)  # no zeros: signs are what they encode to
        return Payload(rows.join(majority, bad.to(torch.uint8)))

    def _won(self, payload: Payload, numel: int, rng: Random, groups: int) -> tuple[Tensor, Tensor]:
        """The majority of each group, as packed signs, and whether one of its rows is not finite."""
        ties = signs.tosses(rng.groups(groups).shared("coin"), numel, payload.data.device)
        majority = signs.vote(payload.data[:, :-1], ties, groups)
        return majority, (payload.data[:, -1] != 0).view(groups, -1).any(1, keepdim=True)

    def payload_bytes(self, numel: int) -> int:
        return packed_bytes(numel, 1) + 1


def _values(bits: Tensor, bad: Tensor, numel: int) -> Tensor:
    """±1, and NaN in the rows that are `bad`."""
    one = torch.where(bad, torch.nan, 1.0)
    return signs.decode(bits, -one, one, numel, numel)
