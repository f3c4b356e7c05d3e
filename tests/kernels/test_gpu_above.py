"""Elements beyond a threshold on a GPU, or in Triton's interpreter, against plain torch."""

from __future__ import annotations

import pytest
import torch
from exact import awkward, normal, same
from hypothesis import given, settings
from hypothesis import strategies as st
from on_gpu import CUDA, back, check_steps, here, needs_triton, on_gpu

import gradwire
from gradwire.codecs.sparsification import _ragged
from gradwire.codecs.sparsification._sparse_payload import support_bytes
from gradwire.core.codec import Codec
from gradwire.core.random import Random
from gradwire.core.window import Feedback, Window
from gradwire.kernels import backend
from gradwire.kernels.above import take_from

pytestmark = needs_triton
SPANS = ((3, 700), (800, 801), (900, 900), (1000, 2803))
KINDS = (None, (None, 1.0, 1.0, False), (0.1, 0.3, 0.7, True), (0.1, None, 1.0, False))


def both(run):
    """What plain torch and the kernels make of the same."""
    with backend.plain_torch():
        wanted = run()
    with on_gpu():
        return run(), wanted


@pytest.mark.parametrize("values", [normal, awkward])
@pytest.mark.parametrize("spans", [SPANS, ((0, 2810),), ((5, 6),)])
@pytest.mark.parametrize("shards", [1, 3])
def test_what_exceeds_is_taken(shards, spans, values):
    """None, some, or all of it: zero is a threshold too, that zeros do not exceed."""
    source = Window(here(values(2, 2810)), spans)
    numel = source.numel
    shard = -(-numel // shards)
    for threshold, bits, kept in ((0.0, 32, KINDS[0]), (0.7, 32, KINDS[1]), (0.7, 16, KINDS[2]), (3e38, 16, KINDS[3])):

        def run(given=(shards, shard, threshold, bits, 0.7), kept=kept):
            feedback = None
            if kept is not None:
                error, decay, gain, moving = kept
                feedback = Feedback(
                    here(torch.full((2, numel), 9.0)),
                    None if error is None else here(error * normal(2, numel, 5)),
                    here(torch.tensor(0.25)) if decay is None else decay,
                    gain,
                    here(normal(2, numel, 6)) if moving else None,
                )
            chosen = take_from(source, feedback, *given)
            rest = () if feedback is None else (feedback.out, feedback.momentum)
            flat = [t for pair in chosen for t in pair]
            return tuple(None if t is None else back(t) for t in (*flat, *rest))

        found, wanted = both(run)
        assert same(found, wanted)


@settings(max_examples=6 if not CUDA else 200, deadline=None)
@given(numel=st.integers(1, 3000), threshold=st.floats(0, 3), seed=st.integers(0, 100))
def test_any_size(numel, threshold, seed):
    x = here(normal(2, numel, seed))

    def run():
        return tuple(back(t) for pair in take_from(Window.whole(x), None, 1, numel, threshold, 32, 1.0) for t in pair)

    assert same(*both(run))


@pytest.mark.parametrize("spec", ["threshold(value=0.5)", "threshold(value=1.5, value_bits=16)", "threshold(value=9)"])
def test_the_fast_form_is_the_simple_one(spec, monkeypatch):
    codec, rng = gradwire.codec(spec), Random(3, 1, "unit", (0, 1), (0, 0))
    x = normal(2, 2810)
    x[1] *= 0.3  # rows of different lengths
    window = Window(here(x), SPANS)
    shard = -(-window.numel // 16) * 8  # two of them

    def run(encode, combine, decode):
        feedback = Feedback(here(torch.full((2, window.numel), 9.0)))
        payload = encode(window, feedback, 1, window.numel, rng, 0.7)
        target, shards = (Window(here(torch.full((1, 2810), 9.0)), SPANS) for _ in range(2))
        flags = [combine(payload, target, rng, 0.7)]
        halves = encode(Window(window.buffer[:1], SPANS), None, 2, shard, rng, 1.0)
        flags.append(decode(halves, shards, shard, rng.of((0,), (0,)), 0.7))
        assert not torch.stack(flags).isnan().any()
        groups = codec.combine(payload, window.numel, rng, 2)
        sent = payload.data, payload.lengths, halves.data, halves.lengths
        return tuple(back(t) for t in (*sent, target.buffer, shards.buffer, groups, feedback.out))

    names = "encode_from", "combine_to", "decode_to"
    with backend.plain_torch():
        wanted = run(*(getattr(Codec, name).__get__(codec) for name in names))
    for name in names:
        monkeypatch.delattr(Codec, name)  # out of reach
    with on_gpu():
        assert same(run(*(getattr(codec, name) for name in names)), wanted)


@pytest.mark.parametrize("bits", [16, 32])
@pytest.mark.parametrize("numel", [1, 2, 7, 64, 1000, 70000])
def test_the_length_of_a_row_says_how_many_it_holds(numel, bits):
    for k in {*range(1, min(numel, 300) + 1), numel // 3, numel // 2, numel - 1, numel} - {0}:
        assert _ragged._counted(4 + support_bytes(numel, k, bits), numel, bits) == k


@pytest.mark.parametrize("spec", ["threshold(value=1.0)", pytest.param("threshold(value=9)", marks=pytest.mark.sweep)])
def test_whole_steps_are_those_of_plain_torch(spec):
    check_steps(spec, "all_gather")
    check_steps(spec, "scatter_reduce_gather")
