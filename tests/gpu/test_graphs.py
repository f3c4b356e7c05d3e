"""CUDA graphs: what is replayed is what would have been launched, and what cannot be replayed is launched."""

from __future__ import annotations

import warnings

import pytest
import torch

import gradwire
from gradwire.collectives import trace
from gradwire.core.codec import codecs
from gradwire.core.layout import Layout
from gradwire.engine import Engine

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
SHAPES = {"w": (64, 48), "b": (48,), "v": (40, 70), "c": (9,)}
LAYOUT = Layout.of(SHAPES.items())
STEPS = 9
CODECS = [c for n in codecs.names() for c in [gradwire.codec(n), *map(gradwire.codec, codecs.cls(n).variants)]]
CAPTURED = ("fp16", "efsignsgd", "signsgd", "blockint", "qsgd", "terngrad", "natural", "eightbit", "thc", "topk", "dgc")
CAPTURED += ("topkc", "randomk", "powersgd")


def train(codec, graphs, spoil=None, scales=None, **options):
    """Results and memories of some steps of one of three workers; and how they were made."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        engine = Engine(codec, workers=3, graphs=graphs, seed=5, **options)
    x, out = torch.empty(1, LAYOUT.numel, device="cuda"), torch.empty(1, LAYOUT.numel, device="cuda")
    seen = []
    for step in range(STEPS):
        x.copy_(torch.randn(x.shape, generator=torch.Generator().manual_seed(step)))
        if step == spoil:
            x[0, 70] = float("nan")
        engine.begin_step(loss_scale=1.0 if scales is None else scales[step])
        with torch.no_grad():
            engine.finish_step([trace.run(engine.reduce(x, LAYOUT, out), 3)[1]])
        seen.append(out.clone())
        for kind in sorted(engine.store.kinds):
            seen += [piece.entry.tensor.clone() for piece in engine.store.pieces(kind)]
    return seen, engine


def alike(one, other):
    """Bit for bit."""
    pairs = list(zip(one, other, strict=True))
    return all(torch.equal(a.view(torch.uint8), b.view(torch.uint8)) for a, b in pairs)


@pytest.mark.parametrize("codec", CODECS, ids=lambda c: c.spec)
def test_replays_give_what_launches_give(codec):
    launched, plain = train(codec, False)
    replayed, engine = train(codec, True)
    assert alike(replayed, launched)
    found = engine.graphs.summary()
    assert plain.graphs.summary() == {"captured": 0, "replays": 0, "launched": {}}
    if codec.spec in CAPTURED:
        assert found["captured"] == 1
        assert found["replays"] >= STEPS - 4
        assert not found["launched"]


def test_variable_sizes_are_launched():
    assert train("threshold(value=0.5)", True)[1].graphs.summary()["replays"] == 0


def test_a_bad_step_between_replays_leaves_no_trace():
    for codec in ("blockint", "powersgd", "topk"):
        launched, replayed = (train(codec, graphs, spoil=6) for graphs in (False, True))
        assert alike(replayed[0], launched[0])
        assert replayed[1].skipped_steps == launched[1].skipped_steps == 1


def test_a_new_loss_scale_is_followed():
    scales = [4.0] * 5 + [2.0] * 4
    launched, replayed = (train("topk", graphs, scales=scales) for graphs in (False, True))
    assert alike(replayed[0], launched[0])


def test_moving_gradients_are_launched():
    engine = Engine("blockint", workers=3)
    kept = []
    for step in range(40):
        x = torch.randn(1, LAYOUT.numel, device="cuda", generator=torch.Generator("cuda").manual_seed(step))
        kept.append(x)  # so that the next one lies elsewhere
        engine.finish_step([trace.run(engine.reduce(x, LAYOUT), 3)[1]])
    assert engine.graphs.summary()["replays"] == 0


def test_the_switch(monkeypatch):
    monkeypatch.setenv("GRADWIRE_GRAPHS", "off")
    assert train("blockint", True)[1].graphs.summary()["replays"] == 0
