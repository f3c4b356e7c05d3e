"""Shapes, dtypes and values: what goes in comes out alike, and what is not finite is seen."""

from __future__ import annotations

import random

import torch

from gradwire.conformance.check import check, one_shot, require
from gradwire.conformance.inputs import NASTY, SHAPES, Gradients, Ranks, cluster, gradients, normal, rng, through
from gradwire.core.codec import Codec, Combine
from gradwire.core.exchange import Payload
from gradwire.core.layout import Layout
from gradwire.core.random import Random

DTYPES = [torch.float32, torch.float16, torch.bfloat16]


@check("encode and decode must work for any number of elements, odd ones and one alone among them", dtype=DTYPES)
def shape_and_dtype_come_back(codec: Codec, dtype: torch.dtype) -> None:
    """The result has the shape and dtype of the gradient."""
    for shape in SHAPES:
        x = normal(*shape).to(dtype)
        out = cluster(codec).reduce({"w": [x, -x, 2 * x]})["w"]
        come = f"{tuple(out.shape)}, {out.dtype}"
        require((out.shape, out.dtype) == (x.shape, x.dtype), f"{shape}, {dtype} came back as {come}")


@check("guard divisions by a scale that is zero or tiny, and clamp before a cast to integers", kind=list(NASTY))
def finite_stays_finite(codec: Codec, kind: str) -> None:
    """Finite gradients give finite results: zeros, denormals, heavy tails."""
    workers = cluster(codec)
    for step in range(3):
        out = workers.reduce({"w": [NASTY[kind], 0.5 * NASTY[kind], -NASTY[kind]]})["w"]
        require(out.isfinite().all(), f"step {step} gave a result that is not finite")


@check("map zero to zero; a codec that gives signs only claims is_mean=False", strategies=True)
def zero_comes_out_as_zero(codec: Codec, strategy: str) -> None:
    """No gradient gives no result."""
    out = cluster(codec, strategy=strategy).reduce({"w": [torch.zeros(40, 10)] * 3})["w"]
    if codec.traits.is_mean:
        require((out == 0).all(), f"zeros came out as up to {float(out.abs().max()):.3g}")
    else:
        require((out.abs() == 1).all(), "of a vote (is_mean=False) the results should be -1 and 1")


@check(
    "an all-NaN row must decode to NaN: let the scale be NaN, and do not replace it",
    bad=[float("nan"), float("inf"), -float("inf")],
)
def non_finite_input_is_seen_by_all_and_remembered_by_none(codec: Codec, bad: float) -> None:
    """One bad element makes the result not finite on all workers, and no memory keeps it."""
    workers, ranks, grads = cluster(codec), Ranks(codec), gradients()
    workers.reduce(grads)
    ranks.reduce(grads)
    before = [(n, some, some.memory(n)) for n in grads for some in (workers, ranks)]
    poisoned = {n: [t.clone() for t in ts] for n, ts in grads.items()}
    poisoned["p2"][1].view(-1)[-1] = bad
    for result in (workers.reduce(poisoned), *ranks.reduce(poisoned)):
        require(any(not result[n].isfinite().all() for n in grads), f"{bad} in a gradient is hidden")
    for name, some, kept in before:
        for old, new in zip(kept, some.memory(name), strict=True):
            untouched = old is new if old is None or new is None else old.equal(new)
            require(untouched, f"a step with {bad} in a gradient changed the memory")
    for result in (workers.reduce(grads), *ranks.reduce(grads)):
        require(all(out.isfinite().all() for out in result.values()), f"the step after one with {bad} is not finite")


@check("use reshape and contiguous copies: gradwire.kernels.rows.join and take")
def strides_do_not_matter(codec: Codec) -> None:
    """A transposed gradient gives what its contiguous copy gives."""
    x = normal(30, 40).t()
    require(through(codec, x).equal(through(codec, x.contiguous())), "a transposed gradient gives another result")


# -------------------------------------------------------------------- purity


@check("do not write to x, and draw from rng alone: gradwire.kernels.random.uniform(rng.private('name'), ...)")
def input_and_global_randomness_are_left_alone(codec: Codec) -> None:
    """Gradients and the global generators stay as they were."""
    x = normal(3, 960)
    before, states = x.clone(), (torch.get_rng_state(), random.getstate())
    for memory in ("none", "default"):
        workers = cluster(codec, memory=memory)
        for _ in range(2):
            workers.reduce_rows(x, Layout.of([("w", (24, 40))]))
            require(x.equal(before), "the gradient was written to")
    require(torch.get_rng_state().equal(states[0]), "torch's global generator was used")
    require(random.getstate() == states[1], "Python's global generator was used")


@check("draw from rng alone, which changes with step and seed; claim stochastic where it is used")
def same_seed_same_result_and_steps_differ_if_random(codec: Codec) -> None:
    """The seed decides the result; the steps of a stochastic codec differ."""
    grads = gradients()
    runs = [_two_steps(codec, grads, seed=5) for _ in range(2)]
    require(all(a.equal(b) for a, b in zip(*runs, strict=True)), "two runs with the same seed differ")
    if codec.traits.stochastic:
        require(not runs[0][0].equal(runs[0][1]), "it claims stochastic, and two steps gave the same result")
        other = _two_steps(codec, grads, seed=6)[0]
        require(not other.equal(runs[0][0]), "it claims stochastic, and two seeds gave the same result")


def _two_steps(codec: Codec, grads: Gradients, seed: int) -> list[torch.Tensor]:
    workers = cluster(codec, memory="none", seed=seed)
    return [workers.reduce(grads)["p0"] for _ in range(2)]


@check("round by rng.private, not by rng.shared", lambda c: one_shot(c) and c.traits.stochastic)
def workers_round_independently(codec: Codec) -> None:
    """Errors of rounding differ from worker to worker. (What is lost for certain is alike.)"""
    numel = 1 << 15  # so that even a codec of few elements draws some hundred numbers
    x, sources = normal(1, numel), [Random(ranks=(rank,)) for rank in range(24)]
    outs = torch.cat([codec.decode(codec.encode(x, r), numel, r) for r in sources])
    spread = outs - outs.mean(0)
    require(spread.any(), "all workers drew the same numbers")
    correlation = float(spread.corrcoef()[0, 1].abs())
    require(correlation < 0.2, f"the errors of two workers correlate by {correlation:.2g}")


# -------------------------------------------------------------------- rows


@check("encode each row by itself: scales and selections along dim=1", lambda c: one_shot(c) and c.traits.shards)
def a_row_does_not_depend_on_others(codec: Codec) -> None:
    """A row encoded alone gives what it gives among others."""
    require(codec.alignment >= 1, f"`alignment` must be at least 1, got {codec.alignment}")
    rows = normal(4, codec.alignment * 3)
    whole = codec.decode(codec.encode(rows, rng()), rows.shape[1], rng())
    first = codec.decode(codec.encode(rows[:1], rng()), rows.shape[1], rng())
    require(whole[:1].equal(first), "the first of four rows decodes to something else when it is encoded alone")


@check(
    "encode linearly, with a scale that all workers know, or claim Combine.GATHER",
    lambda c: c.traits.combine is Combine.SUM,
)
def sums_of_payloads_decode_to_sums(codec: Codec) -> None:
    """The sum of payloads decodes to the sum of gradients, under Combine.SUM."""
    parts = [codec.encode(normal(1, 400, seed=s), rng(9)) for s in range(4)]
    total = torch.stack([p.data for p in parts]).sum(0, dtype=parts[0].data.dtype)
    apart = torch.stack([codec.decode(p, 400, rng(9)) for p in parts]).sum(0)
    together = codec.decode(Payload(total), 400, rng(9))
    require(torch.allclose(together, apart, rtol=2e-2, atol=3e-2), "it claims Combine.SUM, and sums decode otherwise")
