"""Count-Sketch: the compiled kernels against plain torch. What a sketch is good for is tested with its codec."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gradwire.core.random import Stream
from gradwire.kernels.parallel import LARGE
from gradwire.kernels.sketch import LARGEST, cpu, fold, reference

CPU = torch.device("cpu")


def normal(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def same(mine, theirs):
    """The same bits, but for the sign of zero and of NaN, which torch itself leaves open in a minimum."""
    assert mine.dtype == theirs.dtype
    assert mine.isnan().equal(theirs.isnan())
    assert mine.nan_to_num(7.0).equal(theirs.nan_to_num(7.0))


@settings(max_examples=60, deadline=None)
@given(
    numel=st.integers(0, 200),
    rows=st.sampled_from([1, 3, 5, 7]),
    columns=st.sampled_from([1, 2, 11, 64, 1000, LARGEST]),
    seed=st.integers(0, 99),
    offset=st.sampled_from([0, 3, 64, 2**33 + 1]),
)
def test_same_bits_as_the_reference(numel, rows, columns, seed, offset):
    where = cpu.places(Stream((seed,), (offset,)), numel, rows, columns, CPU)
    assert where.dtype == torch.int32
    assert where.equal(reference.places(Stream((seed,), (offset,)), numel, rows, columns, CPU))
    if columns == LARGEST:
        return
    for x in (normal(numel, seed=seed), normal(numel, seed=seed).double(), normal(numel) * 1e-41):
        table = cpu.fold(x, where, columns)
        assert table.dtype == x.dtype
        width = torch.int32 if x.dtype == torch.float32 else torch.int64
        assert table.view(width).equal(reference.fold(x, where, columns).view(width))
        if x.dtype == torch.float32:
            same(cpu.estimate(table, where), reference.estimate(table, where))


@pytest.mark.parametrize("rows", [1, 3, 5, 9])
@pytest.mark.parametrize("special", [[float("nan")], [float("inf")], [-float("inf"), float("nan"), 0.0, -0.0, 1e-45]])
def test_special_values(rows, special):
    where = cpu.places(Stream((1,)), 300, rows, 20, CPU)
    table = normal(rows, 20)
    for i, value in enumerate(special):
        table[i % rows, 3 + i] = value
    same(cpu.estimate(table, where), reference.estimate(table, where))
    x = normal(300)
    x[: len(special)] = torch.tensor(special)
    same(cpu.fold(x, where, 20), reference.fold(x, where, 20))


def test_strides_and_other_types():
    where = cpu.places(Stream((1,)), 50, 6, 8, CPU)[::2]
    x = normal(100)[::2]
    assert cpu.fold(x, where, 8).equal(reference.fold(x, where, 8))
    table = normal(3, 16)[:, ::2]
    same(cpu.estimate(table, where), reference.estimate(table, where))
    assert fold(x.bfloat16(), where, 8).dtype == torch.bfloat16


@pytest.mark.parametrize("place", [16, -1, 2**31 - 1])
def test_a_place_outside_is_an_error(place):
    where = torch.tensor([[0, 1, place]], dtype=torch.int32)
    with pytest.raises(IndexError, match="outside of 8 columns"):
        cpu.fold(torch.ones(3), where, 8)
    with pytest.raises(IndexError, match="outside of 8 columns"):
        cpu.estimate(torch.ones(1, 8), where)


def test_sizes_that_do_not_fit_are_errors():
    where = cpu.places(Stream((1,)), 50, 3, 8, CPU)
    with pytest.raises(ValueError, match="places of 50 elements"):
        cpu.fold(torch.ones(51), where, 8)
    with pytest.raises(ValueError, match="3 rows do not fit a table of 2"):
        cpu.estimate(torch.ones(2, 8), where)


@pytest.mark.parametrize("threads", [1, 2])
def test_long_vectors(threads):
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        where = cpu.places(Stream((1,)), LARGE + 3, 3, 1000, CPU)
        assert where.equal(reference.places(Stream((1,)), LARGE + 3, 3, 1000, CPU))
        table = cpu.fold(normal(LARGE + 3), where, 1000)
        assert table.equal(reference.fold(normal(LARGE + 3), where, 1000))
        same(cpu.estimate(table, where), reference.estimate(table, where))
    finally:
        torch.set_num_threads(before)
