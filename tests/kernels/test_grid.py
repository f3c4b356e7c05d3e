"""The uniform quantiser: by hand, and the compiled kernels against plain torch."""

from __future__ import annotations

import pytest
import torch
from exact import awkward, normal, same, scattered, threads
from hypothesis import given, settings
from hypothesis import strategies as st

from gradwire.core.random import Stream
from gradwire.core.window import Feedback
from gradwire.kernels import blockwise
from gradwire.kernels.bitpack import unpack
from gradwire.kernels.grid import (
    Rule,
    code_width,
    cpu,
    decode,
    decode_sum,
    encode,
    one_pass,
    reduce_and_encode,
    reference,
    split,
    usable,
)
from gradwire.kernels.rows import join

RANGES = [(0, 1), (1, 1), (3, 3), (7, 7), (8, 7), (15, 16), (127, 127), (0, 255), (300, 300), (32767, 32767)]
SHAPES = [(1, 0, 4), (1, 1, 4), (2, 9, 4), (3, 1000, 7), (2, 9000, 512), (1, 20_001, 2048), (2, 8200, 100_000)]
STREAMS = [None, Stream((5,)), Stream((2**64 - 9,), (13,)), Stream((7,), (2**35 - 17,))]
NAN, INF = float("nan"), float("inf")


def each_its_own(noise, rows):
    """A key and an offset for each row; those of `noise` for the first."""
    if noise is None:
        return None
    (key,), (offset,) = noise.keys, noise.offsets
    return Stream(tuple(key ^ i for i in range(rows)), tuple(offset + 1003 * i for i in range(rows)))


def check(x, block, low, high, noise):
    """All functions of rows of numbers and of their codes, on steps of many sizes."""
    rows, numel = x.shape
    blocks = -(-numel // block)
    step = normal(rows, blocks, 1)
    inverse = usable(blockwise.abs_max(x, block), high).reciprocal() * high * normal(rows, blocks, 2).abs()
    codes = reference.encode(x, inverse, block, low, high, noise)
    assert same(cpu.encode(x, inverse, block, low, high, noise), codes)
    for source in (noise, each_its_own(noise, rows)):
        args = x, inverse, block, low, high, source
        assert same(cpu.encode(*args), reference.encode(*args))
    args = codes, step, block, low, high, numel
    assert same(cpu.decode(*args), reference.decode(*args))
    for groups in {1, rows}:
        assert same(cpu.decode_sum(*args, groups), reference.decode_sum(*args, groups))
    check_recoding(codes, x, Rule(block, low, high, clip=0.8), noise)
    check_recoding(codes, x, Rule(block, low, high, sigma=1.5), None)


def check_recoding(codes, x, rule, noise):
    """What the owner of a shard does, with rows of codes, scales, and errors of many sizes."""
    rows, numel = x.shape
    scales = usable(blockwise.abs_max(x, rule.block), rule.high)
    for groups in {1, rows}:
        args = join(scales, codes), rule, numel
        stream, owed = each_its_own(noise, groups), x[:groups] * 0.1
        for error, decay, factor in [(None, 1.0, 1.0), (owed, 1.0, 1.0), (owed, 0.3, 0.7)]:
            kept = [Feedback(torch.full((groups, numel), 9.0), error, decay) for _ in range(2)]
            mine, wanted = (
                split(form.reduce_and_encode(*args, owed_by, stream, groups, factor, ""), rule, numel)
                for form, owed_by in ((one_pass, kept[0]), (reference, kept[1]))
            )
            assert same(mine, wanted)
            assert same(kept[0].out, kept[1].out)
        nothing = None, stream, groups, 1.0, ""
        mine, wanted = (form.reduce_and_encode(*args, *nothing) for form in (one_pass, reference))
        assert same(split(mine, rule, numel), split(wanted, rule, numel))


def test_nearest_by_hand():
    x = torch.tensor([[0.4, -0.5, 1.5, -9.0, 2.0, INF, NAN, -0.0]])
    codes = unpack(encode(x, torch.ones(1, 1), 8, 3, 3, None), code_width(3, 3), 8)
    assert codes.tolist() == [[3, 2, 5, 0, 5, 6, 0, 3]]  # ties away from zero; NaN has code 0
    packed = encode(x[:, :5], torch.ones(1, 1), 8, 3, 3, None)
    assert decode(packed, torch.full((1, 1), 2.0), 8, 3, 3, 5).tolist() == [[0, -2, 4, -6, 4]]


def test_recoded_by_hand():
    step, rule = torch.tensor([[0.5, 1.0], [1.5, 1.0]]), Rule(2, 7, 7)
    data = torch.cat([encode(torch.tensor([x]), torch.ones(1, 2), 2, 7, 7, None) for x in ([2.0, 4, 1], [2.0, -4, 5])])
    assert decode_sum(data, step, 2, 7, 7, 3).tolist() == [[4, -4, 6]]
    kept = Feedback(torch.empty(1, 3), torch.tensor([[0.0, -2.0, 8.0]]), decay=0.5)
    scales, codes = split(reduce_and_encode(join(step * 7, data), rule, 3, kept), rule, 3)
    assert scales.tolist() == [[3, 7]]  # of the mean and what was carried: 2, −3 and 7
    assert unpack(codes, 4, 3).tolist() == [[7 + 5, 0, 14]]  # 2·7/3 = 4.67
    assert torch.allclose(kept.out, torch.tensor([[2 - 5 * 3 / 7, 0, 0]]), atol=1e-6)
    half = Feedback(torch.empty(1, 3), torch.tensor([[0.0, -2.0, 8.0]]), decay=0.5)
    scales, codes = split(reduce_and_encode(join(step * 7, data), rule, 3, half, factor=0.5), rule, 3)
    assert scales.tolist() == [[2, 5.5]]  # of 1, −2 and 5.5
    assert torch.allclose(half.out, torch.tensor([[1 - 0.5 * 4 * 2 / 7, -1, 2.75]]), atol=1e-6)


def test_groups_of_rows_are_recoded_each_by_itself():
    data, step = torch.arange(48, dtype=torch.uint8).view(6, 8) * 5, torch.arange(1.0, 7.0).view(6, 1)
    args, noise, rule = (16, 7, 7, 16), Stream((3, 4, 5), (0, 9, 2**33)), Rule(16, 7, 7)
    kept = Feedback(torch.empty(3, 16), normal(3, 16))
    whole = decode_sum(data, step, *args, groups=3)
    together = reduce_and_encode(join(step, data), rule, 16, kept, noise, groups=3)
    for i in range(3):
        mine, stream = slice(2 * i, 2 * i + 2), Stream(noise.keys[i : i + 1], noise.offsets[i : i + 1])
        assert same(whole[i : i + 1], decode_sum(data[mine], step[mine], *args))
        alone = Feedback(torch.empty(1, 16), kept.error[i : i + 1])
        result = reduce_and_encode(join(step[mine], data[mine]), rule, 16, alone, stream)
        assert same(result, together[i : i + 1])
        assert same(alone.out, kept.out[i : i + 1])


def test_stochastic_rounding_is_unbiased():
    x, n = torch.full((1, 200_000), 0.3), 200_000
    values = decode(encode(x, torch.ones(1, 1), n, 1, 1, Stream((4,))), torch.ones(1, 1), n, 1, 1, n)
    assert set(values.unique().tolist()) == {0.0, 1.0}
    assert abs(values.double().mean() - 0.3) < 5 * (0.21 / n) ** 0.5


def test_tiny_blocks_have_finite_inverse_steps():
    scales = usable(torch.tensor([[0.0, 1e-45, 1.0, NAN]]), 127)
    assert scales.reciprocal().mul(127)[0, :3].isfinite().all()
    assert scales[0, 2] == 1
    assert scales[0, 3].isnan()


@pytest.mark.parametrize("low, high", RANGES)
@pytest.mark.parametrize("noise", STREAMS, ids=str)
def test_compiled_equals_reference(low, high, noise):
    for rows, numel, block in SHAPES:
        check(awkward(rows, numel), block, low, high, noise)


@settings(max_examples=30, deadline=None)
@given(
    x=st.lists(st.floats(width=32), min_size=1, max_size=40),
    block=st.integers(1, 45),
    rows=st.integers(1, 3),
    levels=st.sampled_from([1, 3, 7, 31, 127, 1000]),
    offset=st.integers(-1, 300),
)
def test_any_values(x, block, rows, levels, offset):
    noise = None if offset < 0 else Stream((3,), (offset,))
    check(torch.tensor(x, dtype=torch.float32).repeat(rows, 1), block, levels, levels, noise)


def test_every_half_is_exact():
    """All 2¹⁶ draws, on numbers that they just lift over the next integer, or just not."""
    halves = reference.halves(Stream((8,)), (1, 300_000), torch.device("cpu"))
    for edge in (1 - halves, (1 - halves) - 2.0**-24):
        args = edge, torch.ones(1, 1), 300_000, 0, 1, Stream((8,))
        assert same(cpu.encode(*args), reference.encode(*args))


def test_bad_steps():
    x = awkward(1, 600)
    bad = torch.tensor([[INF, NAN, 0.0, -1.0, 1e38, 1e-45]])
    for noise in (None, Stream((1,))):
        assert same(cpu.encode(x, bad, 100, 7, 7, noise), reference.encode(x, bad, 100, 7, 7, noise))
    data = reference.encode(x, torch.ones(1, 6), 100, 7, 7, None)
    assert same(cpu.decode_sum(data, bad, 100, 7, 7, 600, 1), reference.decode_sum(data, bad, 100, 7, 7, 600, 1))


@pytest.mark.parametrize("levels", [3, 7, 127, 1000])
def test_strides(levels):
    x, step = normal(3, 9003), torch.rand(3, 18) + 0.1
    codes = reference.encode(x, step, 512, levels, levels, Stream((2,)))
    for y in scattered(x):
        assert same(cpu.encode(y, step.expand(3, 18), 512, levels, levels, Stream((2,))), codes)
    for d in scattered(codes):
        args = step, 512, levels, levels, 9003
        assert same(cpu.decode(d, *args), reference.decode(codes, *args))
    rule = Rule(512, levels, levels)
    for d in scattered(join(step, codes)):
        args = rule, 9003, None, None, 1, 1.0, ""
        assert same(one_pass.reduce_and_encode(d, *args), reference.reduce_and_encode(join(step, codes), *args))


@pytest.mark.parametrize("noise", STREAMS, ids=str)
def test_threads(noise):
    with threads(3):
        check(normal(3, 30_007), 96, 7, 7, noise)
        check(normal(1, 30_007), 100_000, 3, 3, noise)


def test_more_codes_than_float32_counts_go_to_the_reference():
    x = normal(1, 100)
    args = torch.full((1, 1), 1e6), 100, 1 << 24, 1 << 24, None
    assert encode(x, *args).equal(reference.encode(x, *args))
