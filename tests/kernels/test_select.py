"""Selection by magnitude: by hand, and the compiled kernels against plain torch."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gradwire.kernels.parallel import LARGE
from gradwire.kernels.select import above, count_above, cpu, reference, top

NAN, INF = float("nan"), float("inf")
LENGTHS = [1, 7, 8, 9, 4095, 4097, 9001]


def normal(rows, numel, seed=0):
    return torch.randn(rows, numel, generator=torch.Generator().manual_seed(seed))


def any_bits(rows, numel, seed=0):
    """Every kind of float32: NaN of all payloads, infinities, subnormals."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(-(2**31), 2**31, (rows, numel), generator=generator).to(torch.int32).view(torch.float32)


def awkward(numel):
    """Ties, zeros, NaN, infinities, subnormals, and rows that are not contiguous."""
    x = normal(2, numel)
    marked = torch.where(x > 0.5, NAN, torch.where(x < -0.5, -INF, x))
    alone = torch.zeros(1, numel)
    alone[0, numel // 2] = -1.0
    return {
        "normal": x,
        "zeros": torch.zeros(1, numel),
        "minus zeros": -torch.zeros(1, numel),
        "one": alone,
        "constant": torch.full((1, numel), -3.0),
        "ties": (2 * x).round(),
        "sparse": torch.where(x > 2.5, x, 0.0),
        "subnormal": 1e-42 * x,
        "not finite": marked,
        "all NaN": torch.full((1, numel), NAN),
        "any bits": any_bits(3, numel),
        "strided": normal(numel, 3).t(),
        "ascending": x.sort().values,
    }


def counts_of(numel):
    return sorted({k for k in (0, 1, 2, numel // 100, numel // 10, numel // 2, numel - 1, numel) if 0 <= k <= numel})


def test_top_by_hand():
    x = torch.tensor([[1.0, -3.0, 2.0, 3.0, -0.0, 3.0], [0.0, NAN, INF, -INF, 1e-45, 5.0]])
    assert top(x, 2).tolist() == [[1, 3], [1, 2]]
    assert top(x, 4).tolist() == [[1, 2, 3, 5], [1, 2, 3, 5]]
    assert top(x, 0).shape == (2, 0)
    assert top(x, 6).tolist() == [[0, 1, 2, 3, 4, 5]] * 2


@pytest.mark.parametrize("back_end", [cpu, reference])
def test_all_nan_are_equal(back_end):
    x = torch.tensor([[0x7FC00000, -1, 0x7F800001, 0x7FFFFFFF]], dtype=torch.int64).to(torch.int32).view(torch.float32)
    assert back_end.top(x, 2).tolist() == [[0, 1]]


@pytest.mark.parametrize("numel", LENGTHS)
def test_top_is_that_of_the_reference(numel):
    for name, x in awkward(numel).items():
        for k in counts_of(numel):
            assert cpu.top(x, k).equal(reference.top(x, k)), (name, k)


@settings(max_examples=40, deadline=None)
@given(
    values=st.lists(st.floats(width=32) | st.sampled_from([0.0, 1.0, -1.0, NAN]), min_size=1, max_size=60),
    data=st.data(),
)
def test_top_of_any_list(values, data):
    k = data.draw(st.integers(0, len(values)))
    x = torch.tensor([values])
    assert cpu.top(x, k).equal(reference.top(x, k))


@pytest.mark.parametrize("threads", [1, 2])
def test_long_rows(threads):
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        for x in (normal(2, LARGE + 3), torch.where(normal(1, LARGE) > 2.8, 1.0, 0.0), normal(1, LARGE).sort().values):
            for k in (1, LARGE // 100, LARGE // 3):
                assert cpu.top(x, k).equal(reference.top(x, k))
            for threshold in (0.0, 1.5):
                limit = torch.full((x.shape[0],), threshold)
                indices, counts = cpu.above(x, limit)
                for row, found, count in zip(x, indices, counts.tolist(), strict=True):
                    assert found[:count].equal((row.abs() > threshold).nonzero().squeeze(1))
            limits = torch.tensor([[0.0, 0.5, 2.0]]).expand(x.shape[0], 3)
            assert cpu.count_above(x, limits).equal(reference.count_above(x, limits))
    finally:
        torch.set_num_threads(before)


def test_a_sample_that_misleads_costs_time_only():
    """Large values stand at the sampled places alone, so that the first guess lies far too high."""
    numel = 100_000
    places = torch.from_numpy(cpu._sample(np.arange(numel, dtype=np.int32))).long()
    x = normal(1, numel)
    x[0, places] += 100.0
    k = 2 * places.numel()
    rank = cpu._rank(places.numel(), k, numel)
    assert rank < places.numel()
    assert cpu._guess(x[0, places].view(torch.int32).numpy(), rank) > np.float32(50.0).view(np.int32)
    assert cpu.top(x, k).equal(reference.top(x, k))


@pytest.mark.parametrize("k", [-1, 4])
def test_more_than_there_are_is_an_error(k):
    with pytest.raises(ValueError, match=f"top {k} of 3"):
        cpu.top(torch.ones(1, 3), k)


def test_above_by_hand():
    x = torch.tensor([[1.0, -3.0, NAN, 3.0, -INF], [0.0, 2.0, -0.0, 1.0, 4.0]])
    indices, counts = above(x, torch.tensor([2.0, 2.0]))
    assert indices.tolist() == [[1, 2, 3, 4], [4, 0, 0, 0]]
    assert counts.tolist() == [4, 1]
    indices, counts = above(x, torch.tensor([INF, INF]))
    assert indices.tolist() == [[2], [0]]
    assert counts.tolist() == [1, 0]


@pytest.mark.parametrize("threshold", [0.0, -0.0, -1.0, 1e-45, 0.5, 1.0, 3e38, INF, NAN])
@pytest.mark.parametrize("numel", LENGTHS)
def test_above_is_that_of_the_reference(numel, threshold):
    for name, x in awkward(numel).items():
        limit = torch.full((x.shape[0],), threshold)
        for mine, theirs in zip(cpu.above(x, limit), reference.above(x, limit), strict=True):
            assert mine.dtype == theirs.dtype == torch.int64
            assert mine.equal(theirs), name


def test_empty_rows():
    for back_end in (cpu, reference):
        assert back_end.top(torch.empty(3, 0), 0).shape == (3, 0)
        assert back_end.count_above(torch.empty(2, 0), torch.zeros(2, 1)).tolist() == [[0], [0]]
        indices, counts = back_end.above(torch.empty(2, 0), torch.zeros(2))
        assert indices.shape == (2, 0)
        assert counts.tolist() == [0, 0]
    assert cpu.top(torch.empty(0, 5), 2).shape == (0, 2)


def test_count_above_by_hand():
    x = torch.tensor([[1.0, -2.0, NAN, 2.0, INF]])
    assert count_above(x, torch.tensor([[0.0, 1.5, 2.0, 2.5, INF]])).tolist() == [[4, 3, 3, 1, 1]]


@pytest.mark.parametrize("numel", LENGTHS)
def test_count_above_is_that_of_the_reference(numel):
    for name, x in awkward(numel).items():
        limits = torch.tensor([[-1.0, -0.0, 1e-45, 0.5, 1.0, INF, NAN]]).expand(x.shape[0], 7)
        for chosen in (limits, limits[:, :1], limits[:, :0]):
            assert cpu.count_above(x, chosen).equal(reference.count_above(x, chosen)), name
