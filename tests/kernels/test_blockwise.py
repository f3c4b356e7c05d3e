"""Statistics of blocks: by hand, and the compiled kernels against plain torch."""

from __future__ import annotations

import pytest
import torch
from exact import awkward, normal, same, scattered, threads
from hypothesis import given, settings
from hypothesis import strategies as st

from gradwire.kernels.blockwise import abs_max, abs_sum, cpu, reference, square_sum

NAMES = ["abs_max", "abs_sum", "square_sum"]


def both(name, x, block):
    return same(getattr(cpu, name)(x, block), getattr(reference, name)(x, block))


def test_by_hand():
    x = torch.tensor([[1.0, -2.0, 3.0, -4.0, 5.0], [0.0, 0.0, -0.5, 0.25, -0.0]])
    assert abs_max(x, 2).tolist() == [[2, 4, 5], [0, 0.5, 0]]
    assert abs_sum(x, 2).tolist() == [[3, 7, 5], [0, 0.75, 0]]
    assert square_sum(x, 4).tolist() == [[30, 25], [0.3125, 0]]


def test_sums_add_halves():
    """2²⁴ + 1 is not a float32: which numbers meet first shows in the sum."""
    big = 2.0**24
    assert abs_sum(torch.tensor([[big, 1.0, 0.0, 1.0]]), 4).tolist() == [[big + 2]]  # (big + 0) + (1 + 1)
    assert abs_sum(torch.tensor([[big, 0.0, 1.0, 1.0]]), 4).tolist() == [[big]]  # (big + 1) + (0 + 1)
    assert abs_sum(torch.tensor([[big, 1.0, 1.0]]), 3).tolist() == [[big]]  # (big + 1) + (1 + 0)


@pytest.mark.parametrize("numel", [1 << 12, 1 << 14, 1 << 17])
def test_long_blocks_add_halves_too(numel):
    big, quarter = 2.0**24, numel // 4
    x = torch.zeros(2, numel)
    x[:, 0], x[0, quarter], x[0, 3 * quarter], x[1, 2 * quarter :: quarter] = big, 1.0, 1.0, 1.0
    assert abs_sum(x, numel).tolist() == reference.abs_sum(x, numel).tolist() == [[big + 2], [big]]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("block", [1, 2, 5, 64, 1000, 4096, 4097, 9000, 1 << 20])
@pytest.mark.parametrize("numel", [0, 1, 7, 4096, 20_011])
def test_compiled_equals_reference(name, block, numel):
    assert both(name, awkward(3, numel), block)


@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=30, deadline=None)
@given(
    x=st.lists(st.floats(width=32), min_size=1, max_size=40),
    block=st.integers(1, 45),
    rows=st.integers(1, 2),
)
def test_any_values(name, x, block, rows):
    assert both(name, torch.tensor(x, dtype=torch.float32).expand(rows, -1), block)


@pytest.mark.parametrize("name", NAMES)
def test_strides_and_threads(name):
    x = normal(3, 10_007)
    wanted = getattr(reference, name)(x, 96)
    assert all(same(getattr(cpu, name)(y, 96), wanted) for y in scattered(x))
    with threads(3):
        assert both(name, x, 96)
        assert both(name, x, 100_000)


@pytest.mark.parametrize("numel", [33, 4097, 100_000])
def test_one_nan_shows(numel):
    x = torch.zeros(1, numel)
    x[0, -1] = float("nan")
    assert abs_max(x, numel).isnan().all()
    assert abs_sum(x, numel).isnan().all()
