"""Bit packing and rows of bytes."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gradwire.kernels import rows
from gradwire.kernels.bitpack import pack, packed_bytes, unpack


@given(width=st.integers(1, 32), numel=st.integers(0, 70), count=st.integers(1, 4), seed=st.integers(0, 99))
def test_round_trip(width, numel, count, seed):
    codes = torch.randint(0, 2**width, (count, numel), generator=torch.Generator().manual_seed(seed))
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
