"""The GPU's kernels against the simple form in plain torch, bit for bit: on a GPU, or in Triton's interpreter."""

from __future__ import annotations

import math
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from exact import awkward, normal, same
from hypothesis import given, settings
from hypothesis import strategies as st
from on_gpu import ANYWHERE, CUDA, back, check, check_anywhere, check_steps, examples, here, needs_triton, on_gpu

import gradwire
from gradwire.core.codec import Codec
from gradwire.core.random import Random, Stream
from gradwire.core.window import Feedback, Window
from gradwire.kernels import backend, signs

pytestmark = needs_triton
SPECS = (
    "blockint",
    "blockint(bits=8, block=100)",
    "blockint(bits=6, rounding='stochastic')",
    "qsgd",
    "qsgd(levels=127, block=2048)",
    "terngrad",
    "terngrad(clip=None, block=64)",
    "lpc(bits=2, clip=0.9, block=2048)",
    "lpc(bits=3, block=64)",
    "thc",
    "thc(bits=6, rotation='full')",
    "blockint(bits=2, block=64, rotate=True)",
    "blockint(block=32, rounding='stochastic', rotate=True)",
    "efsignsgd",
    "efsignsgd(block=64)",
    "signsgd",
)
EACH = [s if s == gradwire.codec(s).name else pytest.param(s, marks=pytest.mark.sweep) for s in SPECS]
each_codec = pytest.mark.parametrize("spec", EACH)
WITHOUT_MEMORY = {"signsgd"}
GRID = {"_encode_from", "_reduce_and_encode", "_mean_to"}
COMPILED = dict.fromkeys(("blockint", "qsgd", "terngrad", "lpc", "thc"), GRID) | {
    "efsignsgd": {"_encode_scaled_from", "_reduce_and_encode", "_mean_to"},
    "signsgd": {"_encode_or_toss_from", "_vote", "_toss", "_decode_to"},
    "fp16": {"_half_from", "_half_to", "_settle"},
    "randomk": {"_draw", "_take", "_spoil", "_put"},
    "randomblock": {"_draw_run", "_take_run", "_spoil", "_put_run"},
    "topkc": {"_square_sums", "_arrange", "_take", "_put"},
    "threshold": {"_count", "_collect", "_write", "_ones", "_read", "_put_to"},
    "signum": {"_encode_or_toss_from", "_vote", "_toss", "_decode_to"},
}
OTHERS = "fp16", "randomk", "randomblock", "topkc", "threshold", "signum"
PLACES = {
    "whole": (awkward(1, 3000), ((0, 3000),)),
    "spans": (normal(2, 5003), ((3, 700), (800, 801), (900, 900), (1000, 5003))),
    "tiny": (awkward(2, 9), ((1, 2), (4, 9))),
}


class Spied(RuntimeError):
    """Plain torch was asked where a kernel is wanted."""


@pytest.fixture
def fast_only(monkeypatch):
    """The simple form is out of reach."""

    def refuse(*args, **kwargs):
        raise Spied

    for name in ("encode_from", "decode_to", "combine_to"):
        monkeypatch.setattr(Codec, name, refuse)


@pytest.mark.parametrize("shards", [1, 3])
@pytest.mark.parametrize("place", PLACES)
@each_codec
def test_kernels_give_what_the_simple_form_gives(spec, place, shards):
    """With a memory whose factor is a number, or known on the device only."""
    codec, (x, spans) = gradwire.codec(spec), PLACES[place]
    check(codec, x, spans, shards, None if spec in WITHOUT_MEMORY else (0.3 if shards == 1 else None, 1.0, False))


@pytest.mark.parametrize("kind", [None, (1.0, 1.0, True), (1.0, 0.7, False)])
@pytest.mark.parametrize("spec", ["blockint", "qsgd", "efsignsgd"])
def test_any_memory(spec, kind):
    check(gradwire.codec(spec), normal(2, 700), ((0, 300), (301, 700)), 2, kind, 1.0 if spec == "efsignsgd" else 0.46)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("spec", ["blockint", "terngrad", "efsignsgd", "signsgd"])
def test_gradients_of_16_bits_are_read_as_they_are(spec, dtype):
    kind = None if spec in WITHOUT_MEMORY else (0.3, 1.0, False)
    check(gradwire.codec(spec), normal(2, 700).to(dtype), ((0, 300), (301, 700)), 2, kind)


@settings(max_examples=examples(6, 200), deadline=None)
@given(spec=st.sampled_from(SPECS), **ANYWHERE)
def test_any_shape(spec, lengths, shards, seed):
    kind = None if spec in WITHOUT_MEMORY else (0.3, 1.0, False)
    check_anywhere(gradwire.codec(spec), lengths, shards, seed, kind)


@each_codec
def test_no_fast_form_falls_back(spec, fast_only):
    """Where a kernel is promised, the simple form is not called."""
    codec, window = gradwire.codec(spec), Window(here(normal(1, 900)), ((0, 900),))
    kept = None if codec.name in WITHOUT_MEMORY else Feedback(here(torch.empty(1, 900)), None)
    with on_gpu():
        payload = codec.encode_from(window, kept, 1, 900, Random())
        codec.decode_to(payload, window, 900, Random())
        if codec.name not in WITHOUT_MEMORY:  # votes are counted and decoded, not combined in place
            codec.combine_to(payload, window, Random())


@pytest.mark.parametrize("spec", ["blockint(block=9)", "lpc(bits=3, block=7)", "efsignsgd(block=7)"])
def test_blocks_that_kernels_cannot_treat_are_left_to_plain_torch(spec):
    check(gradwire.codec(spec), normal(2, 9000), ((0, 300), (301, 9000)), 2, (0.3, 1.0, False))


@pytest.mark.parametrize("strategy", [pytest.param("all_gather", marks=pytest.mark.sweep), "scatter_reduce_gather"])
@each_codec
def test_whole_steps_are_those_of_plain_torch(spec, strategy):
    check_steps(spec, strategy)


@pytest.mark.parametrize("beta", [0.9, 0.0])
def test_a_momentum_is_kept_in_the_launch_that_takes_its_signs(beta, monkeypatch):
    """Of spans, in 16 bits too, with a scale that changes; what is kept is compared as well."""
    shapes = {"a": (40, 30), "b": (17,), "c": (70, 41)}

    def run(dtype):
        cluster = gradwire.VirtualCluster(2, f"signum(beta={beta})", strategy="scatter_reduce_gather", seed=3)
        seen = []
        for step in range(3):
            gradients = {
                name: [here(normal(1, math.prod(shape), 10 * step + w).view(shape)).to(dtype) for w in range(2)]
                for name, shape in shapes.items()
            }
            seen += cluster.reduce(gradients).values()
            seen += [piece.entry.tensor.clone() for piece in pieces(cluster)]
        return [back(tensor) for tensor in seen]

    def pieces(cluster):
        return cluster.engine.store.pieces("signum_momentum")

    for dtype in (torch.float32, torch.float16):
        with backend.plain_torch():
            wanted = run(dtype)
        with on_gpu(), monkeypatch.context() as patch:
            patch.setattr(Feedback, "compensated", None)  # out of reach
            found = run(dtype)
        assert len(found) == len(wanted) > 9
        assert all(same(one, other) for one, other in zip(found, wanted, strict=True))


def test_zeros_keep_their_sign():
    """The mean magnitude of a block may vanish; what is negative is then −0."""
    x = torch.zeros(1, 4096)
    x[0, 5], x[0, 7] = -1e-45, 1e-45
    check(gradwire.codec("efsignsgd"), x, ((0, 4096),), 1, (1.0, 1.0, True))


@pytest.mark.parametrize("voters", [1, 2, 3, 4, 7])
def test_votes(voters):
    data = torch.randint(0, 256, (2 * voters, 1100), dtype=torch.uint8, generator=torch.Generator().manual_seed(voters))
    ties = torch.randint(0, 256, (2, 1100), dtype=torch.uint8, generator=torch.Generator().manual_seed(9))
    with on_gpu():
        found = signs.vote(here(data)[:, 1:], here(ties)[:, 1:], groups=2)
    assert found.cpu().equal(signs.reference.vote(data[:, 1:], ties[:, 1:], 2))


@pytest.mark.parametrize("offset", [0, 128, 4096, 32, 7])
@pytest.mark.parametrize("numel", [1, 8, 127, 1001])
def test_tosses(offset, numel):
    stream = Stream((5, 2**64 - 3, 5), (offset, 2 * offset, offset))
    with on_gpu():
        found = signs.tosses(stream, numel, here(torch.zeros(1)).device)
    assert found.cpu().equal(signs.reference.tosses(stream, numel, torch.device("cpu")))


def test_halves_beyond_the_32nd_bit():
    """Rounding draws number `offset` + i of a stream, however far that is."""
    codec, window = gradwire.codec("qsgd"), Window(here(normal(1, 600)), ((0, 600),))
    for offset in (2**32 - 512, 2**33 - 512, 2**40):
        rng = Random(offsets=(offset,))
        with on_gpu():
            found = codec.encode_from(window, None, 1, 600, rng)
        with backend.plain_torch():
            wanted = Codec.encode_from(codec, window, None, 1, 600, rng)
        assert found.data.equal(wanted.data)


@pytest.mark.skipif(not CUDA, reason="needs a CUDA device, and 12 GB of its memory")
@pytest.mark.parametrize("spec", ["blockint", "efsignsgd"])
def test_more_than_two_to_the_31_bytes(spec):
    codec, numel = gradwire.codec(spec), 2**29 + 1000
    window = Window(torch.randn(1, numel, device="cuda"), ((5, numel),))
    kept = Feedback(torch.empty(1, numel - 5, device="cuda"), None)
    payload = codec.encode_from(window, kept, 1, numel - 5, Random())
    out = Window(torch.zeros(1, numel, device="cuda"), window.spans)
    codec.decode_to(payload, out, numel - 5, Random())
    assert torch.equal(window.buffer[:, 5:] - out.buffer[:, 5:], kept.out)
    assert out.buffer[0, -1] != 0


@pytest.mark.parametrize(
    "spec", ["blockint", *(pytest.param(s, marks=pytest.mark.sweep) for s in (*SPECS[1:], *OTHERS))]
)
def test_kernels_compile_for_a_gpu(spec):
    """For an H100 or H200, without one: the interpreter takes what the compiler refuses."""
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    command = [sys.executable, str(Path(__file__).with_name("compile_kernels.py")), spec]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stderr[-4000:]
    assert {line.partition(".")[2] for line in done.stdout.split()} >= COMPILED[gradwire.codec(spec).name]
