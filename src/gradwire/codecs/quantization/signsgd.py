r"""SignSGD with majority vote: one bit a coordinate, and the workers vote.

.. math::  C(x)_i = \mathrm{sgn}(x_i), \qquad \text{out}_i = \mathrm{sgn}\Big(\sum_w \mathrm{sgn}(x^w_i)\Big)

The result is ±1, not a mean: the step length is the learning rate, which must be small (1e-4 or so). Runs without
memory. A zero, and a tie among an even number of workers, is decided by a coin that all workers share, new
in each step, so that untouched coordinates (embedding rows, say) do not drift. Votes are counted on packed bits.
All-gather and scatter-reduce-gather give the same result, bit for bit.
Wire: ceil(n/8) bytes, and one byte that says whether the gradient is finite.

Bernstein et al., signSGD: compressed optimisation for non-convex problems, ICML 2018, arXiv:1802.04434;
with majority vote is communication efficient and fault tolerant, ICLR 2019, arXiv:1810.05291.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from gradwire.codecs.quantization._signs import SignCodec
from gradwire.core.codec import Combine, Flag, Traits, register
from gradwire.core.exchange import Payload
from gradwire.core.random import Random
from gradwire.core.window import Feedback, Running, Window
from gradwire.kernels import rows, signs
from gradwire.kernels.bitpack import packed_bytes
from gradwire.kernels.window import one_launch


@register
@dataclass(frozen=True)
class SignSGD(SignCodec):
    """Send the sign of each element. The result is the sign that most workers sent, +1 or −1.

    Example:
        >>> gradients = [torch.tensor([3.0, -1.0]), torch.tensor([1.0, -2.0]), torch.tensor([-9.0, 5.0])]
        >>> gradwire.VirtualCluster(3, "signsgd").reduce({"w": gradients})["w"]
        tensor([ 1., -1.])
    """

    name: ClassVar[str] = "signsgd"
    paper: ClassVar[str] = "Bernstein et al., ICML 2018, arXiv:1802.04434; ICLR 2019, arXiv:1810.05291"
    plain_on_gpu: ClassVar[str] = ""

    @property
    def traits(self) -> Traits:
        return Traits(combine=Combine.GATHER, propagates_nonfinite=True, is_mean=False)

    @property
    def alignment(self) -> int:
        return 32  # the coins of a shard begin at a whole word

    def encode(self, x: Tensor, rng: Random) -> Payload:
        return _joined(*signs.encode_or_toss(x, rng.shared("coin")))

    def read(self, payload: Payload, numel: int) -> tuple[Tensor, Tensor, Tensor]:
        one = torch.where(payload.data[:, -1:] != 0, torch.nan, 1.0)
        return payload.data[:, :-1], -one, one

    def combine(self, payload: Payload, numel: int, rng: Random, groups: int = 1) -> Tensor:
        return self.decode(self._majority(payload, numel, rng, groups), numel, rng)

    def combine_to(self, payload: Payload, target: Window, rng: Random, factor: float = 1.0) -> Flag:
        if not signs.in_one_pass(target):
            return super().combine_to(payload, target, rng, factor)
        return self.decode_to(self._majority(payload, target.numel, rng, 1), target, target.numel, rng, factor)

    def encode_from(
        self, source: Window, feedback: Feedback | None, shards: int, shard: int, rng: Random, factor: float = 1.0
    ) -> Payload:
        running = isinstance(feedback, Running) and one_launch(source, feedback)
        if (feedback is not None and not running) or not signs.in_one_pass(source):
            return super().encode_from(source, feedback, shards, shard, rng, factor)
        return _joined(*signs.encode_or_toss_from(source, feedback, shards, shard, rng.shared("coin"), rng.owner))

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
        return self._majority(payload, numel, rng, groups)  # no zeros: signs are what they encode to

    def _majority(self, payload: Payload, numel: int, rng: Random, groups: int) -> Payload:
        """The vote of each group; not finite where one of its rows is not."""
        ties = signs.tosses(rng.groups(groups).shared("coin"), numel, payload.data.device)
        majority = signs.vote(payload.data[:, :-1], ties, groups)
        return _joined(majority, (payload.data[:, -1] != 0).view(groups, -1).any(1, keepdim=True))

    def payload_bytes(self, numel: int) -> int:
        return packed_bytes(numel, 1) + 1


def _joined(positive: Tensor, bad: Tensor) -> Payload:
    """Packed signs, and a byte that is 1 in the rows that are not finite."""
    return Payload(rows.join(positive, bad.to(torch.uint8)))
