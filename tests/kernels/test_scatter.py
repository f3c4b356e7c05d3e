"""Scattering: by hand, and the compiled kernels against plain torch."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gradwire.kernels.parallel import LARGE
from gradwire.kernels.scatter import cpu, reference, scatter, scatter_sum


def sets(rows, k, numel, seed=0):
    """Indices, distinct in each row and in no order, with values."""
    generator = torch.Generator().manual_seed(seed)
    indices = torch.rand(rows, numel, generator=generator).argsort(1)[:, :k]
    return torch.randn(rows, k, generator=generator), indices


def bits(x):
    return x.view(torch.int32)


def test_by_hand():
    values, indices = torch.tensor([[1.0, 2.0], [3.0, -0.0]]), torch.tensor([[0, 3], [3, 1]])
    assert scatter(values, indices, 4).tolist() == [[1.0, 0.0, 0.0, 2.0], [0.0, -0.0, 0.0, 3.0]]
    assert scatter_sum(values, indices, 4).tolist() == [[1.0, 0.0, 0.0, 5.0]]


@settings(max_examples=40, deadline=None)
@given(rows=st.integers(1, 5), numel=st.integers(1, 90), share=st.floats(0, 1), seed=st.integers(0, 99))
def test_same_bits_as_the_reference(rows, numel, share, seed):
    values, indices = sets(rows, round(share * numel), numel, seed)
    values[:, ::3] = -0.0
    for order in (indices, indices.sort(1).values):
        assert bits(cpu.scatter(values, order, numel)).equal(bits(reference.scatter(values, order, numel)))
        for groups in (1, rows):
            mine, theirs = (b.scatter_sum(values, order, numel, groups) for b in (cpu, reference))
            assert bits(mine).equal(bits(theirs))


def test_groups_of_rows_are_summed_each_by_itself():
    values, indices = sets(6, 10, 30)
    both = scatter_sum(values, indices, 30, groups=2)
    for i in range(2):
        mine = slice(3 * i, 3 * i + 3)
        assert both[i : i + 1].equal(scatter_sum(values[mine], indices[mine], 30))


def test_rows_are_summed_first_to_last():
    values = torch.tensor([[1e8], [1.0], [-1e8]])
    assert cpu.scatter_sum(values, torch.zeros(3, 1, dtype=torch.int64), 1, 1).tolist() == [[0.0]]
    assert cpu.scatter_sum(values[[0, 2, 1]], torch.zeros(3, 1, dtype=torch.int64), 1, 1).tolist() == [[1.0]]


def test_special_values_and_strides():
    values = torch.tensor([[float("nan"), 1.0, float("inf"), 2.0, 1e-45, 3.0]])[:, ::2]
    indices = torch.tensor([[5, 0, 1, 0, 3, 0]])[:, ::2]
    out = cpu.scatter(values, indices, 6)
    assert str(out.tolist()) == "[[0.0, inf, 0.0, 1.401298464324817e-45, 0.0, nan]]"
    assert str(cpu.scatter_sum(values, indices, 6, 1).tolist()) == str(out.tolist())


@pytest.mark.parametrize("threads", [1, 2])
def test_long_rows(threads):
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        values, indices = sets(2, LARGE + 1, LARGE + 17)
        ascending = indices.sort(1).values
        for order in (indices, ascending, ascending[:, ::50]):
            some = values[:, : order.shape[1]]
            assert cpu.scatter(some, order, LARGE + 17).equal(reference.scatter(some, order, LARGE + 17))
            assert cpu.scatter_sum(some, order, LARGE + 17, 1).equal(reference.scatter_sum(some, order, LARGE + 17, 1))
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("indices", [[[0, 4]], [[-1, 2]], [[2**40, 1]], [[-(2**63), 1]]])
@pytest.mark.parametrize("function", [cpu.scatter, lambda *args: cpu.scatter_sum(*args, 1)])
def test_an_index_outside_is_an_error(function, indices):
    with pytest.raises(IndexError, match="outside a row of 4 elements"):
        function(torch.ones(1, 2), torch.tensor(indices), 4)


def test_shapes_that_differ_are_an_error():
    with pytest.raises(ValueError, match="values at"):
        cpu.scatter(torch.ones(1, 3), torch.tensor([[0, 1]]), 4)


def test_nothing_to_scatter():
    for back_end in (cpu, reference):
        nothing = torch.empty(2, 0, dtype=torch.int64)
        assert back_end.scatter(torch.empty(2, 0), nothing, 3).tolist() == [[0.0] * 3] * 2
        assert back_end.scatter_sum(torch.empty(2, 0), nothing, 3, 1).tolist() == [[0.0] * 3]
        assert back_end.scatter(torch.empty(2, 0), nothing, 0).shape == (2, 0)


def test_other_types_stay_what_they_are():
    values, indices = torch.ones(2, 3, dtype=torch.float16), torch.arange(3).expand(2, 3)
    assert scatter(values, indices, 4).dtype == torch.float16
    assert scatter_sum(values, indices, 4).tolist() == [[2.0, 2.0, 2.0, 0.0]]
