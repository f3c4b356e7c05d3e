"""Where the GPU's kernels run in tests: on a GPU, or in Triton's interpreter."""

from __future__ import annotations

import importlib.util
import math
import os
import warnings
from contextlib import contextmanager

import pytest
import torch
from exact import awkward, normal, same
from hypothesis import strategies as st
from torch import Tensor

import gradwire
from gradwire.core.codec import Codec
from gradwire.core.exchange import Payload
from gradwire.core.random import Random
from gradwire.core.window import Feedback, Window
from gradwire.kernels import backend

CUDA = torch.cuda.is_available()
DEVICE = torch.device("cuda" if CUDA else "cpu")
needs_triton = pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="needs Triton")


def mostly(*values, always=1):
    """All of the values; those behind the first ones are left to the sweeps: the interpreter is slow."""
    return [v if i < always else pytest.param(v, marks=pytest.mark.sweep) for i, v in enumerate(values)]


def examples(interpreted, on_a_gpu):
    """How many inputs of Hypothesis's to try. A checker of memory or races can ask for fewer: each is a compilation."""
    return min(on_a_gpu, int(os.environ.get("GRADWIRE_EXAMPLES", on_a_gpu))) if CUDA else interpreted


def check_momentum(spec):
    """The momentum of what is sent becomes zero, where plain torch says so."""
    codec, window = gradwire.codec(spec), Window(here(normal(2, 900)), ((3, 403), (450, 850)))

    def run():
        feedback = Feedback(here(normal(2, 800, 4)), here(normal(2, 800, 5)), 0.3, 0.7, here(normal(2, 800, 6)))
        payload = codec.encode_from(window, feedback, 3, 272, Random(3, 1, "unit", (0, 1), (5, 9)), 0.46)
        return tuple(map(back, (payload.data, feedback.out, feedback.momentum)))

    with backend.plain_torch():
        wanted = run()
    with on_gpu():
        assert same(run(), wanted)


@contextmanager
def on_gpu():
    """Inside, kernels are Triton's."""
    if CUDA:
        yield
        return
    with backend.interpreted(), warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # NumPy's, of values that are not finite
        yield


@contextmanager
def no_waiting():
    """Inside, an operation that waits for the GPU is an error."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # of a prototype
        torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")


def here(x):
    """A tensor where the kernels run."""
    return x.to(DEVICE)


def back(x):
    """What came out, for comparison; numbers of 16 bits as they are in 32."""
    if isinstance(x, tuple):
        return tuple(map(back, x))
    return x.cpu().float() if x.is_floating_point() else x.cpu()


def parts_of(codec, payload, numel):
    """The numbers that a payload holds."""
    return codec.read(payload, numel) if hasattr(codec, "read") else codec.entries(payload, numel, Random(3, 1, "unit"))


def forms(codec, window, feedback, shards, shard, factor, simple):
    """What the simple form and the fast one make of the same: payloads, errors, results, flags."""
    base = (lambda name: getattr(Codec, name).__get__(codec)) if simple else (lambda name: getattr(codec, name))
    ranks, numel = tuple(range(window.rows)), window.numel
    rng = Random(3, 1, "unit", ranks, (5 * codec.alignment,) * len(ranks))
    payload = base("encode_from")(window, feedback(window.rows, numel), shards, shard, rng, factor)
    error = feedback.last
    yield "payload", back(parts_of(codec, payload, shard))
    yield "error", None if error is None else back(error.out)
    target = Window(here(torch.zeros(1, window.buffer.shape[1])).to(window.buffer.dtype), window.spans)
    first = Payload(payload.data[:shards])
    flag = base("decode_to")(first, target, shard, rng.of((0,), (0,)), factor)
    yield "decoded", back(target.buffer), bool(flag.isnan())
    senders, down = rng.of(range(shards), (0,) * shards), rng.fold("down").of((0,), (32,))
    again = base("reduce_and_encode")(first, shard, senders, down, feedback(1, shard), 1, factor)
    yield "recoded", back(parts_of(codec, again, shard)), None if feedback.last is None else back(feedback.last.out)
    if shards == 1:
        target = Window(here(torch.zeros(1, window.buffer.shape[1])).to(window.buffer.dtype), window.spans)
        flag = base("combine_to")(payload, target, rng, factor)
        yield "combined", back(target.buffer), bool(flag.isnan())


class Memory:
    """Makes the same feedback again and again, and remembers the last."""

    def __init__(self, kind):
        self.kind, self.last = kind, None

    def __call__(self, rows, numel):
        if self.kind is None:
            self.last = None
            return None
        decay, gain, first = self.kind
        error = None if first else here(0.1 * normal(rows, numel, 5))
        decay = here(torch.tensor(0.25)) if decay is None else decay
        self.last = Feedback(here(torch.full((rows, numel), 9.0)), error, decay, gain)
        return self.last


def check(codec, x, spans, shards, kind, factor=1.0):
    window, numel = Window(here(x), spans), sum(last - first for first, last in spans)
    shard = numel if shards == 1 else -(-numel // (shards * codec.alignment)) * codec.alignment
    given = codec, window, Memory(kind), shards, shard, factor
    with backend.plain_torch():
        wanted = list(forms(*given, True))
    with on_gpu():
        found = list(forms(*given, False))
    for a, b in zip(found, wanted, strict=True):
        for one, other in zip(a[1:], b[1:], strict=True):
            if isinstance(one, Tensor) and x.dtype == torch.bfloat16 and not CUDA:
                assert torch.allclose(one, other, rtol=2.0**-7)  # the interpreter cuts bits off
            else:
                assert one == other if isinstance(one, bool) else same(one, other), (codec.spec, a[0])


def check_steps(spec, strategy):
    """Several tensors of which vectors are left out, three workers, two steps: results and memories."""

    def run():
        cluster = gradwire.VirtualCluster(3, spec, strategy=strategy, tensors="matrices", seed=3)
        seen = []
        for step in range(2):
            shapes = {"a": (40, 30), "b": (17,), "c": (70, 41), "d": (9,), "e": (5,), "f": (33, 41)}
            gradients = {
                name: [here(normal(1, math.prod(shape), 10 * step + worker).view(shape)) for worker in range(3)]
                for name, shape in shapes.items()
            }
            seen += cluster.reduce(gradients).values()
            seen += [kept for name in shapes for kept in cluster.memory(name) if kept is not None]
        return [back(tensor) for tensor in seen]

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # codecs of large variance are scaled, and say so
        with backend.plain_torch():
            wanted = run()
        with on_gpu():
            found = run()
    assert len(found) == len(wanted)
    assert all(same(one, other) for one, other in zip(found, wanted, strict=True))


ANYWHERE = {
    "lengths": st.lists(st.tuples(st.integers(0, 400), st.integers(0, 30)), min_size=1, max_size=6),
    "shards": st.integers(1, 4),
    "seed": st.integers(0, 100),
}


def check_anywhere(codec, lengths, shards, seed, kind):
    """Spans of these lengths and gaps, some of them empty, cut into shards."""
    spans, at = [], 0
    for length, gap in lengths:
        spans.append((at, at + length))
        at += length + gap
    if any(length for length, _ in lengths):
        check(codec, awkward(1, at, seed), tuple(spans), shards, kind)
