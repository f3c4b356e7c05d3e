"""Tagged fixed point: by hand, and the compiled kernels against plain torch."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gradwire.core.errors import CorruptPayload
from gradwire.kernels import tagged
from gradwire.kernels.parallel import LARGE
from gradwire.kernels.tagged import cpu, reference

BACK_ENDS = [cpu, reference]


def bits(x):
    return x.contiguous().view(torch.int32)


def inputs(rows, numel, seed=0):
    """Numbers of many sizes; any 32 bits; denormal numbers; zeros."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(rows, numel, generator=generator)
    yield x * torch.exp2(torch.randint(-14, 8, (rows, numel), generator=generator).float())
    yield torch.randint(-(2**31), 2**31, (rows, numel), generator=generator).int().view(torch.float32)
    yield x * 1e-41
    yield x * 0


@pytest.mark.parametrize("back_end", BACK_ENDS)
def test_by_hand(back_end):
    x = torch.tensor([[0.2, -1.0, 64.0, 32768.0, 63.5], [0.0] * 5])
    data, lengths = back_end.encode(x, 0.5)
    # in units of the bound: 0.4, -2, 128, 65536, 127
    tags = [0 | 1 << 2 | 2 << 4 | 3 << 6, 1]
    assert lengths.tolist() == [2 + 2 + 2 + 4, 2]
    assert data.tolist() == [[*tags, 254, 127, 128, 0, 0, 0, 0, 0x47], [0] * 10]
    assert back_end.decode(data, 0.5, 5).tolist() == [[0.0, -1.0, 64.0, 32768.0, 63.5], [0.0] * 5]


@pytest.mark.parametrize("bound", [2.0**-100, 1.0, 2.0**100])
def test_around_the_ends_of_each_form(bound):
    """Ties go to the even number: 127.5 to 128, 32767.5 to 32768, 0.5 to 0."""
    c = torch.tensor([0.5, 1.0, 127.0, 127.5, 128.0, 32767.0, 32767.5, 32768.0, 2.0**22, 2.0**23 + 1, 2.0**24])
    near = torch.cat([c, c.nextafter(torch.tensor(0.0)), c.nextafter(torch.tensor(1e9))])
    x = torch.cat([near, -near])[None] * bound
    data, lengths = cpu.encode(x, bound)
    for mine, theirs in zip((data, lengths), reference.encode(x, bound), strict=True):
        assert mine.equal(theirs)
    assert bits(cpu.decode(data, bound, x.shape[1])).equal(bits(reference.decode(data, bound, x.shape[1])))


@settings(max_examples=50, deadline=None)
@given(
    rows=st.integers(1, 4),
    numel=st.integers(0, 90),
    bound=st.sampled_from([2.0**-100, 2.0**-10, 1.0, 2.0**100]),
    seed=st.integers(0, 99),
)
def test_same_bytes_and_values_as_the_reference(rows, numel, bound, seed):
    for x in inputs(rows, numel, seed):
        data, lengths = cpu.encode(x, bound)
        for mine, theirs in zip((data, lengths), reference.encode(x, bound), strict=True):
            assert mine.dtype == theirs.dtype
            assert mine.equal(theirs)
        assert bits(cpu.decode(data, bound, numel)).equal(bits(reference.decode(data, bound, numel)))


def test_strides_and_padding():
    for x in inputs(6, 60):
        some = x[::2, 1::3]
        data = cpu.encode(some, 2.0**-10)[0]
        assert data.equal(reference.encode(some, 2.0**-10)[0])
        wide = torch.nn.functional.pad(data, (3, 5), value=77)[:, 3:]  # nothing behind the length is read
        assert bits(cpu.decode(wide, 2.0**-10, 20)).equal(bits(reference.decode(data, 2.0**-10, 20)))


def test_a_row_too_short_for_its_tags_is_an_error():
    for back_end in (cpu, reference):
        with pytest.raises(CorruptPayload, match="17 bytes are to be read from a row of 3"):
            back_end.decode(torch.tensor([[255, 0, 0]], dtype=torch.uint8), 1.0, 4)
    with pytest.raises(CorruptPayload, match="4 bytes are to be read from a row of 3"):
        tagged.decode(torch.zeros(1, 3, dtype=torch.uint8), 1.0, 13)


@pytest.mark.parametrize("threads", [1, 2])
def test_long_rows(threads):
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        x = next(inputs(2, LARGE + 3))
        data, lengths = cpu.encode(x, 2.0**-10)
        for mine, theirs in zip((data, lengths), reference.encode(x, 2.0**-10), strict=True):
            assert mine.equal(theirs)
        assert cpu.decode(data, 2.0**-10, LARGE + 3).equal(reference.decode(data, 2.0**-10, LARGE + 3))
    finally:
        torch.set_num_threads(before)
