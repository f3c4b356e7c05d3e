"""Nearest entries: by hand, and the compiled kernels against plain torch."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gradwire.codecs.quantization._tables import codebook, midpoints
from gradwire.kernels.lookup import cpu, decode, decode_sum, encode, reference
from gradwire.kernels.parallel import LARGE

CLOSE = (*(0.5 + i * 2.0**-20 for i in range(40)), 1.5)  # many midpoints begin with the same bits
TABLES = {"dynamic": midpoints("dynamic"), "static": midpoints("static"), "close": CLOSE, "one": (0.25,), "none": ()}


def bits(x):
    return x.contiguous().view(torch.int32)


def patterns(rows, numel, seed=0):
    """Floats of all kinds: any 32 bits."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(-(2**31), 2**31, (rows, numel), generator=generator).int().view(torch.float32)


def normal(rows, numel, seed=0):
    return torch.randn(rows, numel, generator=torch.Generator().manual_seed(seed))


def scales(rows, numel, block, seed=0):
    return normal(rows, -(-numel // block), seed).abs() + 0.5


def test_by_hand():
    table = (0.0, 1.0, 2.0, *[0.0] * 126, -1.0, -2.0, *[0.0] * 125)
    x = torch.tensor([[1.0, -1.0, 1.1, -5.0, 9.0, -0.0], [1.0, -1.0, 3.1, -3.0, -2.0, 6.0]])
    scale = torch.tensor([[2.0, 2.0], [2.0, 4.0]])
    codes = encode(x, scale, 3, (0.5, 1.5))
    assert codes.tolist() == [[0, 0, 1, 130, 2, 0], [0, 0, 2, 129, 0, 1]]  # a tie goes down
    wanted = [[0.0, 0.0, 2.0, -4.0, 4.0, 0.0], [0.0, 0.0, 4.0, -4.0, 0.0, 4.0]]
    assert decode(codes, scale, 3, table).tolist() == wanted
    assert decode_sum(codes, scale, 3, table).tolist() == [[0.0, 0.0, 6.0, -8.0, 4.0, 4.0]]


@settings(max_examples=60, deadline=None)
@given(
    rows=st.integers(0, 3),
    numel=st.integers(0, 90),
    block=st.integers(1, 100),
    name=st.sampled_from(list(TABLES)),
    seed=st.integers(0, 99),
)
def test_same_codes_as_a_binary_search(rows, numel, block, name, seed):
    scale = scales(rows, numel, block, seed)
    for x in (normal(rows, numel, seed), patterns(rows, numel, seed), normal(rows, numel, seed) * 1e-41):
        codes = cpu.encode(x, scale, block, TABLES[name])
        assert codes.dtype == torch.uint8
        assert codes.equal(reference.encode(x, scale, block, TABLES[name]))


@pytest.mark.parametrize("name", list(TABLES))
def test_around_every_midpoint(name):
    """The midpoints themselves, and the floats next to them; and what is at the ends of the range."""
    points = torch.tensor(TABLES[name])
    near = [points, points.nextafter(torch.tensor(2.0)), points.nextafter(torch.tensor(0.0))]
    ends = torch.tensor([0.0, 1e-45, 1.2e-38, 1.0, 3.4e38, float("inf"), float("nan")])
    x = torch.cat([*near, ends]).repeat(2)[None]
    x[:, : x.shape[1] // 2].neg_()
    for scale in (torch.ones(1, 1), torch.full((1, 1), float("inf")), torch.full((1, 1), 1e-45)):
        codes = cpu.encode(x, scale, x.shape[1], TABLES[name])
        assert codes.equal(reference.encode(x, scale, x.shape[1], TABLES[name]))


@settings(max_examples=40, deadline=None)
@given(rows=st.integers(1, 4), numel=st.integers(0, 600), block=st.integers(1, 300), seed=st.integers(0, 99))
def test_same_values_as_the_reference(rows, numel, block, seed):
    generator = torch.Generator().manual_seed(seed)
    codes = torch.randint(0, 256, (rows, numel), generator=generator).byte()
    table, scale = codebook("dynamic"), scales(rows, numel, block, seed)
    for function, *groups in (("decode",), ("decode_sum", 1), ("decode_sum", rows)):
        mine, theirs = (getattr(b, function)(codes, scale, block, table, *groups) for b in (cpu, reference))
        assert bits(mine).equal(bits(theirs))


def test_groups_of_rows_are_summed_each_by_itself():
    codes, scale = torch.arange(240).byte().view(6, 40), scales(6, 40, 7)
    both = decode_sum(codes, scale, 7, codebook("dynamic"), groups=2)
    for i in range(2):
        mine = slice(3 * i, 3 * i + 3)
        assert both[i : i + 1].equal(decode_sum(codes[mine], scale[mine], 7, codebook("dynamic")))


def test_scales_that_are_not_numbers_and_strides():
    codes = torch.arange(256).byte().repeat(2, 2)[:, 1:400:2]
    scale = torch.tensor([[float("nan"), 0.0], [float("inf"), 1e-45]])
    for function, *groups in (("decode",), ("decode_sum", 1)):
        mine, theirs = (getattr(b, function)(codes, scale, 100, codebook("static"), *groups) for b in (cpu, reference))
        torch.testing.assert_close(mine, theirs, rtol=0, atol=0, equal_nan=True)
    x = normal(6, 40)[::2, 1::3]
    assert cpu.encode(x, scales(3, 13, 5), 5, CLOSE).equal(reference.encode(x, scales(3, 13, 5), 5, CLOSE))


@pytest.mark.parametrize("threads", [1, 2])
def test_long_rows(threads):
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        x, scale = normal(2, LARGE + 3), scales(2, LARGE + 3, 1000)
        codes = cpu.encode(x, scale, 1000, midpoints("dynamic"))
        assert codes.equal(reference.encode(x, scale, 1000, midpoints("dynamic")))
        for function, *groups in (("decode",), ("decode_sum", 1)):
            args = codes, scale, 1000, codebook("dynamic"), *groups
            mine, theirs = (getattr(b, function)(*args) for b in (cpu, reference))
            assert mine.equal(theirs)
    finally:
        torch.set_num_threads(before)
