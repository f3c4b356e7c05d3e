"""Counter-based random numbers."""

from __future__ import annotations

import pytest
import torch
from exact import same, threads
from hypothesis import given, settings
from hypothesis import strategies as st

from gradwire.core.random import Random, Stream
from gradwire.kernels.random import coins, cpu, halves, normal, quick_words, reference, uniform, words

CPU = torch.device("cpu")


def test_philox_known_answers():
    """The first block of key 0 and counter 0, as Random123 publishes it for philox4x32-10."""
    answer = [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]
    assert reference.block_words(0, 0, 1, CPU).tolist() == answer
    assert cpu.words(Stream((0,)), (4,), CPU).tolist() == answer


def philox(key, counter):
    """The ten rounds in Python's integers, as the paper writes them; `counter` has four words."""
    x, k = list(counter), [key & 0xFFFFFFFF, key >> 32]
    for _ in range(10):
        products = 0xD2511F53 * x[0], 0xCD9E8D57 * x[2]
        high, low = [p >> 32 for p in products], [p & 0xFFFFFFFF for p in products]
        x = [high[1] ^ x[1] ^ k[0], low[1], high[0] ^ x[3] ^ k[1], low[0]]
        k = [(word + weyl) & 0xFFFFFFFF for word, weyl in zip(k, (0x9E3779B9, 0xBB67AE85), strict=True)]
    return x


def test_the_definition_gives_the_published_answers():
    """Random123's test vectors for philox4x32-10: all bits set, and the digits of pi."""
    ones, pi = 0xFFFFFFFF, [0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344]
    assert philox(2**64 - 1, [ones] * 4) == [0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD]
    assert philox(0x299F31D0A4093822, pi) == [0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1]


@pytest.mark.parametrize("key", [0, 7, 2**32 - 1, 2**32, 0x9E3779B97F4A7C15, 2**63, 2**64 - 1])
@pytest.mark.parametrize("first", [0, 1, 12_345, 2**31 - 2, 2**32 - 2, 2**40 + 3])
def test_words_follow_the_definition(key, first):
    wanted = [w for block in range(first, first + 5) for w in philox(key, [block & 0xFFFFFFFF, block >> 32, 0, 0])]
    assert reference.block_words(key, first, 5, CPU).tolist() == wanted
    assert reference.plain_words(key, first, 5, CPU).tolist() == wanted
    assert reference.words(Stream((key,), (4 * first + 3,)), (9,), CPU).tolist() == wanted[3:12]


def check(stream, numel):
    for name in ("words", "quick_words", "uniform", "halves", "coins"):
        mine, theirs = (getattr(module, name)(stream, (numel,), CPU) for module in (cpu, reference))
        assert same(mine, theirs), name


@pytest.mark.parametrize("key", [0, 7, 2**32, 2**63 + 1, 2**64 - 1])
@pytest.mark.parametrize("offset", [0, 1, 63, 64, 1003, 2**34 - 70, 2**34 - 64, 2**39 - 31])
def test_compiled_equals_reference(key, offset):
    """The offsets lie around groups of blocks, and where the lower word of a block's counter runs over."""
    for numel in (0, 1, 100, 8192, 8193, 20_000):
        check(Stream((key,), (offset,)), numel)


@settings(max_examples=30, deadline=None)
@given(key=st.integers(0, 2**64 - 1), offset=st.integers(0, 2**40), numel=st.integers(0, 300))
def test_any_stream(key, offset, numel):
    check(Stream((key,), (offset,)), numel)
    check(Stream((key, 5, key), (offset, 1, offset)), 3 * numel)


def test_threads_draw_the_same():
    with threads(3):
        check(Stream((11,), (5,)), 40_003)


def test_halves_are_midpoints_of_all_cells():
    x = halves(Stream((1,)), (1 << 20,), CPU)
    assert x.unique().numel() > 0.99 * 2**16
    assert (x * 2**16).frac().eq(0.5).all()
    assert abs(x.double().mean() - 0.5) < 5 * (12 * 2**20) ** -0.5


def test_any_cut_gives_the_same_numbers():
    whole = words(Stream((7,)), (1000,), CPU)
    for start, stop in [(0, 10), (3, 400), (41, 42), (998, 1000)]:
        assert words(Stream((7,), (start,)), (stop - start,), CPU).equal(whole[start:stop])
        assert coins(Stream((7,), (start,)), (stop - start,), CPU).equal(coins(Stream((7,)), (1000,), CPU)[start:stop])


def test_blocks_beyond_one_chunk_continue_the_stream():
    n = 4 * reference._CHUNK + 8
    assert words(Stream((3,)), (n,), CPU)[-8:].equal(words(Stream((3,), (n - 8,)), (8,), CPU))


@pytest.mark.parametrize("draw, mean, std", [(uniform, 0.5, 12**-0.5), (normal, 0.0, 1.0)])
def test_moments(draw, mean, std):
    x = draw(Stream((11,)), (200_000,), CPU).double()
    assert abs(x.mean() - mean) < 5 * std / 200_000**0.5
    assert abs(x.std() - std) < 0.01 * std + 1e-3


def test_uniform_stays_below_one_and_on_its_grid():
    x = uniform(Stream((2,)), (100_000,), CPU)
    assert x.min() >= 0
    assert x.max() < 1
    assert (x * 2**24).frac().eq(0).all()


def test_coins_are_fair_and_independent_of_position():
    x = coins(Stream((5,)), (64_000,), CPU).view(-1, 32).double()
    assert abs(x.mean() - 0.5) < 0.01
    assert (x.mean(0) - 0.5).abs().max() < 0.06
    assert torch.corrcoef(x.T).fill_diagonal_(0).abs().max() < 0.12


def test_keys_separate_seed_step_unit_purpose_and_rank():
    base = Random(seed=1, step=2, unit="u", ranks=(0,))
    (private,) = base.private("p").keys
    others = [
        Random(seed=2, step=2, unit="u").private("p"),
        Random(seed=1, step=3, unit="u").private("p"),
        Random(seed=1, step=2, unit="v").private("p"),
        Random(seed=1, step=2, unit="u", ranks=(1,)).private("p"),
        base.private("q"),
        base.shared("p"),
        base.fold("down").private("p"),
    ]
    assert len({private, *(o.keys[0] for o in others)}) == len(others) + 1
    assert base.shared("p") == Random(seed=1, step=2, unit="u", ranks=(5,)).shared("p")
    assert base.at(64).shared("p").offsets == (64,)


def test_several_workers_draw_what_each_would_alone():
    three = Random(seed=1, unit="u", ranks=(4, 0, 2), offsets=(0, 70, 7))
    alone = [Random(seed=1, unit="u", ranks=(r,), offsets=(o,)) for r, o in ((4, 0), (0, 70), (2, 7))]
    for stream in ("private", "shared"):
        for draw in (words, quick_words, uniform, halves, coins):
            rows = draw(getattr(three, stream)("p"), (6, 51), CPU)
            for i, source in enumerate(alone):
                wanted = draw(getattr(source, stream)("p"), (2, 51), CPU)
                assert same(rows[2 * i : 2 * i + 2], wanted), (stream, draw)
    assert three.at(3).offsets == (3, 3, 3)
    assert three.at(1, 2, 3).offsets == (1, 2, 3)
    assert three.of((5,), (9,)) == Random(seed=1, unit="u", ranks=(5,), offsets=(9,))
    assert three.common("p") == alone[0].shared("p")


def test_a_group_draws_as_its_first_row():
    rng = Random(ranks=(0, 1, 2, 0, 1, 2), offsets=(0, 0, 0, 8, 8, 8))
    assert rng.groups(2) == Random(ranks=(0, 0), offsets=(0, 8))
    assert rng.groups(6) is rng


def test_rows_that_cannot_be_dealt_out_are_an_error():
    with pytest.raises(ValueError, match="5 rows cannot be dealt out evenly to 2 keys"):
        list(Stream((1, 2), (0, 0)).each(5))
