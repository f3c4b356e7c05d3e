"""Random supports on a GPU, or in Triton's interpreter, against plain torch."""

from __future__ import annotations

import math

import pytest
import torch
from exact import awkward, normal, same
from hypothesis import given, settings
from hypothesis import strategies as st
from on_gpu import back, check_steps, examples, here, needs_triton, on_gpu

import gradwire
from gradwire.core.codec import Codec
from gradwire.core.exchange import Payload
from gradwire.core.random import Random, Stream
from gradwire.core.window import Feedback, Window
from gradwire.kernels import backend
from gradwire.kernels.support import Support, gpu, put_to, take_from

pytestmark = needs_triton
SPECS = ("randomk(ratio=0.1)", "randomk(ratio=0.3, unbiased=True)", "randomblock(ratio=0.2)", "randomk(ratio=1)")
SPANS = ((3, 700), (800, 801), (900, 900), (1000, 2803))


def both(run):
    """What plain torch and the kernels make of the same."""
    with backend.plain_torch():
        wanted = run()
    with on_gpu():
        return run(), wanted


def support_of(k, seed, scattered):
    turn, draw = (Random(seed).common(name) for name in ("turn", "draw"))
    return Support(k, turn, draw if scattered else None)


@settings(max_examples=examples(8, 300), deadline=None)
@given(numel=st.integers(1, 5000), share=st.floats(0, 1), seed=st.integers(0, 10**6), scattered=st.booleans())
def test_values_go_to_the_indices_that_are_drawn(numel, share, seed, scattered):
    support = support_of(max(1, math.ceil(share * numel)), seed, scattered)
    values = here(normal(1, support.k, seed))

    def run():
        target = here(torch.full((1, numel), 9.0))
        flag = put_to(values, support, Window.whole(target), 0.3)
        assert not flag.isnan()
        return back(target)

    found, wanted = both(run)
    assert same(found, wanted)
    assert int((found != 0).sum()) == support.k


@pytest.mark.parametrize("k", [1, 7, 19])
@pytest.mark.parametrize("scattered", [False, True])
def test_every_beginning_of_the_range(scattered, k, monkeypatch):
    """It may lie in any tile, and at the edge of one."""
    monkeypatch.setattr(gpu, "TILE", 8)
    numel, values, begun = 19, here(normal(1, k)), set()
    for key in range(100):
        turn = Stream((key,))
        start = int(Support(1, turn).indices(numel, torch.device("cpu")))
        if start not in begun:
            begun.add(start)
            support = Support(k, turn, Stream((5,), (6,)) if scattered else None)

            def run(support=support):
                target = here(torch.full((1, numel), 9.0))
                put_to(values, support, Window.whole(target), 1.0)
                return back(target)

            assert same(*both(run))
    assert len(begun) == numel


@pytest.mark.parametrize("values", [normal, awkward])
@pytest.mark.parametrize("spans", [SPANS, ((0, 2810),), ((5, 6),)])
@pytest.mark.parametrize("scattered", [False, True])
def test_values_are_taken_with_what_a_memory_adds(scattered, spans, values):
    x = values(3, 2810)
    if values is awkward:  # two rows that are not finite
        x[0, spans[-1][1] - 1], x[1, spans[0][0]] = math.inf, math.nan
    source = Window(here(x), spans)
    numel = source.numel
    support = support_of(-(-numel // 5), 3, scattered)
    held = ((None, 1.0, 1.0, False), (0.1, 1.0, 1.0, False), (0.1, 0.3, 0.7, True), (0.1, None, 1.0, False))
    for kept in (None, *held):

        def run(kept=kept):
            feedback = None
            if kept is not None:
                error, decay, gain, moving = kept
                feedback = Feedback(
                    here(torch.full((3, numel), 9.0)),
                    None if error is None else here(error * normal(3, numel, 5)),
                    here(torch.tensor(0.25)) if decay is None else decay,
                    gain,
                    here(normal(3, numel, 6)) if moving else None,
                )
            sent = take_from(source, feedback, support, 1 / 3, 1.7, 3.0)
            rest = () if feedback is None else (feedback.out, feedback.momentum)
            return tuple(None if t is None else back(t) for t in (sent, *rest))

        found, wanted = both(run)
        assert same(found, wanted)
        assert values is normal or found[0][:2].isnan().all()
        assert not found[0][2].isnan().any()


def test_the_gradient_may_be_the_memory_itself():
    """Momentum correction reads what it keeps."""
    support = support_of(300, 3, True)

    def run():
        v = here(normal(2, 2500))
        sent = take_from(Window.whole(v, scratch=True), Feedback(v), support, 0.5, 1.0, 2.0)
        return back(sent), back(v)

    assert same(*both(run))


@pytest.mark.parametrize("spec", SPECS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_the_fast_form_is_the_simple_one(spec, dtype, monkeypatch):
    codec, rng = gradwire.codec(spec), Random(3, 1, "unit", (0, 1), (0, 0))
    window = Window(here(normal(2, 2810).to(dtype)), SPANS)

    def run(encode, decode):
        feedback = None if "unbiased" in spec else Feedback(here(torch.full((2, window.numel), 9.0)))
        payload = encode(window, feedback, 1 / 3, rng, 0.7)
        target = Window(here(torch.full((1, 2810), 9.0).to(dtype)), SPANS)
        flag = decode(Payload(payload.data[:1]), target, window.numel, rng.of((0,), (0,)), 0.7)
        assert not flag.isnan()
        return tuple(back(t) for t in (payload.data, target.buffer, *(() if feedback is None else [feedback.out])))

    with backend.plain_torch():
        wanted = run(*(getattr(Codec, name).__get__(codec) for name in ("encode_part", "decode_to")))
    for name in ("encode_part", "decode_to"):
        monkeypatch.delattr(Codec, name)  # out of reach
    with on_gpu():
        assert same(run(codec.encode_part, codec.decode_to), wanted)


def test_a_result_that_is_not_finite_is_told():
    for scattered in (False, True):
        support, values = support_of(5, 1, scattered), normal(1, 5)
        values[0, 3] = math.inf
        with on_gpu():
            flag = put_to(here(values), support, Window.whole(here(torch.empty(1, 3000))), 1.0)
        assert flag.isnan()


@pytest.mark.parametrize("spec", [SPECS[0], *(pytest.param(s, marks=pytest.mark.sweep) for s in SPECS[1:])])
def test_whole_steps_are_those_of_plain_torch(spec):
    check_steps(spec, "all_reduce")


def test_words_come_by_a_table_of_keys(monkeypatch):
    """Nothing of a step but its keys reaches a launch by value: the launches of two steps are alike."""
    seen = []
    start = gpu.launch
    monkeypatch.setattr(gpu, "launch", lambda *args, **more: (seen.append((args, more)), start(*args, **more)))
    values, window = here(normal(1, 30)), Window.whole(here(normal(1, 3000)))
    with on_gpu():
        for step in range(2):
            rng = Random(3, step)
            support = Support(30, rng.common("turn"), rng.common("draw"))
            put_to(take_from(window, None, support, 1.0, 1.0, 1.0), support, window, 1.0)
            put_to(values, support, window, 1.0)

    def plain(value):
        if isinstance(value, tuple):
            return tuple(map(plain, value))
        return (value.shape, value.dtype) if isinstance(value, torch.Tensor) else value

    half = len(seen) // 2
    assert half == 7
    assert [plain((args[0].__name__, *args[1:], *more.items())) for args, more in seen[:half]] == [
        plain((args[0].__name__, *args[1:], *more.items())) for args, more in seen[half:]
    ]
