"""The rotation: what it keeps, and the compiled kernel against plain torch."""

from __future__ import annotations

import pytest
import torch
from exact import awkward, normal, same, scattered, threads
from hypothesis import given, settings
from hypothesis import strategies as st

from gradwire.core.random import Stream
from gradwire.kernels.hadamard import cpu, reference, rotate, unrotate
from gradwire.kernels.random import coins

SIZES = [1, 2, 4, 8, 16, 32, 64, 128, 1024, 8192, 16384, 65536]
STREAMS = [None, Stream((3,)), Stream((2**64 - 3,), (17,)), Stream((9,), (2**39 - 5,))]


def both(x, size, stream):
    turned = same(cpu.rotate(x, size, stream), reference.rotate(x, size, stream))
    return turned and same(cpu.unrotate(x, size, stream), reference.unrotate(x, size, stream))


def test_by_hand():
    assert rotate(torch.tensor([[1.0, 2.0, 3.0, 4.0]]), 4, None).tolist() == [[5, -1, -2, 0]]
    assert rotate(torch.tensor([[3.0, 1.0, 1.0, 2.0]]), 1, None).tolist() == [[3, 1, 1, 2]]


def test_it_is_the_hadamard_matrix_with_signs():
    stream, size = Stream((5,), (7,)), 64
    signs = 1.0 - 2.0 * coins(stream, (size,), torch.device("cpu")).double()
    matrix = torch.ones(1, 1, dtype=torch.float64)
    while len(matrix) < size:
        matrix = torch.cat((torch.cat((matrix, matrix), 1), torch.cat((matrix, -matrix), 1)))
    x = normal(1, size)
    assert torch.allclose(rotate(x, size, stream).double(), (x.double() * signs) @ matrix.T / size**0.5, atol=1e-5)


@pytest.mark.parametrize("size", [16, 512, 32768])
def test_norm_stays_and_unrotate_is_the_inverse(size):
    x = normal(2, 2 * size)
    y = rotate(x, size, Stream((1,)))
    assert torch.allclose(y.norm(), x.norm(), rtol=1e-5)
    assert torch.allclose(unrotate(y, size, Stream((1,))), x, atol=1e-4)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("stream", STREAMS, ids=str)
def test_compiled_equals_reference(size, stream):
    for rows, runs in [(1, 0), (1, 1), (2, 3)]:
        assert both(awkward(rows, runs * size), size, stream)


@settings(max_examples=30, deadline=None)
@given(
    x=st.lists(st.floats(width=32), min_size=64, max_size=64),
    size=st.sampled_from([2, 8, 16, 32, 64]),
    offset=st.integers(0, 70),
)
def test_any_values(x, size, offset):
    assert both(torch.tensor(x, dtype=torch.float32).view(1, -1), size, Stream((1,), (offset,)))


def test_strides_and_threads():
    x = normal(3, 1 << 14)
    wanted = reference.rotate(x, 256, Stream((4,), (5,)))
    assert all(same(cpu.rotate(y, 256, Stream((4,), (5,))), wanted) for y in scattered(x))
    with threads(3):
        assert both(x, 256, Stream((4,), (5,)))
        assert both(x, 1 << 14, Stream((4,), (5,)))
