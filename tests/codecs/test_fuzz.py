"""Every codec on whatever hypothesis finds: shapes, dtypes, values, parameters, workers, strategies.

Parameters are drawn by changing the numbers of a known setting: a codec must either refuse them with a sentence that
names itself, or work.
"""

from __future__ import annotations

import dataclasses
import warnings

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import gradwire
from gradwire.collectives.choose import possible
from gradwire.conformance.inputs import Ranks, agreed, same
from gradwire.core.codec import codecs
from gradwire.tracing import trace

NAMES = codecs.names()
NUMBERS = {
    int: st.sampled_from([-1, 0, 1, 2, 3, 4, 5, 7, 8, 16, 31, 32, 64, 100, 1024]),
    float: st.sampled_from([-1.0, 0.0, 1e-9, 1e-3, 0.01, 0.1, 0.3, 0.5, 0.99, 1.0, 1.5, 2.0, 1e9]),
    bool: st.booleans(),
}
LIMIT = {torch.float32: 1e15, torch.float16: 1e4, torch.bfloat16: 1e15}  # squares of these are finite
HALF = 6e4  # beyond, half precision on the wire overflows, which has to be seen


@st.composite
def settings_of(draw, name):
    """A codec that its own checks accept."""
    cls = codecs.cls(name)
    codec = gradwire.codec(draw(st.sampled_from([name, *cls.variants])))
    for field in dataclasses.fields(cls):
        value = getattr(codec, field.name) if field.init else None
        if type(value) in NUMBERS and draw(st.booleans()):
            try:
                codec = dataclasses.replace(codec, **{field.name: draw(NUMBERS[type(value)])})
            except gradwire.ConfigError as problem:
                if not str(problem).startswith(f"{name}: "):
                    raise
    return codec


@st.composite
def tensors(draw, shape, dtype, workers):
    """One gradient a worker: noise at some scale, with some special values in it."""
    seed = draw(st.integers(0, 2**31))
    kind = draw(st.sampled_from(["noise", "noise", "zeros", "constant", "one_hot", "denormal", "huge", "few_values"]))
    out = []
    for worker in range(workers):
        x = torch.randn(shape, generator=torch.Generator().manual_seed(seed + worker))
        if kind == "zeros":
            x = torch.zeros(shape)
        elif kind == "constant":
            x = torch.full(shape, 0.37)
        elif kind == "one_hot":
            x = torch.zeros(shape).flatten()
            x[seed % max(1, x.numel()) : seed % max(1, x.numel()) + 1] = 3.0
            x = x.view(shape)
        elif kind == "few_values":
            x = x.round()
        elif kind == "denormal":
            x = x * 1e-40
        elif kind == "huge":
            x = x.clamp(-1, 1) * LIMIT[dtype]
        else:
            x = x * draw(st.sampled_from([1e-30, 1e-6, 1.0, 1e3]))
        out.append(x.to(dtype))
    return out


@st.composite
def cases(draw, name):
    codec = draw(settings_of(name))
    workers = draw(st.integers(1, 5))
    strategy = draw(st.sampled_from(["auto", *possible(codec)]))
    shapes = draw(
        st.lists(
            st.lists(st.integers(0, 40), max_size=3).filter(lambda s: len(s) < 3 or max(s) < 12), min_size=1, max_size=3
        )
    )
    dtype = draw(st.sampled_from(list(LIMIT)))
    grads = {f"p{i}": draw(tensors(tuple(s), dtype, workers)) for i, s in enumerate(shapes)}
    return codec, workers, strategy, grads


def largest(grads):
    return max((float(t.float().abs().max()) for ts in grads.values() for t in ts if t.numel()), default=0.0)


def too_large_for_half(codec, workers, strategy, grads, step):
    """Whether a result that half precision cannot hold is finite in single precision: 1/p times what is sent rarely."""
    cluster = gradwire.VirtualCluster(workers, codec, strategy=strategy)
    for _ in range(step + 1):
        result = cluster.reduce({k: [t.float() for t in ts] for k, ts in grads.items()})
    assert all(t.isfinite().all() for t in result.values())
    return max(float(t.abs().max()) for t in result.values() if t.numel()) > HALF


@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=20, deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_whatever_comes(name, data):
    codec, workers, strategy, grads = data.draw(cases(name))
    cluster = gradwire.VirtualCluster(workers, codec, strategy=strategy)
    ranks = Ranks(codec, workers, strategy=strategy)
    for step in range(2):
        result, apart = cluster.reduce(grads), agreed(ranks.reduce(grads))
        for key, tensors in grads.items():
            assert (result[key].shape, result[key].dtype) == (tensors[0].shape, tensors[0].dtype)
            assert same(result[key], apart[key]) or codec.family == "lowrank", "ranks apart have another result"
            fits = result[key].isfinite().all() or largest(grads) > HALF
            assert fits or too_large_for_half(codec, workers, strategy, grads, step)
            if codec.traits.is_mean and not any(t.count_nonzero() for ts in grads.values() for t in ts):
                assert not result[key].any()
    if codec.traits.fixed_size and codec.steady_from_step == 0:
        shapes = [(k, t[0].shape) for k, t in grads.items()]
        traced = trace(codec, shapes, workers=workers, strategy=strategy, tensors="all")
        assert traced.sent_bytes == cluster.sent_bytes or grads["p0"][0].dtype != torch.float32


@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=8, deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_a_bad_element_is_seen_by_all_and_remembered_by_none(name, data):
    codec, workers, strategy, grads = data.draw(cases(name))
    key = next((k for k, ts in grads.items() if ts[0].numel()), None)
    cluster = gradwire.VirtualCluster(workers, codec, strategy=strategy)
    cluster.reduce(grads)
    if key is None:
        return
    before = {k: cluster.memory(k) for k in grads}
    bad = {k: [t.clone() for t in ts] for k, ts in grads.items()}
    victim = bad[key][data.draw(st.integers(0, workers - 1))].view(-1)
    victim[data.draw(st.integers(0, victim.numel() - 1))] = data.draw(
        st.sampled_from([float("nan"), float("inf"), -float("inf")])
    )
    ranks = Ranks(codec, workers, strategy=strategy)
    ranks.reduce(grads)
    for result in (cluster.reduce(bad), *ranks.reduce(bad)):
        assert not all(result[k].isfinite().all() for k in grads)
    for k, kept in before.items():
        assert all(a is b is None or a.equal(b) for a, b in zip(kept, cluster.memory(k), strict=True))
    assert all(out.isfinite().all() for out in cluster.reduce(grads).values()) or largest(grads) > HALF


@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=8, deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_error_feedback_loses_nothing(name, data):
    """Sum of results + mean of what is owed = sum of mean gradients, relative to the largest of them."""
    codec, workers, strategy, grads = data.draw(cases(name))
    if codec.traits.delta is None and codec.traits.omega is None:
        return
    grads = {k: [t.float() for t in ts] for k, ts in grads.items()}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # codecs of large variance are scaled, and say so
        cluster = gradwire.VirtualCluster(workers, codec, "error_feedback", strategy)
    steps = 3
    sums = {k: torch.zeros(ts[0].shape, dtype=torch.float64) for k, ts in grads.items()}
    for _ in range(steps):
        for k, out in cluster.reduce(grads).items():
            sums[k] += out.double()
    if largest(grads) > HALF and not all(total.isfinite().all() for total in sums.values()):
        return
    for k, total in sums.items():
        owed = torch.stack([m.double() for m in cluster.memory(k)]).mean(0)
        wanted = steps * torch.stack([t.double() for t in grads[k]]).mean(0)
        rounding = 2.0**-7 if codec.spec == "bf16" else 1e-3  # its sums are rounded on the wire, and nobody keeps that
        torch.testing.assert_close(total + owed, wanted, rtol=0, atol=rounding * steps * largest(grads) + 1e-30)
