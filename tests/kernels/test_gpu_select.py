"""Selection and scattering on a GPU against plain torch, bit for bit: on a GPU, or in Triton's interpreter."""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path

import pytest
import torch
from exact import awkward, normal, same
from hypothesis import given, settings
from hypothesis import strategies as st
from on_gpu import ANYWHERE, CUDA, back, check, check_anywhere, examples, here, needs_triton, no_waiting, on_gpu

import gradwire
from gradwire.core.codec import Codec
from gradwire.core.random import Random
from gradwire.core.window import Feedback, Window, padded
from gradwire.kernels import backend, scatter, select

pytestmark = needs_triton
NAN = float("nan")
SWEEP = pytest.mark.sweep
WAYS = {
    "small": {},
    "long": {"SMALL": 0, "TILE": 256},
    "sampled": {"SMALL": 0, "TILE": 256, "SAMPLED": 0, "SAMPLE": 64},
}
SPECS = ("topk", "topk(ratio=0.3, value_bits=16, index='elias_fano')", "dgc(ratio=0.01)", "topk(ratio=1)")
PLACES = {
    "whole": (awkward(1, 900), ((0, 900),)),
    "spans": (normal(2, 1003), ((3, 300), (400, 401), (500, 500), (600, 1003))),
    "tiny": (awkward(2, 9), ((1, 2), (4, 9))),
}
CODED = ("topk(index='blocks', value_bits=16)", "topk(index='packed')", "topk(ratio=0.5, index='bitmap')")
COMPILED = {
    "candidates": {"sample", "survey", "gather", "count_rows"},
    "select": {"_top_of_small", "_narrow", "_count", "_collect"},
    "indices": {"_write", "_ones", "_read"},
    "scatter": {"_edges", "_put_to", "_mean_to"},
}


@pytest.fixture(params=["small", "sampled", pytest.param("long", marks=SWEEP)])
def way(request, monkeypatch):
    """Rows that fit into a program, rows that do not, and rows of which a sample is taken."""
    from gradwire.kernels.scatter import gpu as scatter_gpu
    from gradwire.kernels.select import gpu

    for name, value in WAYS[request.param].items():
        monkeypatch.setattr(gpu, name, value)
    if request.param != "small":
        monkeypatch.setattr(scatter_gpu, "TILE", 256)
        monkeypatch.setattr(scatter_gpu, "CHUNK", 16)
    return request.param


def kinds(numel):
    """Ties, zeros of both signs, NaN, infinities, subnormals."""
    x = normal(2, numel)
    marked = torch.where(x > 0.5, NAN, torch.where(x < -0.5, -float("inf"), x))
    bits = torch.randint(-(2**31), 2**31, (2, numel), generator=torch.Generator().manual_seed(3))
    return {
        "zeros": torch.zeros(1, numel) * torch.where(normal(1, numel) > 0, 1.0, -1.0),
        "constant": torch.full((1, numel), -3.0),
        "ties": (2 * x).round(),
        "two values": torch.where(x > 0.3, 1.0, 0.0),
        "sparse": torch.where(x > 2.5, x, 0.0),
        "subnormal": 1e-42 * x,
        "not finite": marked,
        "all NaN": torch.full((1, numel), NAN),
        "any bits": bits.to(torch.int32).view(torch.float32),
        "ascending": x.sort().values,
    }


@pytest.mark.parametrize("share", [0.1, *(pytest.param(share, marks=SWEEP) for share in (0.0, 0.01, 0.35, 0.99, 1.0))])
@pytest.mark.parametrize("kind", kinds(1))
def test_top(way, kind, share):
    for numel in (1, 300):
        x, k = kinds(numel)[kind], max(1, int(share * numel))
        with on_gpu():
            found = select.top(here(x), k)
        assert found.cpu().equal(select.reference.top(x, k)), numel


@settings(max_examples=examples(4, 50), deadline=None)
@given(
    values=st.lists(st.floats(width=32) | st.sampled_from([0.0, 1.0, -1.0, NAN]), min_size=1, max_size=60),
    data=st.data(),
)
def test_top_of_any_list(values, data):
    k, x = data.draw(st.integers(1, len(values))), torch.tensor([values])
    with on_gpu():
        found = select.top(here(x), k)
    assert found.cpu().equal(select.reference.top(x, k))


def test_a_sample_that_misleads_costs_time_only(monkeypatch):
    """Large values stand at the sampled places alone, so that the limit lies far too high."""
    from gradwire.kernels.select import gpu

    for name, value in WAYS["sampled"].items():
        monkeypatch.setattr(gpu, name, value)
    sample, numel = 64, 64 * 20
    x, stretch = normal(2, numel), numel // sample
    x[0, [i * stretch + (i * 0x9E3779B1 % 2**32 >> 8) % stretch for i in range(sample)]] += 100.0
    with on_gpu():
        assert select.top(here(x), 2 * sample).cpu().equal(select.reference.top(x, 2 * sample))


@pytest.mark.parametrize("many", [1, 3])
def test_count_above(many, monkeypatch):
    """Equal magnitudes count, NaN never does, neither among values nor as a threshold."""
    from gradwire.kernels.select import gpu

    monkeypatch.setattr(gpu, "TILE", 64)
    for x in kinds(300).values():
        thresholds = torch.cat((x[:, :many].abs(), x.abs().mean(1, keepdim=True)), 1).sort().values
        with on_gpu():
            found = select.count_above(here(x), here(thresholds))
        assert found.cpu().equal(select.reference.count_above(x, thresholds))


@pytest.mark.parametrize("first", [0, 4])
def test_what_is_compensated_already_is_not_written_again(way, first):
    """As momentum correction has it: what is searched is what is kept."""
    rows, k = normal(2, 300 + first), 30
    with on_gpu():
        held = here(rows.clone())
        kept = Feedback(held[:, first:])
        window = Window(held, ((first, first + 300),))
        values, where = select.send_from(window, kept, 2, 152, k, 32, 1.0)
    wanted = padded(rows[:, first:], 304).reshape(4, 152)
    assert where.cpu().equal(select.reference.top(wanted, k))
    assert same(values.cpu(), wanted.gather(1, where.cpu()))
    left = wanted.scatter(1, where.cpu(), 0.0).view(2, -1)[:, :300]
    assert same(held.cpu(), torch.cat((rows[:, :first], left), 1))


@pytest.mark.parametrize("share", [0.03, pytest.param(0.2, marks=SWEEP)])
def test_more_candidates_than_there_is_room_for(share, monkeypatch):
    """Few elements stand out in one row, and the limit lets all others through; the next row is as usual."""
    from gradwire.kernels.select import gpu

    for name, value in WAYS["sampled"].items():
        monkeypatch.setattr(gpu, name, value)
    monkeypatch.setattr(gpu, "SPARE", 0)
    x = normal(2, 6000)
    x[0] = torch.where(x[0] > 2.6, x[0], torch.where(x[0] > 0, 1e-9, -1e-9))
    k = int(share * 6000)
    with on_gpu():
        assert select.top(here(x), k).cpu().equal(select.reference.top(x, k))


def test_what_top_cannot_treat_is_left_to_plain_torch():
    with on_gpu():
        assert select.top(here(normal(2, 9)), 0).shape == (2, 0)
        assert select.top(here(normal(9, 2)).t(), 3).cpu().equal(select.reference.top(normal(9, 2).t(), 3))


@pytest.mark.parametrize("shards", [1, 4])
def test_shards_behind_the_end(way, shards):
    """The last shards hold zeros alone; what is sent of them is nobody's."""
    x, shard, k = normal(2, 70), 40 if shards == 4 else 100, 39
    with on_gpu():
        kept = Feedback(here(torch.full((2, 70), 5.0)), here(normal(2, 70, 1)), 0.5, momentum=here(torch.ones(2, 70)))
        values, where = select.top_from(Window.whole(here(x)), kept, shards, shard, k)
        wanted = x + 0.5 * normal(2, 70, 1)
        assert same(kept.out.cpu(), wanted)
        rows = padded(wanted, shards * shard).view(-1, shard)
        assert where.cpu().equal(select.reference.top(rows, k))
        assert same(values.cpu(), rows.gather(1, where.cpu()))
        again = select.send_from(Window.whole(here(x)), kept, shards, shard, k, 16, 0.7)
    assert same(again, (values, where))
    sent = torch.zeros_like(rows).scatter_(1, where.cpu(), values.cpu().half().float() * 0.7).view(2, -1)[:, :70]
    assert same(kept.out.cpu(), wanted - sent)
    assert kept.momentum.cpu().equal((sent == 0).float())


@pytest.mark.parametrize("shards", [1, 3])
@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("spec", [SPECS[0], *(pytest.param(s, marks=SWEEP) for s in SPECS[1:])])
def test_kernels_give_what_the_simple_form_gives(way, spec, place, shards):
    check(gradwire.codec(spec), *PLACES[place], shards, (0.3, 1.0, False), 1.0 if shards == 1 else 0.46)


@pytest.mark.parametrize(
    "kind", [None, (1.0, 0.7, False), *(pytest.param(k, marks=SWEEP) for k in ((None, 1.0, False), (1.0, 1.0, True)))]
)
def test_any_memory(way, kind):
    for spec in ("topk(ratio=0.1)", "topk(ratio=0.1, value_bits=16)"):
        check(gradwire.codec(spec), normal(2, 700), ((0, 300), (301, 700)), 2, kind, 0.46)


@pytest.mark.parametrize("dtype", [torch.float16, pytest.param(torch.bfloat16, marks=SWEEP)])
def test_gradients_of_16_bits_are_read_as_they_are(way, dtype):
    x = normal(2, 700).to(dtype) if CUDA or dtype == torch.float16 else normal(2, 700).round().to(dtype)
    check(gradwire.codec("topk(ratio=0.1)"), x, ((0, 300), (301, 700)), 2, (0.3, 1.0, False))
    check(gradwire.codec("topk(ratio=0.1)"), x, ((0, 300), (301, 700)), 1, None)


@settings(max_examples=examples(5, 200), deadline=None)
@given(spec=st.sampled_from(SPECS), **ANYWHERE)
def test_any_shape(spec, lengths, shards, seed):
    check_anywhere(gradwire.codec(spec), lengths, shards, seed, (0.3, 1.0, False))


@pytest.mark.parametrize("groups", [1, 3])
def test_mean(way, groups):
    """Sums in the order of the rows; indices that many rows share, and rows whose entries crowd in one tile."""
    numel, k = 1000, 90
    x = awkward(4 * groups, numel)
    x[1] = torch.where(torch.arange(numel) < 120, x[1], 0.0)
    where = select.reference.top(x, k)
    values = x.gather(1, where)
    with on_gpu():
        found = scatter.mean(here(values), here(where), numel, groups)
    assert same(found.cpu(), scatter.reference.mean(values, where, numel, groups))


def test_sums_keep_their_sign_of_zero(way):
    """A single row decoded keeps −0; a mean starts from +0."""
    x = -torch.zeros(1, 300)
    x[0, 7] = 1.0
    codec, window = gradwire.codec("topk(ratio=1)"), Window.whole(here(x))
    with on_gpu():
        payload = codec.encode_from(window, None, 1, 300, Random())
        out = Window.whole(here(torch.ones(1, 300)))
        codec.decode_to(payload, out, 300, Random())
        assert same(back(out.buffer), x)
        codec.combine_to(payload, out, Random())
    assert same(back(out.buffer), x + 0.0)


@pytest.mark.parametrize("spec", SPECS)
def test_no_fast_form_falls_back(spec, monkeypatch):
    def refuse(*args, **kwargs):
        raise AssertionError("the simple form was asked")

    for name in ("encode_from", "decode_to", "combine_to"):
        monkeypatch.setattr(Codec, name, refuse)
    codec, window = gradwire.codec(spec), Window(here(normal(1, 900)), ((0, 900),))
    with on_gpu():
        payload = codec.encode_from(window, Feedback(here(torch.empty(1, 900)), None), 1, 900, Random())
        codec.decode_to(payload, window, 900, Random())
        codec.combine_to(payload, window, Random())


def test_few_launches(monkeypatch):
    """Whatever the number of tensors and shards."""
    from gradwire.kernels.indices import gpu as indices_gpu
    from gradwire.kernels.scatter import gpu as scatter_gpu
    from gradwire.kernels.select import gpu

    seen, start = [], gpu.launch

    def spied(kernel, *args, **kwargs):
        seen.append(kernel.__name__)
        start(kernel, *args, **kwargs)

    for module in (gpu, indices_gpu, scatter_gpu):
        monkeypatch.setattr(module, "launch", spied)
    for name, value in WAYS["sampled"].items():
        monkeypatch.setattr(gpu, name, value)
    x, spans = PLACES["spans"]
    codec, window = gradwire.codec("topk(ratio=0.1)"), Window(here(x), spans)
    with on_gpu():
        kept = Feedback(here(torch.zeros(2, window.numel)), here(torch.zeros(2, window.numel)))
        payload = codec.encode_from(window, kept, 2, 352, Random())
        assert seen == ["sample", "survey", "gather", "_narrow", "_count", "_collect", "_write"]
        seen.clear()
        target = Window(here(torch.zeros(1, x.shape[1])), spans)
        codec.decode_to(gradwire.core.exchange.Payload(payload.data[:2]), target, 352, Random())
        assert seen == ["_ones", "_read", "_edges", "_put_to"]
        seen.clear()
        codec.reduce_and_encode(payload, 352, Random(), Random(), None, 1)
        assert seen[:4] == ["_ones", "_read", "_edges", "_mean_to"]
        assert len(seen) == 11


@pytest.mark.skipif(not CUDA, reason="needs a CUDA device")
def test_rows_of_many_elements():
    """As they come, so long that a sample is taken; a run gives what another gives."""
    for x in (torch.randn(2, 3_000_001, device="cuda"), torch.zeros(1, 1 << 22, device="cuda")):
        for k in (1, x.shape[1] // 1000, x.shape[1] // 100, x.shape[1] // 2, x.shape[1]):
            found = select.top(x, k)
            with backend.plain_torch():
                assert found.equal(select.top(x, k))
            assert found.equal(select.top(x, k))


@pytest.mark.skipif(not CUDA, reason="needs a CUDA device")
@pytest.mark.parametrize("spec", SPECS)
def test_the_host_waits_for_nothing(spec):
    codec, window = gradwire.codec(spec), Window.whole(torch.randn(2, 300_000, device="cuda"))
    kept = Feedback(torch.empty(2, 300_000, device="cuda"), torch.randn(2, 300_000, device="cuda"))
    for mode in (nullcontext, no_waiting):  # tables of a shape are sent once
        with mode():
            payload = codec.encode_from(window, kept, 1, 300_000, Random())
            target = Window.whole(window.buffer[:1])
            codec.combine_to(payload, target, Random())
            codec.decode_to(gradwire.core.exchange.Payload(payload.data[:1]), target, 300_000, Random())
            codec.reduce_and_encode(payload, 300_000, Random(), Random(), None, 1)


@pytest.mark.sweep
@pytest.mark.parametrize("every", [False, pytest.param(True, marks=SWEEP)])
def test_kernels_compile_for_a_gpu(every):
    """For an H100 or H200, without one: the interpreter takes what the compiler refuses."""
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    command = [
        sys.executable,
        str(Path(__file__).with_name("compile_kernels.py")),
        *["--every"] * every,
        "topk",
        *CODED,
    ]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stderr[-4000:]
    assert set(done.stdout.split()) >= {f"{module}.{name}" for module, names in COMPILED.items() for name in names}
