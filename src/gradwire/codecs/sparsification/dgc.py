r"""Deep Gradient Compression: top-k of locally accumulated momentum, with factor masking and a warm-up.

.. math::  u \leftarrow m u + g, \qquad v \leftarrow v + u, \qquad \text{send the } k \text{ largest } |v_i|,
           \qquad u_i, v_i \leftarrow 0 \text{ where sent}

The selection is `topk`'s, with its bound delta = k/n and its wire format; the accumulators are the memory
`momentum_correction`, which takes `momentum`, `nesterov`, `masking` and `clip` from here. The optimizer's own momentum
must be 0, or momentum is applied twice; vectors that travel as they are get theirs from the memory as well. `clip`
bounds the norm of each worker's gradient to clip/√workers before it is accumulated (0: never).

With `warmup` > 0 the first steps keep more: 25 %, 6.25 %, 1.5625 % and 0.4 % in four equal stages of `warmup` steps,
never less than `ratio`. The size of a payload then follows from the step too, alike on all workers; `payload_bytes`
speaks of the steps after the warm-up.
Wire: as `topk`.

Departs from the paper in selecting exactly, where it estimates the threshold from a sample of |v|; and in counting the
warm-up in steps, since a codec knows no epochs.

Lin et al., Deep Gradient Compression, ICLR 2018, arXiv:1712.01887.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import ClassVar

from gradwire.codecs.sparsification._sparse_payload import kept
from gradwire.codecs.sparsification.topk import TopK
from gradwire.core.codec import Traits, register
from gradwire.core.random import Random
from gradwire.core.registry import Check

STAGES = (0.25, 0.0625, 0.015625, 0.00390625)  # shares kept during the warm-up


@register
@dataclass(frozen=True)
class DGC(TopK):
    """Top-k with momentum correction."""

    name: ClassVar[str] = "dgc"
    paper: ClassVar[str] = "Lin et al., ICLR 2018, arXiv:1712.01887"
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
        super().__post_init__()
        check = Check(self.name)
        check.number("momentum", self.momentum, 0, 1, "a factor in [0, 1]")
        check.one_of("nesterov", self.nesterov, (True, False))
        check.one_of("masking", self.masking, (True, False))
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

    def _k(self, numel: int, rng: Random) -> int:
        return kept(self.share(rng.step), numel)
