"""Elements beyond a threshold on a GPU, or in Triton's interpreter, against plain torch."""

from __future__ import annotations

import pytest
import torch
from exact import awkward, normal, same
from hypothesis import given, settings
from hypothesis import strategies as st
from on_gpu import back, check_steps, examples, here, mostly, needs_triton, on_gpu

import gradwire
from gradwire.codecs.sparsification import _ragged
from gradwire.core.codec import Codec
from gradwire.core.errors import CorruptPayload
from gradwire.core.random import Random
from gradwire.core.window import Feedback, Window
from gradwire.kernels import backend, counted, indices
from gradwire.kernels.counted import row_bytes
from gradwire.kernels.indices import CODINGS, resolve

pytestmark = needs_triton
SPANS = ((3, 700), (800, 801), (900, 900), (1000, 2803))
RNG = Random(3, 1, "unit")
KINDS = (None, (None, 1.0, 1.0, False), (0.1, 0.3, 0.7, True), (0.1, None, 1.0, False))


def both(run):
    """What plain torch and the kernels make of the same."""
    with backend.plain_torch():
        wanted = run()
    with on_gpu():
        return run(), wanted


@pytest.mark.parametrize("values", mostly(awkward, normal))
@pytest.mark.parametrize("spans", mostly(SPANS, ((5, 6),), ((0, 2810),), always=2))
@pytest.mark.parametrize("shards", mostly(3, 1))
def test_what_exceeds_is_taken(shards, spans, values):
    """None, some, or all of it: zero is a threshold too, that zeros do not exceed."""
    source = Window(here(values(2, 2810)), spans)
    numel = source.numel
    shard = -(-numel // shards)
    for threshold, bits, kept in ((0.0, 32, KINDS[0]), (0.7, 32, KINDS[1]), (0.7, 16, KINDS[2]), (3e38, 16, KINDS[3])):
        codec = gradwire.codec(f"threshold(value={threshold}, value_bits={bits})")

        def run(codec=codec, kept=kept):
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
            payload = codec.encode_from(source, feedback, shards, shard, RNG, 0.7)
            rest = () if feedback is None else (feedback.out, feedback.momentum)
            return tuple(None if t is None else back(t) for t in (payload.data, payload.lengths, *rest))

        found, wanted = both(run)
        assert same(found, wanted)


@settings(max_examples=examples(6, 200), deadline=None)
@given(numel=st.integers(1, 3000), threshold=st.floats(0, 3), seed=st.integers(0, 100), bits=st.sampled_from((16, 32)))
def test_any_size(numel, threshold, seed, bits):
    """There and back, whatever coding is the shortest."""
    x, codec = here(normal(2, numel, seed)), gradwire.codec(f"threshold(value={threshold}, value_bits={bits})")

    def run():
        payload = codec.encode(x, RNG)
        return tuple(map(back, (payload.data, payload.lengths, codec.combine(payload, numel, RNG))))

    assert same(*both(run))


@pytest.mark.parametrize(
    "spec", mostly("threshold(value=1.5, value_bits=16)", "threshold(value=9)", "threshold(value=0.5)", always=2)
)
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
        assert _ragged._counted(row_bytes(numel, k, bits), numel, bits) == k


@pytest.fixture(params=["one program", "several"])
def cut(request, monkeypatch):
    """Rows that are a program's, and rows that are cut into pieces of several turns."""
    from gradwire.kernels.counted import gpu

    if request.param == "several":
        monkeypatch.setattr(gpu, "SIZE", 64)
        monkeypatch.setattr(gpu, "PIECES", 4)


SIZES = ((1, 1), (7, 3), (300, 1), (300, 100), (300, 300), (2000, 12), (140_000, 1), (140_000, 900))


@pytest.mark.parametrize("bits", mostly(16, 32))
@pytest.mark.parametrize("numel, k", SIZES)
def test_rows_of_changing_size(cut, numel, k, bits):
    """Rows of k entries, of fewer, and of none, with anything behind their ends; and rows that begin anywhere."""
    counts = [k, 0, max(1, k // 3), 1]
    entries = [(normal(1, count, i), subset(numel, count, i)) for i, count in enumerate(counts)]
    wanted = _ragged.ragged([_ragged.write_counted(*one, numel, bits) for one in entries])
    odd = torch.full((4, wanted.data.shape[1] + 1), 77, dtype=torch.uint8)
    for row, sent, n in zip(odd, wanted.data, wanted.lengths, strict=True):
        row[:n] = sent[:n]
    for data in (wanted.data, odd):
        with on_gpu():
            values, where = map(back, counted.read(here(data), wanted.lengths, numel, bits))
        for row, (one, at) in enumerate(entries):
            count = counts[row]
            assert where[row, :count].equal(at[0].int())
            assert same(values[row, :count], one[0] if bits == 32 else one[0].half().float())
            assert bool((where[row, count:] == numel).all())


def test_all_codings_are_tried():
    assert {resolve(numel, count) for numel, count in SIZES for count in (count, max(1, count // 3))} >= {*CODINGS} - {
        "blocks"
    }


def subset(numel, count, seed=0):
    draw = torch.Generator().manual_seed(seed)
    return torch.randperm(numel, generator=draw)[:count].sort().values[None]


@pytest.mark.parametrize("change", ["count", "length", "bytes"])
def test_rows_that_no_encoder_writes(cut, change):
    """A count that does not fit the length is none; marks may be too few, and nobody writes outside."""
    numel = 300
    payload = _ragged.ragged([_ragged.write_counted(normal(1, 40), subset(numel, 40), numel, 32)])
    data, lengths = payload.data.clone(), payload.lengths
    if change == "count":
        data[0, 0] = 41
    elif change == "length":
        lengths = lengths - 1
    else:
        data[0, 4 + 160 :] = 0
    with on_gpu():
        _, where = map(back, counted.read(here(data), lengths, numel, 32))
    if change == "bytes":
        marks = indices.reference.decode(data[:, 4 + 160 :], numel, 40, resolve(numel, 40))
        assert where[0, :40].long().equal(marks[0])
        with backend.plain_torch(), pytest.raises(CorruptPayload, match="an index lies outside"):
            _ragged.read_counted(data, numel, 32)
    else:
        assert bool((where == numel).all())


@pytest.mark.parametrize("spec", mostly("threshold(value=9)", "threshold(value=1.0)"))
def test_whole_steps_are_those_of_plain_torch(spec):
    check_steps(spec, "all_gather")
    check_steps(spec, "scatter_reduce_gather")
