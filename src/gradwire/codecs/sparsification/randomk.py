r"""Random-k: all workers send the same k coordinates, drawn anew in each step from a shared seed.

.. math::  C(a)_i = a_i \ \text{if}\ i \in S,\ \text{else } 0, \qquad
           |S| = k = \max(1, \lceil \text{ratio}\cdot n \rceil)

No index is sent, and payloads may be all-reduced. Each coordinate is in S with probability k/n exactly:
E‖a − C(a)‖² = (1 − k/n)‖a‖², and runs with error feedback. With ``unbiased=True`` values are multiplied by n/k, so that
E[C(a)] = a with variance omega = n/k − 1, and it runs without memory. Wire: k values of 4 bytes.

Departs from the paper in how S is drawn: one coordinate from each of k strata of a randomly rotated range, which
takes k random numbers instead of a permutation of n, and keeps the inclusion probability exact.

Stich et al., Sparsified SGD with Memory, NeurIPS 2018, arXiv:1809.07599.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from gradwire.codecs._parameters import checked
from gradwire.codecs.sparsification._sparse_payload import kept
from gradwire.core.codec import Codec, Combine, Flag, Traits, register
from gradwire.core.exchange import Payload
from gradwire.core.random import Random
from gradwire.core.window import Feedback, Window
from gradwire.kernels.support import Support, put_to, take_from
from gradwire.kernels.window import one_launch


@register
@dataclass(frozen=True)
class RandomK(Codec):
    """Send random elements, the same on all workers, so that no index travels.

    Args:
        ratio: share of the elements to send, in (0, 1]. 0.01 sends 1 %.
        unbiased: multiply what is sent by 1/ratio, so that it is right on average, and keep no error.

    Example:
        >>> gradwire.codec("randomk(ratio=0.01)").payload_bytes(1000)
        40
    """

    name: ClassVar[str] = "randomk"
    family: ClassVar[str] = "sparsification"
    paper: ClassVar[str] = "Stich et al., NeurIPS 2018, arXiv:1809.07599"
    plain_on_gpu: ClassVar[str] = ""
    variants: ClassVar[tuple[str, ...]] = (
        "randomk(ratio=0.3)",
        "randomk(ratio=0.25, unbiased=True)",
        "randomk(ratio=1)",
    )
    ratio: float = 0.01
    unbiased: bool = False

    def __post_init__(self) -> None:
        checked(self)

    @property
    def traits(self) -> Traits:
        if self.unbiased:
            return Traits(combine=Combine.SUM, unbiased=True, omega=1 / self.ratio - 1, shards=False)
        return Traits(combine=Combine.SUM, memory="error_feedback", delta=self.ratio, sparse=True, shards=False)

    def encode(self, x: Tensor, rng: Random) -> Payload:
        values = x[:, self.support(x.shape[1], rng).indices(x.shape[1], x.device)]
        return Payload(values * (x.shape[1] / values.shape[1]) if self.unbiased else values)

    def decode(self, payload: Payload, numel: int, rng: Random) -> Tensor:
        out = payload.data.new_zeros((payload.rows, numel))
        out[:, self.support(numel, rng).indices(numel, out.device)] = payload.data
        return out

    def encode_part(
        self, source: Window, feedback: Feedback | None, share: float, rng: Random, factor: float = 1.0
    ) -> Payload:
        if not one_launch(source, feedback):
            return super().encode_part(source, feedback, share, rng, factor)
        support = self.support(source.numel, rng)
        gain = source.numel / support.k if self.unbiased else 1.0
        return Payload(take_from(source, feedback, support, share, gain, factor / share))

    def decode_to(self, payload: Payload, target: Window, shard: int, rng: Random, factor: float = 1.0) -> Flag:
        if payload.rows != 1 or shard != target.numel or not one_launch(target):
            return super().decode_to(payload, target, shard, rng, factor)
        return put_to(payload.data, self.support(shard, rng), target, factor)

    def payload_bytes(self, numel: int) -> int:
        return 4 * kept(self.ratio, numel)

    def support(self, numel: int, rng: Random) -> Support:
        """The k indices of this step."""
        return Support(kept(self.ratio, numel), rng.common("turn"), rng.common("support"))
