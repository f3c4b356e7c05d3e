"""Counter-based random numbers."""

from __future__ import annotations

import pytest
import torch

from gradwire.core.random import Random, Stream
from gradwire.kernels.random import coins, normal, reference, uniform, words

CPU = torch.device("cpu")


def test_philox_known_answers():
    """The first block of key 0 and counter 0, as Random123 publishes it for philox4x32-10."""
    assert reference.words(0, 0, 1, CPU).tolist() == [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]


def test_any_cut_gives_the_same_numbers():
    whole = words(Stream(7), (1000,), CPU)
    for start, stop in [(0, 10), (3, 400), (41, 42), (998, 1000)]:
        assert words(Stream(7, start), (stop - start,), CPU).equal(whole[start:stop])
        assert coins(Stream(7, start), (stop - start,), CPU).equal(coins(Stream(7), (1000,), CPU)[start:stop])


def test_blocks_beyond_one_chunk_continue_the_stream():
    n = 4 * reference._CHUNK + 8
    assert words(Stream(3), (n,), CPU)[-8:].equal(words(Stream(3, n - 8), (8,), CPU))


@pytest.mark.parametrize("draw, mean, std", [(uniform, 0.5, 12**-0.5), (normal, 0.0, 1.0)])
def test_moments(draw, mean, std):
    x = draw(Stream(11), (200_000,), CPU).double()
    assert abs(x.mean() - mean) < 5 * std / 200_000**0.5
    assert abs(x.std() - std) < 0.01 * std + 1e-3


def test_uniform_stays_below_one_and_on_its_grid():
    x = uniform(Stream(2), (100_000,), CPU)
    assert x.min() >= 0
    assert x.max() < 1
    assert (x * 2**24).frac().eq(0).all()


def test_coins_are_fair_and_independent_of_position():
    x = coins(Stream(5), (64_000,), CPU).view(-1, 32).double()
    assert abs(x.mean() - 0.5) < 0.01
    assert (x.mean(0) - 0.5).abs().max() < 0.06
    assert torch.corrcoef(x.T).fill_diagonal_(0).abs().max() < 0.12


def test_keys_separate_seed_step_unit_purpose_and_rank():
    base = Random(seed=1, step=2, unit="u", rank=0)
    private = base.private("p").key
    others = [
        Random(seed=2, step=2, unit="u").private("p"),
        Random(seed=1, step=3, unit="u").private("p"),
        Random(seed=1, step=2, unit="v").private("p"),
        Random(seed=1, step=2, unit="u", rank=1).private("p"),
        base.private("q"),
        base.shared("p"),
        base.fold("down").private("p"),
    ]
    assert len({private, *(o.key for o in others)}) == len(others) + 1
    assert base.shared("p") == Random(seed=1, step=2, unit="u", rank=5).shared("p")
    assert base.at(64).shared("p").offset == 64
