r"""Deep Gradient Compression: top-k of locally accumulated momentum, with factor masking and a warm-up.

.. math::  u \leftarrow m u + g, \qquad v \leftarrow v + u, \qquad \text{send the } k \text{ largest } |v_i|,
           \qquad u_i, v_i \leftarrow 0 \text{ where sent}

The selection is `topk`'s, with its bound delta = k/n and its wire format. The accumulators are the memory
`momentum_correction`, which takes `momentum`, `nesterov`, `masking` and `clip` from here. Vectors that travel as they
are get their momentum from the memory as well. The warm-up keeps 25 %, 6.25 %, 1.5625 % and 0.4 % in four equal stages,
never less than `ratio`; `payload_bytes` speaks of the steps after it.
Wire: as `topk`.

Departs from the paper in selecting exactly, where it estimates the threshold from a sample of |v|; and in counting the
warm-up in steps, since a codec knows no epochs.

Lin et al., Deep Gradient Compression, ICLR 2018, arXiv:1712.01887.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import ClassVar

from gradwire.codecs._parameters import checked
from gradwire.codecs.sparsification._sparse_payload import kept
from gradwire.codecs.sparsification.topk import TopK
from gradwire.core.codec import Traits, register
from gradwire.core.random import Random

STAGES = (0.25, 0.0625, 0.015625, 0.00390625)  # shares kept during the warm-up


@register
@dataclass(frozen=True)
class DGC(TopK):
    """Accumulate momentum on each worker, and send its largest elements. Set the optimizer's own momentum to 0.

    Args:
        ratio: share of the elements to send, in (0, 1]. 0.001 as published.
        value_bits: of a sent value: 32 keeps it exact, 16 rounds it to half precision.
        index: how indices are packed, see `topk`.
        momentum: factor of the accumulated momentum, in [0, 1]. 0.9 as usual.
        nesterov: use Nesterov's form of momentum.
        masking: clear the momentum of sent elements, so that it does not act twice.
        clip: each worker scales its gradient down to a norm of clip/√workers before it is added; 0 for never.
        warmup: steps at the start that keep more, from 25 % down in four stages; 0 for none.

    Example:
        >>> gradwire.codec("dgc(ratio=0.001)").payload_bytes(10000)
        56
    """

    name: ClassVar[str] = "dgc"
    paper: ClassVar[str] = "Lin et al., ICLR 2018, arXiv:1712.01887"
    plain_on_gpu: ClassVar[str] = ""
    variants: ClassVar[tuple[str, ...]] = (
        "dgc(ratio=0.1, momentum=0.5, nesterov=True)",
        "dgc(ratio=0.3, masking=False, value_bits=16)",
    )
    ratio: float = 0.001
    momentum: float = 0.9
    nesterov: bool = False
    masking: bool = True
    clip: float = 0.0
    warmup: int = 0

    def __post_init__(self) -> None:
        check = checked(self)
        check.number("momentum", self.momentum, 0, 1, "a factor in [0, 1]")
        check.number("clip", self.clip, 0, math.inf, "a norm, or 0 for none")
        check.integer("warmup", self.warmup, 0)

    @property
    def traits(self) -> Traits:
        memory = (
            f"momentum_correction(momentum={self.momentum}, nesterov={self.nesterov}, masking={self.masking}, "
            f"clip={self.clip})"
        )
        return replace(super().traits, memory=memory, homogeneous=not self.clip)

    @property
    def steady_from_step(self) -> int:
        return self.warmup

    def share(self, step: int) -> float:
        """The share kept in a step."""
        if step >= self.warmup:
            return self.ratio
        return max(self.ratio, STAGES[step * len(STAGES) // self.warmup])

    def count(self, numel: int, rng: Random) -> int:
        return kept(self.share(rng.step), numel)
