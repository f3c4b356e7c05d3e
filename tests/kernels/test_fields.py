"""Fields of words: by hand, sums of words, and the compiled kernels against plain torch."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gradwire.kernels.fields import cpu, field_width, field_words, pack, reference, unpack
from gradwire.kernels.parallel import LARGE


def codes_of(rows, numel, width, seed=0):
    return torch.randint(0, 2**width, (rows, numel), generator=torch.Generator().manual_seed(seed))


def test_by_hand():
    assert pack(torch.tensor([[1, 2, 3, 4, 5]]), 8).tolist() == [[0x04030201, 5]]
    assert pack(torch.tensor([[1, 2, 3, 4]]), 10).tolist() == [[1 + 2 * 2**10 + 3 * 2**20, 4]]
    assert pack(torch.tensor([[1, 2**16 - 1]]), 16).tolist() == [[1 - 2**16]]
    assert unpack(torch.tensor([[-1, 5]], dtype=torch.int32), 16, 3).tolist() == [[65535, 65535, 5]]
    assert [field_width(n) for n in (0, 1, 3, 4, 255, 256)] == [1, 1, 2, 3, 8, 9]
    assert field_words(7, 10) == 3


@pytest.mark.parametrize("width", [1, 2, 3, 5, 8, 11, 16, 32])
@settings(max_examples=8, deadline=None)
@given(rows=st.integers(0, 3), numel=st.integers(0, 70), seed=st.integers(0, 99))
def test_round_trip_and_the_same_words(width, rows, numel, seed):
    codes = codes_of(rows, numel, width, seed)
    words = cpu.pack(codes, width)
    assert words.dtype == torch.int32
    assert words.shape == (rows, field_words(numel, width))
    assert words.equal(reference.pack(codes, width))
    back = cpu.unpack(words, width, numel)
    assert back.dtype == torch.int64
    assert back.equal(codes)
    assert reference.unpack(words, width, numel).equal(codes)


@pytest.mark.parametrize("dtype", [torch.bool, torch.uint8, torch.int16, torch.int32])
def test_every_type_and_strides(dtype):
    codes = codes_of(6, 14, 4).to(dtype).t()[:, ::2]
    assert cpu.pack(codes, 4).equal(reference.pack(codes, 4))
    words = reference.pack(codes_of(4, 64, 4), 4)[::2, ::2]
    assert cpu.unpack(words, 4, 30).equal(reference.unpack(words, 4, 30))


def test_sums_of_words_are_words_of_sums():
    codes = codes_of(5, 33, 3)  # at most 5·7
    width = field_width(5 * 7)
    total = pack(codes, width).sum(0, keepdim=True, dtype=torch.int32)
    assert unpack(total, width, 33).equal(codes.sum(0, keepdim=True))


def test_too_few_words_are_an_error():
    with pytest.raises(ValueError, match="7 fields of 10 bits do not fit in 2 words"):
        cpu.unpack(torch.zeros(1, 2, dtype=torch.int32), 10, 7)


@pytest.mark.parametrize("threads", [1, 2])
def test_long_rows(threads):
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        codes = codes_of(2, LARGE + 5, 3)
        words = reference.pack(codes, 5)
        assert cpu.pack(codes, 5).equal(words)
        assert cpu.unpack(words, 5, LARGE + 5).equal(codes)
    finally:
        torch.set_num_threads(before)
