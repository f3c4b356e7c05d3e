"""Zero-run coding: by hand, round trips, and the compiled kernels against plain torch."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gradwire.core.errors import CorruptPayload
from gradwire.kernels.parallel import LARGE
from gradwire.kernels.runs import cpu, decode, encode, reference

BACK_ENDS = [cpu, reference]


def rows_of(*rows):
    return torch.tensor(rows, dtype=torch.uint8)


def with_runs(rows, numel, share, seed=0):
    """Random bytes, a share of which is 121."""
    generator = torch.Generator().manual_seed(seed)
    data = torch.randint(0, 243, (rows, numel), generator=generator)
    return torch.where(torch.rand(rows, numel, generator=generator) < share, 121, data).byte()


@pytest.mark.parametrize("back_end", BACK_ENDS)
def test_by_hand(back_end):
    data = rows_of([121, 121, 121, 7, 121, 0, 121, 121], [1, 2, 3, 4, 5, 6, 242, 0])
    coded, lengths = back_end.encode(data)
    assert lengths.tolist() == [5, 8]
    assert coded.tolist() == [[244, 7, 121, 0, 243, 0, 0, 0], [1, 2, 3, 4, 5, 6, 242, 0]]
    assert back_end.decode(coded, lengths, 8).equal(data)


@pytest.mark.parametrize("back_end", BACK_ENDS)
@pytest.mark.parametrize(
    "length, wanted",
    [(1, [121]), (2, [243]), (13, [254]), (14, [255]), (15, [255, 121]), (16, [255, 243]), (29, [255, 255, 121])],
)
def test_long_runs_are_cut_from_the_left(back_end, length, wanted):
    data = rows_of([9] + [121] * length + [8])
    coded, lengths = back_end.encode(data)
    assert coded.tolist() == [[9, *wanted, 8]]
    assert lengths.tolist() == [len(wanted) + 2]
    assert back_end.decode(coded, lengths, length + 2).equal(data)


@settings(max_examples=60, deadline=None)
@given(
    rows=st.integers(0, 4), numel=st.integers(0, 80), share=st.sampled_from([0, 0.5, 0.9, 1]), seed=st.integers(0, 99)
)
def test_round_trip_and_the_same_bytes(rows, numel, share, seed):
    data = with_runs(rows, numel, share, seed)
    coded, lengths = cpu.encode(data)
    for mine, theirs in zip((coded, lengths), reference.encode(data), strict=True):
        assert mine.dtype == theirs.dtype
        assert mine.equal(theirs)
    assert coded.shape == (rows, max(lengths.tolist(), default=0))
    for back_end in BACK_ENDS:
        assert back_end.decode(coded, lengths, numel).equal(data)


def test_padding_and_strides():
    data = with_runs(6, 90, 0.8)[::2, ::3]
    coded, lengths = cpu.encode(data)
    assert coded.equal(reference.encode(data)[0])
    padded = torch.cat([coded, torch.full((3, 9), 77, dtype=torch.uint8)], 1)  # nothing behind the length is read
    assert cpu.decode(padded, lengths, 30).equal(data)


@pytest.mark.parametrize("back_end", BACK_ENDS)
@pytest.mark.parametrize("count", [0, 4, 6, 100])
def test_a_wrong_count_is_an_error(back_end, count):
    coded, lengths = encode(rows_of([121, 121, 121, 1, 2]))
    assert decode(coded, lengths, 5).tolist() == [[121, 121, 121, 1, 2]]
    with pytest.raises(CorruptPayload, match=f"its runs hold 5 bytes, not {count}"):
        back_end.decode(coded, lengths, count)


@pytest.mark.parametrize("threads", [1, 2])
def test_long_rows(threads):
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        data = with_runs(3, LARGE // 2, 0.9)
        coded, lengths = cpu.encode(data)
        assert coded.equal(reference.encode(data)[0])
        assert cpu.decode(coded, lengths, LARGE // 2).equal(data)
    finally:
        torch.set_num_threads(before)
