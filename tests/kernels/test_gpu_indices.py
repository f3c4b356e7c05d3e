"""Codings of index sets on a GPU against plain torch, byte for byte: on a GPU, or in Triton's interpreter."""

from __future__ import annotations

import pytest
import torch
from exact import awkward, same
from hypothesis import given, settings
from hypothesis import strategies as st
from on_gpu import CUDA, back, examples, here, needs_triton, on_gpu

from gradwire.codecs.sparsification import _sparse_payload
from gradwire.kernels import backend
from gradwire.kernels.indices import CODINGS, decode, encode, index_bytes, reference

pytestmark = needs_triton
SWEEP = pytest.mark.sweep
SIZES = [(1, 1), (64, 64), (300, 7), (500, 90)]
LONG = [(2, 1), (65, 64), (999, 330), (70_000, 40), (140_000, 900)]


@pytest.fixture(params=["one program", "several"])
def cut(request, monkeypatch):
    """Rows that are a program's, and rows that are cut into pieces of several turns."""
    from gradwire.kernels.indices import gpu

    if request.param == "several":
        monkeypatch.setattr(gpu, "SIZE", 64)
        monkeypatch.setattr(gpu, "PIECES", 4)


def subset(numel, count, rows=2, seed=0):
    draw = torch.Generator().manual_seed(seed)
    return torch.stack([torch.randperm(numel, generator=draw)[:count].sort().values for _ in range(rows)])


@pytest.mark.parametrize("coding", CODINGS)
@pytest.mark.parametrize("numel, count", [*SIZES, *(pytest.param(*size, marks=SWEEP) for size in LONG)])
def test_bytes_and_back(cut, numel, count, coding):
    if coding == "bitmap" and numel > 1000 and not CUDA:
        pytest.skip("a long string is slow in the interpreter")
    indices = subset(numel, count)
    with on_gpu():
        data = encode(here(indices), numel, coding)
        found = decode(data, numel, count, coding)
    assert back(data).equal(reference.encode(indices, numel, coding))
    assert back(found).equal(indices)


@settings(max_examples=examples(8, 200), deadline=None)
@given(numel=st.integers(1, 400), share=st.floats(0, 1), seed=st.integers(0, 99), coding=st.sampled_from(CODINGS))
def test_any_set(numel, share, seed, coding):
    indices = subset(numel, round(share * numel), seed=seed)
    with on_gpu():
        data = encode(here(indices), numel, coding)
        found = decode(data, numel, indices.shape[1], coding)
    assert back(data).equal(reference.encode(indices, numel, coding))
    assert back(found).equal(indices)


@pytest.mark.parametrize("coding", ["elias_fano", "bitmap", "packed"])
def test_bytes_that_no_encoder_writes(cut, coding):
    """Too few marks, too many, marks behind the end, parts that are too large."""
    numel, count = 77, 9
    data = torch.randint(0, 256, (9, index_bytes(numel, count, coding)), generator=torch.Generator().manual_seed(1))
    for i, fill in enumerate((0, 255, 1, 128)):
        data[i] = fill
    data = data.to(torch.uint8)
    with on_gpu():
        found = decode(here(data), numel, count, coding)
    assert back(found).equal(reference.decode(data, numel, count, coding))


def test_block_counts_that_do_not_add_up(cut):
    data = torch.zeros(3, index_bytes(70000, 5, "blocks"), dtype=torch.uint8)
    data[0, 0] = 2  # of five
    data[1, :4] = 255
    data[2, :8] = 127
    with on_gpu():
        found = decode(here(data), 70000, 5, "blocks").cpu()
    assert found[0].tolist() == [0, 0, 131072, 131072, 131072]
    assert found[2].tolist() == [0] * 5
    assert bool(((found >= 0) & (found < 3 * 65536)).all())


@pytest.mark.parametrize("coding", CODINGS)
@pytest.mark.parametrize("value_bits", [32, 16])
def test_values_beside_indices(coding, value_bits):
    """Rows of an odd number of bytes: numbers are not aligned; rows that lie apart."""
    numel, count = 301, 23
    values, indices = awkward(3, count), subset(numel, count, 3)
    with backend.plain_torch():
        wanted = _sparse_payload.write(values, indices, numel, value_bits, coding)
        decoded = _sparse_payload.read(wanted, numel, count, value_bits, coding)
    apart = torch.zeros(6, wanted.shape[1], dtype=torch.uint8)
    apart[::2] = wanted
    with on_gpu():
        found = _sparse_payload.write(here(values), here(indices), numel, value_bits, coding)
        again = _sparse_payload.read(here(apart)[::2], numel, count, value_bits, coding)
    assert same(back(_sparse_payload.read(found.cpu(), numel, count, value_bits, coding)), decoded)
    assert back(found)[:, count * value_bits // 8 :].equal(wanted[:, count * value_bits // 8 :])
    assert same(back(again), decoded)
