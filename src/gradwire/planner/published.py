"""The closed formulas of the published study, exactly as printed, errors and all. Our own model is `planner.model`.

Agarwal et al., On the Utility of Gradient Compression in Distributed Training Systems, MLSys 2022, arXiv:2103.00543
(PAPER below), and the author's dissertation, chapter 4, where a table of the paper is legible.

Every time is backward pass plus synchronisation: no forward pass, no optimizer, no data. Symbols of the paper and our
arguments: p `gpus`, BW `bits_per_second`, alpha `latency` (seconds), gamma `slowdown`, b `bucket_bytes`,
T_comp `backward`, T_encode-decode `encode_decode`. All times are seconds, all sizes bytes.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from gradwire.core.errors import ConfigError
from gradwire.core.search import boundary
from gradwire.core.units import transfer_seconds

BUCKET_BYTES = 25e6  # section 2.2, "25 MB by default"
SLOWDOWN = 1.07  # section 4.1 gives 1.04 to 1.1; the middle
FLOAT_BITS = 32  # signSGD sends one bit of these, appendix B


def ring_all_reduce(num_bytes: float, gpus: int, bits_per_second: float, *, latency: float = 0.0) -> float:
    """Equation 1: 2 alpha (p-1) + 2 b (p-1) / (p BW).

    >>> round(1e3 * ring_all_reduce(25e6, 64, 10e9), 4)
    39.375
    """
    return 2 * latency * (gpus - 1) + 2 * transfer_seconds(num_bytes, bits_per_second) * (gpus - 1) / gpus


def tree_all_reduce(num_bytes: float, gpus: int, bits_per_second: float, *, latency: float = 0.0) -> float:
    """Table 1 (legible in the dissertation, table 4.2): 2 alpha log p + 2 beta n log p; logarithm to base 2."""
    return 2 * math.log2(gpus) * (latency + transfer_seconds(num_bytes, bits_per_second))


def parameter_server(num_bytes: float, gpus: int, bits_per_second: float, *, latency: float = 0.0) -> float:
    """Table 1 (legible in the dissertation, table 4.2): 2 alpha + 2 beta n (p-1)."""
    return 2 * latency + 2 * transfer_seconds(num_bytes, bits_per_second) * (gpus - 1)


def all_gather(num_bytes: float, gpus: int, bits_per_second: float, *, latency: float = 0.0) -> float:
    """Appendix B, MSTop-K: 2 alpha + g (p-1) / BW, for the payload g of one worker."""
    return 2 * latency + transfer_seconds(num_bytes, bits_per_second) * (gpus - 1)


def buckets(model_bytes: float, bucket_bytes: float = BUCKET_BYTES) -> tuple[int, float]:
    """Section 4.1: how many buckets k there are, and the bytes of the last; all others are full."""
    count = max(1, math.ceil(model_bytes / bucket_bytes))
    return count, model_bytes - (count - 1) * bucket_bytes


def sync_sgd(
    model_bytes: float,
    gpus: int,
    bits_per_second: float,
    *,
    backward: float,
    latency: float = 0.0,
    slowdown: float = SLOWDOWN,
    bucket_bytes: float = BUCKET_BYTES,
) -> float:
    """Section 4.1: max(gamma T_comp, (k-1) T_comm(b)) + T_comm(last bucket)."""
    count, last = buckets(model_bytes, bucket_bytes)
    hidden = (count - 1) * ring_all_reduce(bucket_bytes, gpus, bits_per_second, latency=latency)
    return max(slowdown * backward, hidden) + ring_all_reduce(last, gpus, bits_per_second, latency=latency)


def sync_sgd_without_overlap(
    model_bytes: float,
    gpus: int,
    bits_per_second: float,
    *,
    backward: float,
    latency: float = 0.0,
    bucket_bytes: float = BUCKET_BYTES,
) -> float:
    """Figure 2's other bar, which the paper does not write down: T_comp, then all buckets one after the other."""
    count, last = buckets(model_bytes, bucket_bytes)
    full = (count - 1) * ring_all_reduce(bucket_bytes, gpus, bits_per_second, latency=latency)
    return backward + full + ring_all_reduce(last, gpus, bits_per_second, latency=latency)


def powersgd(
    p_bytes: float,
    q_bytes: float,
    gpus: int,
    bits_per_second: float,
    *,
    backward: float,
    encode_decode: float,
    latency: float = 0.0,
) -> float:
    """Appendix B: T_comp + T_encode-decode + T_comm(P) + T_comm(Q), both by ring all-reduce; vectors are left out."""
    exchanges = (ring_all_reduce(b, gpus, bits_per_second, latency=latency) for b in (p_bytes, q_bytes))
    return backward + encode_decode + sum(exchanges)


def mstopk(
    value_bytes: float,
    index_bytes: float,
    gpus: int,
    bits_per_second: float,
    *,
    backward: float,
    encode_decode: float,
    latency: float = 0.0,
) -> float:
    """Appendix B: T_comp + T_encode-decode + T_comm(values) + T_comm(indices), both by all-gather."""
    exchanges = (all_gather(b, gpus, bits_per_second, latency=latency) for b in (value_bytes, index_bytes))
    return backward + encode_decode + sum(exchanges)


def signsgd(model_bytes: float, gpus: int, bits_per_second: float, *, backward: float, encode_decode: float) -> float:
    """Appendix B: T_comp + T_encode-decode + (g/32) (p-1) / BW; the formula has no latency."""
    return backward + encode_decode + all_gather(model_bytes / FLOAT_BITS, gpus, bits_per_second)


def crossover(
    method: Callable[[float], float],
    baseline: Callable[[float], float],
    *,
    low: float = 1e8,
    high: float = 1e12,
    precision: float = 1e-12,
) -> float | None:
    """The bit/s above which `baseline` is the faster one (figures 3 and 19); both map bit/s to seconds.

    None: one of the two is the faster at both ends.
    """
    if not method(low) < baseline(low) or not method(high) > baseline(high):
        return None
    return boundary(lambda rate: method(rate) < baseline(rate), low, high, precision)[0]


def required_compression(
    model_bytes: float,
    gpus: int,
    bits_per_second: float,
    *,
    backward: float,
    within: float | None = None,
    latency: float = 0.0,
    slowdown: float = SLOWDOWN,
    bucket_bytes: float = BUCKET_BYTES,
) -> float:
    """How many times smaller all buckets must be for near-linear scaling, at no encoding cost (figures 12 and 18).

    The paper does not say what "near" means. `within` = None: all buckets but the last hide behind gamma T_comp.
    `within` = 0.1: the whole is at most 10 % above gamma T_comp. Infinite where latency alone is too much.
    """
    count, last = buckets(model_bytes, bucket_bytes)
    budget = slowdown * backward

    def enough(ratio: float) -> bool:
        exchange = [ring_all_reduce(b / ratio, gpus, bits_per_second, latency=latency) for b in (bucket_bytes, last)]
        hidden = (count - 1) * exchange[0]
        return hidden <= budget if within is None else max(budget, hidden) + exchange[1] <= (1 + within) * budget

    low, high = 1.0, 1e6
    if enough(low):
        return low
    if not enough(high):
        return math.inf
    return boundary(lambda ratio: not enough(ratio), low, high, 1e-12)[1]


def traded(
    p_bytes: float,
    q_bytes: float,
    gpus: int,
    bits_per_second: float,
    *,
    backward: float,
    encode_decode: float,
    k: float,
    l: float,  # noqa: E741  (the paper's letter)
    latency: float = 0.0,
) -> float:
    """Appendix D, figure 21: PowerSGD whose encoding is k times faster and whose matrices are l k times larger."""
    if k <= 0 or l <= 0:
        raise ConfigError(f"published.traded: `k` and `l` are factors above 0, got {k!r} and {l!r}")
    return powersgd(
        l * k * p_bytes,
        l * k * q_bytes,
        gpus,
        bits_per_second,
        backward=backward,
        encode_decode=encode_decode / k,
        latency=latency,
    )
