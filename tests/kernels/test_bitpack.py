"""Bit packing and rows of bytes."""

from __future__ import annotations

import pytest
import torch
from exact import same, scattered, threads
from hypothesis import given, settings
from hypothesis import strategies as st

from gradwire.kernels import rows
from gradwire.kernels.bitpack import cpu, pack, packed_bytes, reference, unpack


def random_codes(width, count, numel, seed=0):
    return torch.randint(0, 2**width, (count, numel), generator=torch.Generator().manual_seed(seed))


def check(codes, width):
    """Both implementations write the same bytes and read the same codes, whatever lies behind the row."""
    numel = codes.shape[1]
    data = reference.pack(codes, width)
    assert same(cpu.pack(codes, width), data)
    longer = torch.cat((torch.full_like(data[:, :1], 7), data, torch.full((len(data), 9), 255, dtype=torch.uint8)), 1)
    assert same(cpu.unpack(longer[:, 1:], width, numel), reference.unpack(data, width, numel))
    exact = data.clone()  # ends where its last code ends
    assert same(cpu.unpack(exact, width, numel), reference.unpack(data, width, numel))


@settings(deadline=None)
@given(width=st.integers(1, 32), numel=st.integers(0, 70), count=st.integers(1, 4), seed=st.integers(0, 99))
def test_round_trip(width, numel, count, seed):
    codes = random_codes(width, count, numel, seed)
    check(codes, width)
    data = pack(codes, width)
    assert data.dtype == torch.uint8
    assert data.shape == (count, packed_bytes(numel, width))
    assert unpack(data, width, numel).long().equal(codes)


def test_bit_layout_by_hand():
    assert pack(torch.tensor([[1, 0, 0, 0, 0, 0, 0, 0, 1]]), 1).tolist() == [[1, 1]]
    assert pack(torch.tensor([[1, 2, 3, 0]]), 2).tolist() == [[0b00_11_10_01]]
    assert pack(torch.tensor([[5, 6, 7]]), 3).tolist() == [[0b11_110_101, 0b1]]
    assert pack(torch.tensor([[0x1234]]), 16).tolist() == [[0x34, 0x12]]


@pytest.mark.parametrize("width", [1, 2, 3, 4, 5, 7])
def test_bits_behind_the_end_are_zero(width):
    data = pack(torch.full((1, 3), 2**width - 1), width)
    assert sum(int(b).bit_count() for b in data[0]) == 3 * width


@pytest.mark.parametrize("width", range(1, 33))
def test_compiled_equals_reference(width):
    for numel in (0, 1, 23, 24, 25, 8191, 8192, 8193, 20_003):
        check(random_codes(width, 2, numel), width)
    check(torch.full((1, 1000), 2**width - 1), width)


@pytest.mark.parametrize("dtype", [torch.bool, torch.uint8, torch.int16, torch.int32, torch.int64])
def test_every_type_of_code(dtype):
    codes = random_codes(1, 2, 1003).to(dtype)
    assert same(cpu.pack(codes, 1), reference.pack(codes, 1))
    if dtype not in (torch.bool, torch.uint8):
        codes = random_codes(13, 2, 1003).to(dtype)
        assert same(cpu.pack(codes, 13), reference.pack(codes, 13))


@pytest.mark.parametrize("width", [1, 4, 5, 8, 20])
def test_strides_and_threads(width):
    codes = random_codes(width, 3, 30_001)
    data = reference.pack(codes, width)
    assert all(same(cpu.pack(c, width), data) for c in scattered(codes))
    assert all(same(cpu.unpack(d, width, 30_001), reference.unpack(data, width, 30_001)) for d in scattered(data))
    with threads(3):
        check(codes, width)


def test_parts_side_by_side():
    scales = torch.tensor([[1.5, -2.0], [3.0, 4.0]])
    codes = torch.tensor([[1, 2, 3], [4, 5, 6]], dtype=torch.uint8)
    data = rows.join(codes, scales)
    back, stop = rows.take(data, 0, 3, torch.uint8)
    again, end = rows.take(data, stop, 2, torch.float32)  # begins at an odd byte
    assert back.equal(codes)
    assert again.equal(scales)
    assert end == data.shape[1] == 11


def test_blocks_are_padded_with_zeros():
    assert rows.blocks(torch.ones(1, 5), 4).tolist() == [[[1, 1, 1, 1], [1, 0, 0, 0]]]
