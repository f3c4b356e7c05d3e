"""Codings of index sets: sizes, layouts by hand, round trips, and the compiled kernels against plain torch."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gradwire.kernels.indices import CODINGS, cpu, decode, encode, index_bytes, reference, resolve

BACK_ENDS = [cpu, reference]


def subset(numel, count, rows=1, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.stack([torch.randperm(numel, generator=generator)[:count].sort().values for _ in range(rows)])


@pytest.mark.parametrize("back_end", BACK_ENDS)
def test_layouts_by_hand(back_end):
    """{0, 3, 7} below 16: two lower bits 00, 11, 11 and upper parts 0, 0, 1, which set bits 0, 1 and 3."""
    indices = torch.tensor([[0, 3, 7]])
    assert back_end.encode(indices, 16, "elias_fano").tolist() == [[0b11_11_00, 0b1011]]
    assert back_end.encode(indices, 16, "bitmap").tolist() == [[0b1000_1001, 0]]
    assert back_end.encode(indices, 16, "packed").tolist() == [[0x30, 0x7]]
    assert back_end.encode(indices, 16, "blocks").tolist() == [[3, 0, 0, 0, 0, 0, 3, 0, 7, 0]]
    wide = torch.tensor([[65535, 65537]])
    assert back_end.encode(wide, 70000, "blocks").tolist() == [[1, 0, 0, 0, 1, 0, 0, 0, 255, 255, 1, 0]]


@settings(max_examples=40, deadline=None)
@given(numel=st.integers(1, 300), share=st.floats(0, 1), rows=st.integers(1, 3), seed=st.integers(0, 99))
@pytest.mark.parametrize("coding", CODINGS)
def test_round_trip_and_the_same_bytes(coding, numel, share, rows, seed):
    count = round(share * numel)
    indices = subset(numel, count, rows, seed)
    data = cpu.encode(indices, numel, coding)
    assert data.dtype == torch.uint8
    assert data.shape == (rows, index_bytes(numel, count, coding))
    assert data.equal(reference.encode(indices, numel, coding))
    for back_end in BACK_ENDS:
        back = back_end.decode(data, numel, count, coding)
        assert back.dtype == torch.int64
        assert back.equal(indices)


@pytest.mark.parametrize("coding", [*CODINGS, "best"])
@pytest.mark.parametrize("numel, count", [(1, 0), (1, 1), (2, 1), (64, 64), (65, 0), (65536, 3), (65537, 65537)])
def test_small_empty_and_full_sets(numel, count, coding):
    indices = subset(numel, count, rows=2)
    data = encode(indices, numel, coding)
    assert data.shape == (2, index_bytes(numel, count, coding))
    assert decode(data, numel, count, coding).equal(indices)


@pytest.mark.parametrize("coding", CODINGS)
@pytest.mark.parametrize("count", [7, 1000, 70_000, 130_000])
def test_several_blocks(count, coding):
    numel = 3 * 65536 + 11
    indices = subset(numel, count)
    data = cpu.encode(indices, numel, coding)
    assert data.equal(reference.encode(indices, numel, coding))
    assert cpu.decode(data, numel, count, coding).equal(indices)
    assert reference.decode(data, numel, count, coding).equal(indices)


@pytest.mark.parametrize("numel, count", [(1000, 1), (1000, 10), (10**6, 10**4), (10**6, 5 * 10**5), (25 * 10**6, 999)])
def test_sizes_by_formula(numel, count):
    low = math.floor(math.log2(numel / count))
    upper = count + math.ceil(numel / 2**low) - 1
    assert index_bytes(numel, count, "elias_fano") == math.ceil(count * low / 8) + math.ceil(upper / 8)
    assert index_bytes(numel, count, "bitmap") == math.ceil(numel / 8)
    assert index_bytes(numel, count, "packed") == math.ceil(count * math.ceil(math.log2(numel)) / 8)
    assert index_bytes(numel, count, "blocks") == 2 * count + 4 * math.ceil(numel / 65536)
    assert index_bytes(numel, count) == min(index_bytes(numel, count, c) for c in CODINGS)
    assert 8 * index_bytes(numel, count, "elias_fano") <= count * (3 + math.log2(numel / count)) + 14


def test_best_is_the_smallest():
    assert resolve(10**6, 10**4) == "elias_fano"
    assert resolve(10**6, 5 * 10**5) == "bitmap"
    assert resolve(1000, 1) == "packed"
    assert resolve(10**6, 10**4, "blocks") == "blocks"


@pytest.mark.parametrize("coding", ["elias_fano", "bitmap"])
def test_strings_with_too_few_ones_and_marks_behind_the_end(coding):
    """What no encoder writes decodes to the same in both back ends."""
    size = index_bytes(77, 9, coding)
    for fill in (0, 255):
        data = torch.full((2, size), fill, dtype=torch.uint8)
        assert cpu.decode(data, 77, 9, coding).equal(reference.decode(data, 77, 9, coding))


def test_block_counts_that_do_not_add_up_stay_inside_the_output():
    data = torch.zeros(1, index_bytes(70000, 5, "blocks"), dtype=torch.uint8)
    data[0, 0] = 2  # of five
    for back_end in BACK_ENDS:
        assert back_end.decode(data, 70000, 5, "blocks").tolist() == [[0, 0, 131072, 131072, 131072]]
    data[0, :3] = 255
    assert cpu.decode(data, 70000, 5, "blocks").tolist() == [[0] * 5]


def test_strides():
    indices = subset(500, 60, rows=6)[::2, ::3]
    for coding in CODINGS:
        data = reference.encode(indices, 500, coding)
        assert cpu.encode(indices, 500, coding).equal(data)
        assert cpu.decode(data.repeat(2, 1)[::2], 500, 20, coding).equal(indices.repeat(2, 1)[::2])


@pytest.mark.parametrize("coding", ["elias_fano", "bitmap"])
def test_an_index_outside_is_an_error(coding):
    for wrong in (-1, 2**40):
        with pytest.raises(IndexError, match="outside the row"):
            cpu.encode(torch.tensor([[wrong]]), 10, coding)
