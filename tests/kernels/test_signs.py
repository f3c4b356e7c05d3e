"""Signs and votes: by hand, and the compiled kernels against plain torch."""

from __future__ import annotations

import pytest
import torch
from exact import awkward, normal, same, scattered, threads
from hypothesis import given, settings
from hypothesis import strategies as st

from gradwire.core.random import Stream
from gradwire.core.window import Feedback
from gradwire.kernels.rows import join
from gradwire.kernels.signs import (
    cpu,
    decode,
    decode_sum,
    encode,
    encode_or_toss,
    encode_scaled,
    one_pass,
    reduce_and_encode,
    reference,
    split,
    tosses,
    vote,
)

SHAPES = [(1, 0, 4), (1, 1, 4), (2, 9, 4), (3, 1000, 7), (5, 5000, 512), (1, 30_001, 2048), (4, 20_000, 100_000)]


def random_bytes(rows, size, seed=0):
    return torch.randint(0, 256, (rows, size), dtype=torch.uint8, generator=torch.Generator().manual_seed(seed))


def check(x, block):
    """All functions of rows of numbers and of their bits."""
    rows, numel = x.shape
    blocks = -(-numel // block)
    bits, minus, plus = reference.encode(x), normal(rows, blocks, 1), normal(rows, blocks, 2)
    assert same(cpu.encode(x), bits)
    streams = [Stream((17,), (offset,)) for offset in (0, 7, 64)]
    for stream in [*streams, Stream(tuple(range(rows)), tuple(range(5, 5 + rows)))]:
        assert same(cpu.encode_or_toss(x, stream), reference.encode_or_toss(x, stream))
        assert same(cpu.tosses(stream, numel, x.device), reference.tosses(stream, numel, x.device))
    assert same(cpu.decode(bits, minus, plus, block, numel), reference.decode(bits, minus, plus, block, numel))
    for keep in (False, True):
        assert same(cpu.encode_scaled(x, block, keep), reference.encode_scaled(x, block, keep))
    args = bits, minus, plus, block, numel
    for groups in {1, rows}:
        assert same(cpu.decode_sum(*args, groups), reference.decode_sum(*args, groups))
        for error in (None, x[:groups].clone()):
            for decay in (1.0, 0.3):
                kept = [Feedback(torch.full((groups, numel), 9.0), error, decay) for _ in range(2)]
                mine, wanted = (
                    form.reduce_and_encode(join(plus, bits), block, numel, owed, groups, "")
                    for form, owed in ((one_pass, kept[0]), (reference, kept[1]))
                )
                assert same(split(mine, block, numel), split(wanted, block, numel))
                assert same(kept[0].out, kept[1].out)
        nothing = block, numel, None, groups, ""
        mine, wanted = (form.reduce_and_encode(join(plus, bits), *nothing) for form in (one_pass, reference))
        assert same(split(mine, block, numel), split(wanted, block, numel))


def test_by_hand():
    x = torch.tensor([[1.0, -2.0, 0.0, -0.0, -5.0, 3.0, float("nan"), 1.0, -1.0]])
    assert encode(x).tolist() == [[0b10101101, 0]]
    assert decode(encode(x), torch.tensor([[-1.0, 2.0]]), torch.tensor([[1.0, 7.0]]), 8, 9).tolist() == [
        [1, -1, 1, 1, -1, 1, -1, 1, 2]
    ]


def test_zeros_toss_a_coin_and_bad_rows_are_named():
    x = torch.zeros(2, 4096)
    x[0, 1], x[0, 2], x[1, 5] = 2.0, -3.0, float("-inf")
    bits, bad = encode_or_toss(x, Stream((3,), (11,)))
    coins = torch.cat((tosses(Stream((3,), (11,)), 4096, x.device), tosses(Stream((3,), (11 + 4096,)), 4096, x.device)))
    assert bad.tolist() == [[False], [True]]
    assert (bits[0, 0] & 0b110).item() == 0b010
    assert (bits[1, 0] & 0b100000).item() == 0
    assert same(bits[:, 1:], coins[:, 1:])
    ones = sum(int(b).bit_count() for b in coins.view(-1))
    assert abs(ones - 4096) < 4 * 45  # 8192 fair coins


def test_scaled_by_hand():
    scales, bits, own = encode_scaled(torch.tensor([[1.0, -2.0, 3.0, -6.0, -5.0]]), 4, keep_own=True)
    assert scales.tolist() == [[3, 5]]
    assert bits.tolist() == [[0b00101]]
    assert own.tolist() == [[3, -3, 3, -3, -5]]


def test_recoded_by_hand():
    bits, scale = encode(torch.tensor([[1.0, -1.0, 1.0], [1.0, 1.0, -1.0]])), torch.tensor([[2.0], [4.0]])
    assert decode_sum(bits, -scale, scale, 3, 3).tolist() == [[6, 2, -2]]
    kept = Feedback(torch.empty(1, 3), torch.tensor([[0.0, -6.0, 0.0]]), decay=0.5)
    scales, again = split(reduce_and_encode(join(scale, bits), 3, 3, kept), 3, 3)
    assert scales.tolist() == [[2]]  # of the mean and what was carried, 3, −2, −1
    assert again.tolist() == [[0b001]]
    assert kept.out.tolist() == [[1, 0, 1]]


def test_groups_of_rows_are_recoded_each_by_itself():
    bits, minus, plus = random_bytes(6, 4), normal(6, 2, 1), normal(6, 2, 2)
    kept = Feedback(torch.empty(3, 30), normal(3, 30, 3))
    together = reduce_and_encode(join(plus, bits), 16, 30, kept, groups=3)
    whole, votes = decode_sum(bits, minus, plus, 16, 30, groups=3), vote(bits, random_bytes(3, 4, 1), groups=3)
    for i in range(3):
        mine, own = slice(2 * i, 2 * i + 2), slice(i, i + 1)
        args = bits[mine], minus[mine], plus[mine], 16, 30
        alone = Feedback(torch.empty(1, 30), kept.error[own])
        assert same(reduce_and_encode(join(plus[mine], bits[mine]), 16, 30, alone), together[own])
        assert same(alone.out, kept.out[own])
        assert same(decode_sum(*args), whole[own])
        assert same(vote(bits[mine], random_bytes(3, 4, 1)[own]), votes[own])


@pytest.mark.parametrize("rows", [1, 2, 3, 4, 7, 8, 300])
def test_votes_are_counted(rows):
    data, ties = random_bytes(rows, 3001), random_bytes(1, 3001, 1)
    bits = (data.unsqueeze(2) >> torch.arange(8)) & 1
    ayes, chosen = bits.sum(0), (ties[0].unsqueeze(1) >> torch.arange(8)) & 1
    wanted = torch.where(2 * ayes == rows, chosen.bool(), 2 * ayes > rows)
    assert ((vote(data, ties)[0].unsqueeze(1) >> torch.arange(8)) & 1).bool().equal(wanted)
    assert same(cpu.vote(data, ties, 1), reference.vote(data, ties, 1))
    ties = random_bytes(rows, 3001, 2)
    assert same(cpu.vote(data, ties, rows), reference.vote(data, ties, rows))


@pytest.mark.parametrize("rows, numel, block", SHAPES)
def test_compiled_equals_reference(rows, numel, block):
    check(awkward(rows, numel), block)


@settings(max_examples=30, deadline=None)
@given(
    x=st.lists(st.floats(width=32), min_size=1, max_size=40),
    block=st.integers(1, 45),
    rows=st.integers(1, 3),
)
def test_any_values(x, block, rows):
    check(torch.tensor(x, dtype=torch.float32).repeat(rows, 1), block)


def test_strides():
    x, data = normal(3, 5003), random_bytes(3, 700)
    scales = normal(3, 11)
    for y in scattered(x):
        assert same(cpu.encode(y), reference.encode(x))
        assert same(cpu.encode_scaled(y, 96, True), reference.encode_scaled(x, 96, True))
    wanted = reference.decode_sum(data, scales, -scales, 512, 5600, 1)
    for d in scattered(data):
        assert same(cpu.decode_sum(d, scales, -scales, 512, 5600, 1), wanted)
        assert same(cpu.decode(d, scales, -scales, 512, 5600), reference.decode(data, scales, -scales, 512, 5600))
        assert same(cpu.vote(d, data[:1], 1), reference.vote(data, data[:1], 1))


def test_threads():
    with threads(3):
        check(normal(3, 40_007), 96)
        data = random_bytes(4, 5001)
        assert same(cpu.vote(data, data[:1], 1), reference.vote(data, data[:1], 1))
