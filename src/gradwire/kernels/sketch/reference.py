"""Count-Sketch in plain torch."""

from __future__ import annotations

import torch
from torch import Tensor

from gradwire.core.random import Stream
from gradwire.kernels.random import words


def places(stream: Stream, numel: int, rows: int, columns: int, device: torch.device) -> Tensor:
    out = torch.empty((rows, numel), dtype=torch.int32, device=device)
    for j in range(rows):
        draws = words(Stream(stream.keys, (stream.offsets[0] + j * numel,)), (numel,), device)
        out[j] = ((draws >> 1) * columns >> 31 << 1) | (draws & 1)
    return out


def fold(x: Tensor, where: Tensor, columns: int) -> Tensor:
    table = x.new_zeros((where.shape[0], 2 * columns))
    for row, place in zip(table, where, strict=True):
        row.index_add_(0, place, x)
    sides = table.view(-1, columns, 2)
    return sides[..., 0] - sides[..., 1]


def row_estimates(table: Tensor, where: Tensor) -> Tensor:
    sides = torch.stack((table, -table), dim=2).flatten(1)
    return torch.stack([row.index_select(0, place) for row, place in zip(sides, where, strict=True)])


def estimate(table: Tensor, where: Tensor) -> Tensor:
    rows: list[Tensor] = list(row_estimates(table, where).unbind())
    while len(rows) > 1:  # the largest and the smallest go, until the middle one is left
        for i in range(len(rows) - 1):
            rows[i], rows[i + 1] = torch.minimum(rows[i], rows[i + 1]), torch.maximum(rows[i], rows[i + 1])
        rows.pop()
        for i in range(len(rows) - 1, 0, -1):
            rows[i - 1], rows[i] = torch.minimum(rows[i - 1], rows[i]), torch.maximum(rows[i - 1], rows[i])
        rows.pop(0)
    return rows[0]
