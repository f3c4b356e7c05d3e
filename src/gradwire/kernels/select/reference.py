"""Selection in plain torch."""

from __future__ import annotations

import torch
from torch import Tensor


def top(x: Tensor, k: int) -> Tensor:
    numel = x.shape[1]
    # magnitudes order as their bit patterns do, all NaN count as one; the index below makes every key different
    magnitude = x.contiguous().view(torch.int32).bitwise_and(0x7FFFFFFF).clamp_(max=0x7F800001).long()
    keys = (magnitude << 32) + torch.arange(numel - 1, -1, -1, device=x.device)
    return keys.topk(k, dim=1, sorted=False).indices.sort(dim=1).values


def above(x: Tensor, threshold: Tensor) -> tuple[Tensor, Tensor]:
    chosen = (x.abs() <= threshold.unsqueeze(1)).logical_not_()
    counts = chosen.sum(1)
    order = chosen.to(torch.uint8).sort(dim=1, descending=True, stable=True).indices
    width = int(counts.max()) if counts.numel() else 0
    kept = order[:, :width]
    inside = torch.arange(width, device=x.device) < counts.unsqueeze(1)
    return torch.where(inside, kept, 0), counts.cpu()


def count_above(x: Tensor, thresholds: Tensor) -> Tensor:
    magnitude = x.abs()
    counts = torch.zeros_like(thresholds, dtype=torch.int64)
    for i in range(thresholds.shape[1]):
        counts[:, i] = (magnitude >= thresholds[:, i : i + 1]).sum(1)
    return counts
