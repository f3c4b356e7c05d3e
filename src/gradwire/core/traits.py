"""What codecs claim of themselves."""

from __future__ import annotations

import enum
from dataclasses import dataclass


class Combine(enum.Enum):
    """How the workers' payloads become one result.

    Attributes:
        SUM: payloads can be added up, so an all-reduce of the payloads works.
        GATHER: each payload is decoded, then the results are combined.
        ROUNDS: the codec runs its own exchanges, in `Codec.reduce`.

    Example:
        >>> import gradwire
        >>> gradwire.codec("fp16").traits.combine
        <Combine.SUM: 'sum'>
    """

    SUM = "sum"
    GATHER = "gather"
    ROUNDS = "rounds"


@dataclass(frozen=True, kw_only=True)
class Traits:
    """Claims that a codec makes. The conformance suite tests each one. Memories and strategies choose by them.

    Args:
        combine: how the workers' payloads become one result.
        memory: the spec of the memory that the codec runs with, unless the user names another.
        unbiased: the mean over all random draws of ``decode(encode(x))`` is x.
        omega: of an unbiased codec, its variance: E|C(x) - x|² <= omega |x|².
        delta: of a contracting codec, what it keeps: E|C(x) - x|² <= (1 - delta) |x|².
        fixed_size: the payload's size depends on the number of elements alone.
        stochastic: the codec draws random numbers of each worker's own.
        lossless: the gradient is sent as it is, in its own dtype.
        elementwise: the result for an element depends on that element alone.
        propagates_nonfinite: a non-finite input always gives a non-finite output.
        sparse: some elements are sent as they are, and nothing of the others.
        shards: a shard of the gradient can be encoded by itself.
        ignores_shapes: of a codec with `Combine.ROUNDS`: it sees one vector and does not look at the tensors in it.
        is_mean: the result estimates the mean. False for a vote, which keeps signs only.
        odd: C(-x) = -C(x) for the same random numbers.
        homogeneous: C(s x) = s C(x) for s > 0. False where a parameter is an absolute bound.
        oracle: the codec knows what no practical method can know. For comparison only.

    Example:
        >>> import gradwire
        >>> traits = gradwire.codec("topk(ratio=0.25)").traits
        >>> traits.memory, traits.delta, traits.sparse
        ('error_feedback', 0.25, True)
    """

    combine: Combine
    memory: str = "none"
    unbiased: bool = False
    omega: float | None = None
    delta: float | None = None
    fixed_size: bool = True
    stochastic: bool = False
    lossless: bool = False
    elementwise: bool = False
    propagates_nonfinite: bool = False
    sparse: bool = False
    shards: bool = True
    ignores_shapes: bool = False
    is_mean: bool = True
    odd: bool = True
    homogeneous: bool = True
    oracle: bool = False
