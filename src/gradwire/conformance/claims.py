"""Traits are claims: each is tried on the codecs that make it."""

from __future__ import annotations

import torch
from torch import Tensor

from gradwire.conformance.check import check, one_shot, require
from gradwire.conformance.inputs import NASTY, cluster, gradients, mean_of, normal, rng, through
from gradwire.core.codec import Codec, Combine
from gradwire.core.errors import Incompatible


def draws(codec: Codec, x: Tensor, count: int) -> Tensor:
    """Independent results: rows of one call draw numbers of their own, unless all draw the shared ones."""
    rows = 30 if codec.traits.stochastic else 1
    given = x.reshape(1, -1).expand(rows, -1).contiguous()
    outs = [codec.decode(codec.encode(given, rng(i)), given.shape[1], rng(i)) for i in range(count // rows)]
    return torch.cat(outs).double()


@check(
    "claim unbiased only if the mean over all random draws is x, with the omega of the worst gradient",
    lambda c: one_shot(c) and c.traits.unbiased,
    kind=["heavy_tail", "negative", "constant"],
)
def unbiased_and_within_its_variance(codec: Codec, kind: str) -> None:
    """The mean over draws is the gradient, and the variance at most omega."""
    x, omega = NASTY[kind], codec.traits.omega
    sample = draws(codec, x, 600)
    true = x.reshape(-1).double()
    directions = normal(x.numel(), 16, seed=1).double()
    projected, expected = sample @ directions, true @ directions
    spread = projected.std(0) / len(sample) ** 0.5 + 1e-9 * expected.abs()
    off = float(((projected.mean(0) - expected) / spread).abs().max())
    require(off < 5, f"the mean of {len(sample)} draws is off by {off:.3g} standard errors")
    variance = float((sample - true).square().sum(1).mean() / true.square().sum())
    require(omega is not None, "an unbiased codec of one shot gives its variance omega")
    require(variance <= (omega or 0.0) * 1.15 + 1e-12, f"its variance is {variance:.4g}, and omega = {omega}")


@check(
    "delta is for the worst gradient: 0.0 where the error may be as large as the gradient, None where it may be larger",
    lambda c: c.traits.delta is not None,
    kind=["heavy_tail", "negative", "constant", "one_hot"],
)
def contracts_as_it_says(codec: Codec, kind: str) -> None:
    """The squared error is at most 1 - delta of the squared gradient."""
    delta, x = codec.traits.delta or 0.0, NASTY[kind]
    random_support = codec.traits.combine is Combine.SUM and codec.traits.sparse
    tries = 60 if codec.traits.stochastic or random_support else 1
    errors = [(through(codec, x, seed) - x).square().sum() for seed in range(tries)]
    share = float(torch.stack(errors).mean() / x.square().sum())
    slack = 0.06 if random_support else 1e-5
    require(share <= 1 - delta + slack, f"the error is {share:.4g} of the gradient, squared, and delta = {delta}")


@check("claim sparse only if values are sent as they are", lambda c: one_shot(c) and c.traits.sparse)
def sparse_codecs_send_values_as_they_are_and_nothing_else(codec: Codec) -> None:
    """Elements come out as they went in, or as zero."""
    x = normal(1, 400)
    y = codec.decode(codec.encode(x, rng()), 400, rng())
    sent = y != 0
    require(0 < sent.sum() <= 400, "nothing was sent")
    require(torch.allclose(y[sent], x[sent], rtol=1e-3, atol=0), "what was sent is not the element itself")


@check("claim elementwise only if no scale, block or selection is shared", lambda c: c.traits.elementwise)
def elements_do_not_depend_on_each_other(codec: Codec) -> None:
    """The result for an element depends on that element alone. Then the codec itself shows what is not finite."""
    x, y = normal(500), normal(500, seed=1)
    y[::7] = x[::7]
    require(through(codec, x)[::7].equal(through(codec, y)[::7]), "an element's result changes with its neighbours")
    x[3] = float("nan")
    places = through(codec, x).isnan().nonzero().tolist()
    require(places == [[3]], f"NaN at element 3 came out at {places}")


@check("leave propagates_nonfinite out, and the engine takes care", lambda c: c.traits.propagates_nonfinite)
def a_bad_element_shows_wherever_it_is(codec: Codec) -> None:
    """A non-finite input always gives a non-finite output."""
    for place in range(0, 500, 25):
        x = normal(500, seed=place)
        x[place] = float("nan") if place % 2 else -float("inf")
        seen = not through(codec, x, seed=place).isfinite().all()
        require(seen, f"{float(x[place])} at element {place} is hidden")


@check("leave shards at True, or claim Combine.ROUNDS", lambda c: one_shot(c) and not c.traits.shards)
def without_shards_they_are_refused(codec: Codec) -> None:
    """A codec that cannot be cut into shards does not run under scatter-reduce-gather."""
    try:
        cluster(codec, strategy="scatter_reduce_gather")
    except Incompatible:
        return
    require(False, "scatter_reduce_gather took it")


# -------------------------------------------------------------------- symmetry


@check("treat both signs alike, or claim odd=False", lambda c: c.traits.odd, strategies=True)
def sign_flips_with_the_gradient(codec: Codec, strategy: str) -> None:
    """C(-x) = -C(x)."""
    grads = gradients()
    flipped = {n: [-t for t in ts] for n, ts in grads.items()}
    a, b = (cluster(codec, strategy=strategy).reduce(g) for g in (grads, flipped))
    for name in grads:
        require(torch.allclose(a[name], -b[name], rtol=1e-5, atol=1e-7), "-x does not give -C(x)")


@check("divide by a scale of the gradient, or claim homogeneous=False", lambda c: c.traits.homogeneous, strategies=True)
def result_scales_with_the_gradient(codec: Codec, strategy: str) -> None:
    """C(s x) = s C(x) for s > 0."""
    a, b = (cluster(codec, strategy=strategy).reduce(g) for g in (gradients(), gradients(scale=0.25)))
    factor = 0.25 if codec.traits.is_mean else 1.0
    for name in a:
        require(torch.allclose(b[name], factor * a[name], rtol=1e-3, atol=1e-6), "x/4 does not give C(x)/4")


@check("divide by the number of workers, once", lambda c: c.traits.is_mean and not c.traits.stochastic, strategies=True)
def workers_with_the_same_gradient_get_what_one_alone_would(codec: Codec, strategy: str) -> None:
    """The result is a mean, no sum."""
    if strategy == "scatter_reduce_gather":  # encodes the mean once more
        return
    x = normal(40, 30)
    alone = cluster(codec, 1, strategy=strategy).reduce({"w": [x]})["w"]
    four = cluster(codec, 4, strategy=strategy).reduce({"w": [x] * 4})["w"]
    ratio = float((four * alone).sum() / alone.square().sum().clamp(min=1e-30))
    require(torch.allclose(four, alone, rtol=1e-2, atol=1e-3), f"four equal workers get {ratio:.3g} times as much")


@check(
    "claim unbiased only if nothing is lost on average",
    lambda c: c.traits.is_mean and (c.traits.unbiased or (c.traits.elementwise and c.traits.memory == "none")),
    strategies=True,
)
def the_average_over_many_steps_is_the_mean(codec: Codec, strategy: str) -> None:
    """Without memory, the mean over steps is the mean of the workers.

    With one, this follows from what is owed: it is exact and does not grow.
    """
    traits = codec.traits
    grads = {"w": [normal(40, 30, seed=w) + 1 for w in range(3)]}
    workers, steps = cluster(codec, memory="none", strategy=strategy), 40
    outs = torch.stack([workers.reduce(grads)["w"].double() for _ in range(steps)])
    exact = mean_of(grads["w"])
    if traits.unbiased and traits.omega is None:  # no bound for all shapes: then by its own spread
        slack = float(3 * (outs.var(0).sum() / steps).sqrt() / exact.norm())
    else:
        slack = 2 * ((traits.omega or 0.0) * (2 + (traits.omega or 0.0)) / steps) ** 0.5
    off = float((outs.mean(0) - exact).norm() / exact.norm())
    require(off < 0.01 + slack, f"the mean of {steps} steps is off by {100 * off:.3g} %")
