"""Numbers in 8 bits: what rounding does to them, and what packing again does not."""

from __future__ import annotations

import pytest
import torch

from gradwire.core.packed import BLOCK, pack, packed_width, unpack

WIDTH = 1000  # not a multiple of a block


def packed(x, noise):
    return unpack(pack(x, noise, torch.empty((len(x), packed_width(x.shape[1])), dtype=torch.int8)), x.shape[1])


def numbers():
    """Two rows over many orders of magnitude, with a block of zeros."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(2, WIDTH, generator=generator) * torch.logspace(-10, 5, WIDTH)
    x[0, BLOCK : 2 * BLOCK] = 0
    return x, torch.rand(2, WIDTH, generator=generator)


def test_an_element_is_off_by_less_than_its_block_allows():
    x, noise = numbers()
    largest = torch.cat([b.abs().amax(1, keepdim=True).expand_as(b) for b in x.split(BLOCK, 1)], 1)
    assert bool(((packed(x, noise) - x).abs() <= largest / 63.5).all())
    assert bool(((packed(x, 0.5) - x).abs() <= largest / 127).all())


def test_packing_again_changes_nothing():
    x, noise = numbers()
    kept = packed(x, noise)
    for other in (0.0, 0.5, 0.999, noise.flip(1)):
        assert torch.equal(packed(kept, other), kept)


@pytest.mark.parametrize("value", [3.4e38, 127.0, 128.0, 1e-30, 0.0])
def test_extremes_stay_finite_and_close(value):
    x = torch.tensor([[value, -value / 3, 0.0]])
    torch.testing.assert_close(packed(x, 0.5), x, rtol=0, atol=value / 100)


def test_random_rounding_keeps_what_nearest_would_drop():
    """Beside an error of 1, a gain of a thousandth is less than half a step: nearest never keeps any of it."""
    gain = torch.full((1, BLOCK), 1e-3)
    gain[0, 0] = 0.0
    generator = torch.Generator().manual_seed(0)
    random, nearest = (torch.zeros(1, BLOCK).index_fill(1, torch.tensor(0), 1.0) for _ in range(2))
    for _ in range(500):
        random = packed(random + gain, torch.rand(1, BLOCK, generator=generator))
        nearest = packed(nearest + gain, 0.5)
    assert float(nearest[0, 1:].abs().sum()) == 0.0
    assert float(random[0, 1:].mean()) == pytest.approx(0.5, rel=0.1)
