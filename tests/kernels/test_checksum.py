"""Checksums of rows: the compiled form is the plain one, and changes are seen."""

from __future__ import annotations

import pytest
import torch

from gradwire.kernels.backend import plain_torch
from gradwire.kernels.checksum import SUM_BYTES, sums


def rows(count, width, seed=0):
    return torch.randint(0, 256, (count, width), dtype=torch.uint8, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("width", [0, 1, 7, 8, 9, 64, 1001])
@pytest.mark.parametrize("count", [1, 3])
def test_compiled_sums_are_those_of_plain_torch(count, width):
    data = rows(count, width)
    for lengths in (None, torch.tensor([width, 0, width // 2])[:count]):
        with plain_torch():
            wanted = sums(data, lengths)
        assert wanted.view(torch.uint8).shape == (count, SUM_BYTES)
        assert torch.equal(sums(data, lengths), wanted)


def test_the_formula_by_hand():
    words = torch.tensor([[5, -3, 2**62]])
    wanted = [24 + 5 - 3 + 2**62, 5 - 6 + 3 * 2**62 - 2**64]  # the second one runs over
    assert sums(words.view(torch.uint8)).tolist() == [wanted]


def test_what_is_behind_a_rows_length_does_not_count():
    data = rows(1, 100)
    changed = torch.cat([data[:, :50], data[:, 50:] + 1], 1)
    assert torch.equal(sums(data, torch.tensor([50])), sums(changed, torch.tensor([50])))
    assert torch.equal(sums(data, torch.tensor([50])), sums(data[:, :50]))


def test_every_changed_bit_is_seen_and_words_that_changed_places():
    data = rows(1, 24)
    before = sums(data)
    for bit in range(8 * data.numel()):
        changed = data.clone()
        changed[0, bit // 8] ^= 1 << bit % 8
        assert not torch.equal(sums(changed), before)
    turned = data.view(1, 3, 8).flip(1).reshape(1, 24)
    assert not torch.equal(sums(turned), before)


def test_zeros_that_were_cut_off_are_seen():
    assert not torch.equal(sums(torch.zeros((1, 64), dtype=torch.uint8)), sums(torch.zeros((1, 56), dtype=torch.uint8)))
