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
    """Claims that a codec makes. `gradwire check` tests each one. Memories and strategies choose by them.

    Most codecs state `combine`, `memory`, and `delta` or `omega`, and leave the rest as it is. Claim less if in doubt:
    a claim that is left out costs speed at most, a wrong one costs gradients.

    Args:
        combine: how the workers' payloads become one result.
        memory: the spec of the memory that the codec runs with, unless the user names another: ``"error_feedback"`` for
            a codec that leaves something out, ``"none"`` for one that is unbiased.
        unbiased: the mean over all random draws of ``decode(encode(x))`` is x.
        omega: of an unbiased codec, its variance: E|C(x) - x|² <= omega |x|² for every x. None: not known.
        delta: of a contracting codec, what it keeps: E|C(x) - x|² <= (1 - delta) |x|² for every x, in [0, 1]. Error
            feedback needs this or `omega`. 0.0 says that the error is never larger than the gradient.
        fixed_size: the payload's size depends on the number of elements alone. False: payloads have `lengths`.
        stochastic: the codec draws random numbers of each worker's own, by ``rng.private``.
        lossless: the gradient is sent as it is, in its own dtype.
        elementwise: the result for an element depends on that element alone: a cast, say.
        propagates_nonfinite: a non-finite input always gives a non-finite output. False: the engine looks for it, and
            makes the row NaN before it is encoded.
        sparse: some elements are sent as they are, and nothing of the others.
        shards: a shard of the gradient can be encoded by itself, so that scatter-reduce-gather can carry it.
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
