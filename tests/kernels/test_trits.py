"""Trits: by hand, and the compiled kernels against plain torch."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gradwire.core.errors import CorruptPayload
from gradwire.kernels.parallel import LARGE
from gradwire.kernels.trits import cpu, pack, reference, trit_bytes, unpack


def codes_of(rows, numel, seed=0):
    return torch.randint(0, 3, (rows, numel), generator=torch.Generator().manual_seed(seed))


def test_by_hand():
    assert pack(torch.tensor([[1, 1, 1, 1, 1], [2, 2, 2, 2, 2], [0, 1, 2, 0, 1]])).tolist() == [[121], [242], [46]]
    assert pack(torch.tensor([[2]])).tolist() == [[2 * 81 + 27 + 9 + 3 + 1]]  # ones behind the end
    assert unpack(torch.tensor([[121, 46]], dtype=torch.uint8), 8).tolist() == [[1, 1, 1, 1, 1, 0, 1, 2]]


@settings(max_examples=40, deadline=None)
@given(
    rows=st.integers(0, 3),
    numel=st.integers(0, 70),
    dtype=st.sampled_from([torch.uint8, torch.int32, torch.int64]),
    seed=st.integers(0, 99),
)
def test_round_trip_and_the_same_bytes(rows, numel, dtype, seed):
    codes = codes_of(rows, numel, seed)
    data = cpu.pack(codes.to(dtype))
    assert data.dtype == torch.uint8
    assert data.shape == (rows, trit_bytes(numel))
    assert data.equal(reference.pack(codes))
    back = cpu.unpack(data, numel)
    assert back.dtype == torch.uint8
    assert back.equal(codes.byte())
    assert reference.unpack(data, numel).equal(back)


def test_every_byte_unpacks_as_in_the_reference():
    data = torch.arange(256, dtype=torch.uint8).view(2, 128)
    assert cpu.unpack(data, 640).equal(reference.unpack(data, 640))
    assert int(reference.pack(reference.unpack(data[:, :115], 575)).max()) < 243


def test_strides_and_flags():
    codes = codes_of(6, 14).t()[:, ::2]
    assert cpu.pack(codes).equal(reference.pack(codes))
    assert cpu.pack(codes > 0).equal(reference.pack(codes > 0))
    data = reference.pack(codes_of(4, 40))[::2, ::2]
    assert cpu.unpack(data, 17).equal(reference.unpack(data, 17))


def test_too_few_bytes_are_an_error():
    with pytest.raises(CorruptPayload, match="3 bytes are to be read from a row of 2"):
        unpack(torch.zeros(1, 2, dtype=torch.uint8), 11)


@pytest.mark.parametrize("threads", [1, 2])
def test_long_rows(threads):
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        codes = codes_of(2, LARGE + 3).byte()
        assert cpu.pack(codes).equal(reference.pack(codes))
        assert cpu.unpack(reference.pack(codes), LARGE + 3).equal(codes)
    finally:
        torch.set_num_threads(before)
