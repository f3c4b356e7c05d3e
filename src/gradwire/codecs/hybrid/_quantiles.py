"""Buckets that hold equally many values, for each sign, and what they stand for: min((l + h)/2, 2l)."""

from __future__ import annotations

import torch
from torch import Tensor


def quantiles(values: Tensor, buckets: int) -> tuple[Tensor, Tensor, Tensor]:
    """Equally filled buckets of each sign of (rows, k) values; the first one for zeros, in rows that have any.

    Returns what the buckets stand for, (rows, 2·buckets), negative values first; which values are negative; and the
    bucket of each within its side, both (rows, k).
    """
    count, k = values.shape
    negative, magnitude = values < 0, values.abs()
    # negative values come first; on each side magnitudes order as their bit patterns do
    bits, order = (magnitude.view(torch.int32).long() - (negative.long() << 32)).sort(dim=1, stable=True)
    ordered = (bits & 0x7FFFFFFF).int().view(torch.float32)
    place = torch.empty_like(order).scatter_(1, order, torch.arange(k, device=values.device).expand(count, k))
    below, zeros = negative.sum(1, keepdim=True), (magnitude == 0).sum(1, keepdim=True)
    skipped = zeros.clamp(max=1)  # buckets
    first = torch.cat((torch.zeros_like(below), below + zeros), 1)
    sizes = torch.cat((below, k - below - zeros), 1)
    side = negative.logical_not().long()
    rank = place - first.gather(1, side)
    bucket = skipped + rank * (buckets - skipped) // sizes.gather(1, side).clamp(min=1)

    steps = torch.arange(buckets + 1, device=values.device) - skipped
    edges = -((-steps.unsqueeze(1) * sizes.unsqueeze(2)) // (buckets - skipped).unsqueeze(2)).clamp(max=0)
    last = edges[..., 1:] - 1  # of an empty bucket: the last one before it
    ends = torch.stack((torch.minimum(edges[..., :-1], last), last)) + first.unsqueeze(2)
    low, high = ordered.expand(2, count, k).gather(2, ends.clamp(0, k - 1).flatten(2))
    means = torch.minimum(low + (high - low) / 2, 2 * low).where(last.flatten(1) >= 0, 0.0)
    return means, negative, torch.where(magnitude == 0, 0, bucket)
