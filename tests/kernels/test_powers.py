"""Rounding to powers of two: by hand, and the compiled kernels against plain torch."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gradwire.core.random import Stream
from gradwire.kernels.parallel import LARGE
from gradwire.kernels.powers import cpu, decode, decode_sum, encode, reference


def bits(x):
    return x.contiguous().view(torch.int32)


def inputs(rows, numel, seed=0):
    """Normal numbers; any 32 bits; denormal numbers; numbers around the ends of the 8-bit range."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(rows, numel, generator=generator)
    yield x
    yield torch.randint(-(2**31), 2**31, (rows, numel), generator=generator).int().view(torch.float32)
    yield x * 1e-41
    yield x * 2.0 ** torch.tensor([-108.0, 17.0, 126.0]).repeat(numel)[:numel]


@pytest.mark.parametrize("width", [9, 8])
def test_powers_of_two_stay_whatever_is_drawn(width):
    x = torch.tensor([[1.0, -2.0, 0.25, -0.0, 0.0, 2.0**17, -(2.0**-108), float("nan"), -float("inf")]])
    data = encode(x, width, Stream((3,)))
    assert str(decode(data, width, 9)[0].tolist()) == str([*x[0, :7].tolist(), float("nan"), float("nan")])
    assert str(decode_sum(data.repeat(2, 1), width, 9)[0, :5].tolist()) == "[2.0, -4.0, 0.5, 0.0, 0.0]"
    if width == 9:
        assert data.tolist() == [[127, 128, 125, 0, 0, 144, 19, 255, 255, 0b01001010, 1]]
    else:
        assert data.tolist() == [[109, 128 + 110, 107, 128, 0, 126, 128 + 1, 127, 255]]


def test_the_ends_of_the_range():
    x = torch.tensor([[3.4e38, -(2.0**127), 2.0**18, 2.0**-109, 1.9 * 2.0**-109, 1e-45]])
    for key in range(8):
        assert decode(encode(x, 9, Stream((key,))), 9, 6)[0, :2].tolist() == [2.0**127, -(2.0**127)]
        out = decode(encode(x, 8, Stream((key,))), 8, 6)
        assert out.tolist() == [[2.0**17, -(2.0**17), 2.0**17, 0.0, 0.0, 0.0]]


@pytest.mark.parametrize("width, mantissa", [(9, 1), (9, 2_796_203), (8, 2**23 - 1)])
def test_unbiased_to_the_last_draw(width, mantissa, monkeypatch):
    """Each of the 2^23 draws once: the upper power comes out exactly as often as the mantissa says."""
    monkeypatch.setattr(reference, "quick_words", lambda stream, shape, device: (torch.arange(2**23) << 9).view(shape))
    x = torch.full((1, 2**23), -1 - mantissa * 2.0**-23)
    out = reference.decode(reference.encode(x, width, Stream((0,))), width, 2**23)
    assert int((out == -2).sum()) == mantissa
    assert int((out == -1).sum()) == 2**23 - mantissa


def test_denormals_without_bias(monkeypatch):
    """3/8 of 2^-126; every eighth draw."""
    monkeypatch.setattr(reference, "quick_words", lambda stream, shape, device: (torch.arange(2**20) << 12).view(shape))
    x = torch.full((1, 2**20), 3 * 2.0**-129)
    out = reference.decode(reference.encode(x, 9, Stream((0,))), 9, 2**20)[0]
    assert set(out.tolist()) == {0.0, 2.0**-126}
    assert int((out > 0).sum()) == 3 * 2**20 // 8


@settings(max_examples=50, deadline=None)
@given(
    rows=st.integers(1, 4),
    numel=st.integers(0, 90),
    width=st.sampled_from([9, 8]),
    seed=st.integers(0, 99),
    offset=st.sampled_from([0, 1, 63, 64, 1000, 2**34 - 5]),
)
def test_same_bits_as_the_reference(rows, numel, width, seed, offset):
    for x in inputs(rows, numel, seed):
        own = Stream(tuple(seed + i for i in range(rows)), tuple(offset + 3 * i for i in range(rows)))
        assert cpu.encode(x, width, own).equal(reference.encode(x, width, own))
        data = cpu.encode(x, width, Stream((seed,), (offset,)))
        assert data.equal(reference.encode(x, width, Stream((seed,), (offset,))))
        assert bits(cpu.decode(data, width, numel)).equal(bits(reference.decode(data, width, numel)))
        for groups in (1, rows):
            mine, theirs = (b.decode_sum(data, width, numel, groups) for b in (cpu, reference))
            assert mine.isnan().equal(theirs.isnan())
            assert bits(mine.nan_to_num(7.0)).equal(bits(theirs.nan_to_num(7.0)))


@pytest.mark.parametrize("width", [9, 8])
def test_every_byte_decodes_as_in_the_reference(width):
    generator = torch.Generator().manual_seed(0)
    codes = torch.cat([torch.arange(256), torch.randint(0, 256, (32,), generator=generator)]).byte()
    data = codes.repeat(3, 1)[:, ::2].contiguous() if width == 8 else codes.repeat(3, 1)
    numel = 144 if width == 8 else 256
    assert bits(cpu.decode(data, width, numel)).equal(bits(reference.decode(data, width, numel)))


@pytest.mark.parametrize("width", [9, 8])
def test_strides(width):
    for x in inputs(6, 60):
        some = x[::2, 1::3]
        data = cpu.encode(some, width, Stream((1,)))
        assert data.equal(reference.encode(some, width, Stream((1,))))
        wide = torch.nn.functional.pad(data, (1, 2))[:, 1:-2]
        assert bits(cpu.decode(wide, width, 20)).equal(bits(reference.decode(data, width, 20)))


@pytest.mark.parametrize("width", [9, 8])
def test_groups_of_rows_are_summed_each_by_itself(width):
    data = encode(next(inputs(6, 20)), width, Stream((1,)))
    both = decode_sum(data, width, 20, groups=2)
    for i in range(2):
        assert both[i : i + 1].equal(decode_sum(data[3 * i : 3 * i + 3], width, 20))


def test_a_shard_draws_what_the_whole_draws():
    x = next(inputs(1, 20000))
    whole = cpu.encode(x, 8, Stream((5,), (7,)))
    assert cpu.encode(x[:, 8191:12345], 8, Stream((5,), (7 + 8191,))).equal(whole[:, 8191:12345])
    assert cpu.encode(x.view(5, 4000), 8, Stream((5,), (7,))).view(1, -1).equal(whole)


@pytest.mark.parametrize("threads", [1, 2])
def test_long_rows(threads):
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        x = next(inputs(2, LARGE + 3))
        for width in (9, 8):
            data = cpu.encode(x, width, Stream((1,), (5,)))
            assert data.equal(reference.encode(x, width, Stream((1,), (5,))))
            assert cpu.decode(data, width, LARGE + 3).equal(reference.decode(data, width, LARGE + 3))
            assert cpu.decode_sum(data, width, LARGE + 3, 1).equal(reference.decode_sum(data, width, LARGE + 3, 1))
    finally:
        torch.set_num_threads(before)
