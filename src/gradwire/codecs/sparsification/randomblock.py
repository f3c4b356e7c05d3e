r"""Random block: all workers send the same run of k neighbours, from a start drawn anew in each step.

.. math::  C(a)_i = a_i \ \text{if}\ (i - o) \bmod n < k,\ \text{else } 0, \qquad
           o \sim U\{0, \dots, n - 1\},\quad k = \max(1, \lceil \text{ratio}\cdot n \rceil)

The run continues at the beginning where it reaches the end. o comes from a shared seed, so no index is sent and
payloads may be all-reduced; reading and writing neighbours is the fastest access to memory there is. Each coordinate is
sent with probability k/n exactly: E‖a − C(a)‖² = (1 − k/n)‖a‖², and runs with error feedback. With ``unbiased=True``
the values are multiplied by n/k, so that E[C(a)] = a with variance omega = n/k − 1, and it runs without memory.
Neighbours are sent together, so a single step shows less of a vector whose energy lies in runs than `randomk`'s does.
Wire: k values of 4 bytes.

A baseline of Vogels et al., PowerSGD, NeurIPS 2019, arXiv:1905.13727; rate from Stich et al., Sparsified SGD with
Memory, NeurIPS 2018, arXiv:1809.07599.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from gradwire.codecs.sparsification._sparse_payload import kept
from gradwire.codecs.sparsification.randomk import RandomK
from gradwire.core.codec import register
from gradwire.core.random import Random
from gradwire.kernels.support import Support


@register
@dataclass(frozen=True)
class RandomBlock(RandomK):
    """Send one random run of neighbours, the same on all workers, so that no index travels.

    Args:
        ratio: share of the elements to send, in (0, 1]. 0.01 sends 1 %.
        unbiased: multiply what is sent by 1/ratio, so that it is right on average, and keep no error.

    Example:
        >>> gradwire.codec("randomblock(ratio=0.01)").payload_bytes(1000)
        40
    """

    name: ClassVar[str] = "randomblock"
    paper: ClassVar[str] = "Vogels et al., NeurIPS 2019, arXiv:1905.13727"
    variants: ClassVar[tuple[str, ...]] = (
        "randomblock(ratio=0.125)",
        "randomblock(ratio=0.25, unbiased=True)",
        "randomblock(ratio=1)",
    )

    def support(self, numel: int, rng: Random) -> Support:
        return Support(kept(self.ratio, numel), rng.common("start"))
