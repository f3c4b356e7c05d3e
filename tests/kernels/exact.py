"""Inputs, and equality of bits, for tests of compiled kernels against plain torch."""

from __future__ import annotations

from contextlib import contextmanager
from unittest.mock import patch

import torch

from gradwire.kernels import parallel


def same(one, other):
    """Equal bit for bit: −0.0 is not 0.0. Only NaN is as good as NaN: which of two survives a sum is not defined."""
    if isinstance(one, tuple):
        return len(one) == len(other) and all(same(a, b) for a, b in zip(one, other, strict=True))
    if one is None or other is None:
        return one is other
    if one.dtype != other.dtype or one.shape != other.shape:
        return False
    if not one.is_floating_point():
        return bool(one.equal(other))
    nan = one.isnan()
    return bool(nan.equal(other.isnan()) and one[~nan].view(torch.int32).equal(other[~nan].view(torch.int32)))


def normal(rows, numel, seed=0):
    return torch.randn(rows, numel, generator=torch.Generator().manual_seed(seed))


def awkward(rows, numel, seed=0):
    """Magnitudes from subnormal to huge, zeros of both signs; infinities and NaN in the first two rows of three."""
    draw = torch.Generator().manual_seed(seed)
    x = torch.randn(rows, numel, generator=draw) * torch.exp(20 * torch.randn(rows, numel, generator=draw))
    kind = torch.randint(0, 50, (rows, numel), generator=draw)
    for i, special in enumerate((0.0, -0.0, 1e-42, -3e38)):
        x[kind == i] = special
    bad = torch.randint(-(2**31), 2**31, (rows, numel), generator=draw).to(torch.int32).view(torch.float32)  # any bits
    spoilt = (kind == 9) & (torch.arange(rows) % 3 < 2).unsqueeze(1)
    return torch.where(spoilt, bad, x)


def scattered(x):
    """The same values as a tensor with gaps between its rows, and one with gaps between its elements."""
    wide = torch.zeros(x.shape[0], x.shape[1] + 3, dtype=x.dtype)
    wide[:, 1:-2] = x
    return [wide[:, 1:-2], x.t().contiguous().t(), torch.stack((x, x), dim=2)[..., 1]]


@contextmanager
def threads(count):
    """So many threads, however small the work."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        with patch.object(parallel, "LARGE", 1):
            yield
    finally:
        torch.set_num_threads(before)
