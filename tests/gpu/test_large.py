"""Gradients of more than 2^31 bytes, and many programs at once: the same bits as plain torch, and in every run.

They take up to 60 GB of a GPU's memory: not to be run side by side.
"""

from __future__ import annotations

import warnings

import pytest
import torch

from gradwire.collectives import trace
from gradwire.core.layout import Layout
from gradwire.engine import Engine
from gradwire.kernels import backend

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device, and 60 GB of its memory"),
]
EXACT = ("fp16", "efsignsgd", "signsgd", "blockint(bits=8)", "qsgd", "terngrad", "natural", "eightbit", "onebit", "lpc")
EXACT += ("topk", "topkc", "randomk", "randomblock", "threshold(value=3.0)", "thc")
OTHERS = ("powersgd", "dgc", "mstopk", "signum", "adaptivethreshold", "gtopk", "qsparse")
STEPS = 3


def steps(spec, layout, kernels=True):
    """The results of some steps of one of two workers, and what it keeps."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        engine = Engine(spec, workers=2, seed=5, tensors="all", graphs=kernels)
    x, out = (torch.empty(1, layout.numel, device="cuda") for _ in range(2))
    generator = torch.Generator("cuda")
    seen = []
    with backend.plain_torch(not kernels), torch.no_grad():
        for step in range(STEPS):
            x.normal_(generator=generator.manual_seed(step))
            engine.finish_step([trace.run(engine.reduce(x, layout, out), 2)[1]])
            seen.append(out.clone() if layout.numel < 2**28 else summary(out))
    kept = [piece.entry.tensor for kind in sorted(engine.store.kinds) for piece in engine.store.pieces(kind)]
    return seen + ([k.clone() for k in kept] if layout.numel < 2**28 else [summary(k) for k in kept])


def summary(x):
    """What two tensors that differ will hardly have in common: sums of their bits, each times its place."""
    parts = x.reshape(-1).view(torch.int32).split(1 << 26)
    return torch.stack([(p.long() * torch.arange(1, len(p) + 1, device=p.device)).sum() for p in parts])


def same(one, other):
    return all(torch.equal(a.view(torch.uint8), b.view(torch.uint8)) for a, b in zip(one, other, strict=True))


@pytest.mark.timeout(300)
@pytest.mark.parametrize("spec", ["blockint(bits=8)", "efsignsgd", "natural", "topk", "topkc", "randomk"])
def test_beyond_two_to_the_31_bytes(spec):
    layout = Layout.of([("w", (2**15, 2**14)), ("b", (1001,))])
    assert same(steps(spec, layout), steps(spec, layout, kernels=False))
    torch.cuda.empty_cache()


@pytest.mark.parametrize("spec", EXACT)
def test_large_gradients_give_the_bits_of_plain_torch(spec):
    layout = Layout.of([("w", (2111, 3001)), ("v", (777, 1313)), ("b", (1001,))])
    assert same(steps(spec, layout), steps(spec, layout, kernels=False))


@pytest.mark.parametrize("spec", [*EXACT, *OTHERS])
def test_every_run_gives_the_same_bits(spec):
    layout = Layout.of([("w", (2111, 3001)), ("v", (777, 1313)), ("b", (1001,))])
    first = steps(spec, layout)
    assert all(same(first, steps(spec, layout)) for _ in range(3))
