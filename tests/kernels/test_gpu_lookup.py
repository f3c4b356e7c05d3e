"""Codecs that round each element to a power of two, to a table or to two means, on a GPU against their simple form."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from exact import awkward, normal
from hypothesis import given, settings
from hypothesis import strategies as st
from on_gpu import ANYWHERE, CUDA, check, check_anywhere, check_steps, examples, here, needs_triton, on_gpu

import gradwire
from gradwire.codecs.quantization._tables import codebook
from gradwire.codecs.quantization.natural import Natural
from gradwire.core.codec import Codec
from gradwire.core.random import Random
from gradwire.core.window import Feedback, Window
from gradwire.kernels import backend, lookup

pytestmark = needs_triton
SPECS = (
    "natural",
    "natural(bits=8)",
    "eightbit",
    "eightbit(form='static', block=64)",
    "eightbit('static', 7)",
    "onebit",
    "onebit(block=64)",
    "onebit(block=72)",
)
USUAL = ("natural", "natural(bits=8)", "eightbit", "onebit")


def seldom(value):
    """Tried in sweeps only."""
    return pytest.param(value, marks=pytest.mark.sweep)


each_codec = pytest.mark.parametrize("spec", [s if s in USUAL else seldom(s) for s in SPECS])
PACKAGES = {"natural": "powers", "eightbit": "lookup", "onebit": "means"}
CLOSE = (*(0.5 + i * 2.0**-20 for i in range(40)), 1.5)  # many midpoints begin with the same bits
PLACES = {
    "whole": (awkward(1, 3000), ((0, 3000),)),
    "spans": (awkward(2, 5003), ((3, 700), (800, 801), (900, 900), (1000, 5003))),
    "tiny": (awkward(2, 9), ((1, 2), (4, 9))),
}


class Seen(Natural):
    """Payloads are compared by what they stand for: only NaN is as good as NaN."""

    def read(self, payload, numel):
        """The values."""
        return (self.decode(payload, numel, Random()),)


def codec_of(spec):
    codec = gradwire.codec(spec)
    return Seen(codec.bits) if isinstance(codec, Natural) else codec


def small(rows, numel, seed=0):
    """Finite, of both signs, from subnormal to large, with zeros of both signs."""
    x = awkward(rows, numel, seed)
    return torch.where(x.isfinite() & (x.abs() < 1e37), x, -0.0)


@pytest.mark.parametrize("shards", [1, 3])
@pytest.mark.parametrize("place", PLACES)
@each_codec
def test_kernels_give_what_the_simple_form_gives(spec, place, shards):
    """With a memory whose factor is a number, or known on the device only."""
    x, spans = PLACES[place]
    check(codec_of(spec), x, spans, shards, (0.3 if shards == 1 else None, 1.0, False))


@pytest.mark.parametrize("kind", [None, (1.0, 1.0, True), (1.0, 0.7, False)])
@pytest.mark.parametrize("spec", [seldom(s) if s == "natural(bits=8)" else s for s in USUAL])
def test_any_memory(spec, kind):
    check(codec_of(spec), small(2, 700), ((0, 300), (301, 700)), 2, kind, 0.46)


@pytest.mark.parametrize("dtype", [torch.float16, seldom(torch.bfloat16)])
@pytest.mark.parametrize("spec", USUAL)
def test_gradients_of_16_bits_are_read_as_they_are(spec, dtype):
    check(codec_of(spec), normal(2, 700).to(dtype), ((0, 300), (301, 700)), 2, (0.3, 1.0, False))


@settings(max_examples=examples(10, 200), deadline=None)
@given(spec=st.sampled_from(SPECS), **ANYWHERE)
def test_any_shape(spec, lengths, shards, seed):
    check_anywhere(codec_of(spec), lengths, shards, seed, (0.3, 1.0, False))


@pytest.mark.parametrize("rows", [seldom(1), 2])
@pytest.mark.parametrize("numel", [seldom(1), 7, seldom(2049)])
@each_codec
def test_payloads_are_equal_byte_for_byte(spec, numel, rows):
    """Those of finite gradients: with unused bits, and with numbers for each row, however far in a stream."""
    codec, x = gradwire.codec(spec), small(rows, numel)
    for offset in (0, 2**32 - 512, 2**40 + 8):
        rng = Random(ranks=tuple(range(rows)), offsets=tuple(offset + 8 * i for i in range(rows)))
        with on_gpu():
            found = codec.encode_from(Window.whole(here(x)), None, 1, numel, rng).data
        with backend.plain_torch():
            wanted = Codec.encode_from(codec, Window.whole(here(x)), None, 1, numel, rng).data
        assert found.equal(wanted)
        assert found.shape[1] == codec.payload_bytes(numel)


@pytest.mark.parametrize("groups", [seldom(1), 3])
@pytest.mark.parametrize("spec", USUAL)
def test_owners_of_several_shards(spec, groups):
    """A group of rows for each owner in this process."""
    codec, numel, senders = gradwire.codec(spec), 2100, 2
    rng = Random(ranks=tuple(range(groups * senders)), offsets=(64,) * (groups * senders))
    down = Random(step=1, ranks=tuple(range(groups)), offsets=tuple(2104 * i for i in range(groups)))
    with backend.plain_torch():
        payload = codec.encode(here(small(groups * senders, numel)), rng)

    def reduced(form):
        kept = Feedback(here(torch.empty(groups, numel)), here(normal(groups, numel, 1)), 0.7)
        return form(payload, numel, rng, down, kept, groups, 0.46).data, kept.out

    with backend.plain_torch():
        wanted = reduced(Codec.reduce_and_encode.__get__(codec))
    with on_gpu():
        found = reduced(codec.reduce_and_encode)
    assert found[0].equal(wanted[0])
    assert found[1].equal(wanted[1])


@pytest.mark.parametrize("strategy", [seldom("all_gather"), "scatter_reduce_gather"])
@pytest.mark.parametrize("spec", ["natural", *map(seldom, SPECS[1:])])
def test_whole_steps_are_those_of_plain_torch(spec, strategy):
    check_steps(spec, strategy)


@pytest.mark.parametrize("midpoints", [CLOSE, (0.25,), ()])
def test_any_table(midpoints):
    """Midpoints that begin alike, one of them, and none; shares on them, between and beside them."""
    shares = torch.tensor([0.0, 1.0, *midpoints, *(m + 2.0**-21 for m in midpoints), *(m / 2 for m in midpoints)])
    x = torch.cat((shares, -shares, torch.tensor([torch.nan, torch.inf])))[None]
    x = torch.cat((x, x.nan_to_num(0.0, 0.5)))
    form = lookup.fused(8, midpoints, codebook("dynamic"))
    with on_gpu():
        found = form.encode_from(Window.whole(here(x)), None, 1, x.shape[1], None, 1.0).cpu()
    largest = lookup.reference.rows.blocks(x.abs(), 8).amax(2)
    codes = lookup.reference.encode(x, torch.where(largest > 0, largest, 1.0), 8, midpoints)
    assert found[:, 4 * largest.shape[1] :].equal(codes)


@each_codec
def test_no_fast_form_falls_back(spec, monkeypatch):
    """Where a kernel is promised, the simple form is not called."""

    def refuse(*args, **kwargs):
        raise AssertionError("the simple form was called")

    codec, window = gradwire.codec(spec), Window(here(normal(1, 900)), ((0, 900),))
    for name in ("encode_from", "decode_to", "combine_to", "reduce_and_encode"):
        monkeypatch.setattr(Codec, name, refuse)
    with on_gpu():
        payload = codec.encode_from(window, Feedback(here(torch.empty(1, 900)), None), 1, 900, Random())
        codec.decode_to(payload, window, 900, Random())
        codec.combine_to(payload, window, Random())
        codec.reduce_and_encode(payload, 900, Random(), Random(), None, 1)


@pytest.mark.parametrize("spec", ["eightbit(block=8200)", "onebit(block=7)", "onebit(block=16384)"])
def test_blocks_that_kernels_cannot_treat_are_left_to_plain_torch(spec):
    check(gradwire.codec(spec), normal(2, 9000), ((0, 300), (301, 9000)), 2, (0.3, 1.0, False))


@pytest.mark.skipif(CUDA, reason="asks for plain kernels of the CPU")
@pytest.mark.parametrize("spec", USUAL)
def test_a_cpu_takes_the_simple_form(spec):
    codec, window = gradwire.codec(spec), Window.whole(torch.zeros(1, 8))
    assert not codec.fused.reads(window)
    assert not codec.fused.takes(window.buffer, 8)


@pytest.mark.sweep
@pytest.mark.parametrize("specs", [USUAL[::2] + USUAL[3:], seldom(SPECS)])
def test_kernels_compile_for_a_gpu(specs):
    """For an H100 or H200, without one: the interpreter takes what the compiler refuses."""
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    command = [sys.executable, str(Path(__file__).with_name("compile_kernels.py")), *specs]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stderr[-4000:]
    packages = {PACKAGES[gradwire.codec(spec).name] for spec in specs}
    wanted = {f"{p}.{kernel}" for p in packages for kernel in ("_encode_from", "_reduce_and_encode", "_mean_to")}
    assert set(done.stdout.split()) >= wanted
