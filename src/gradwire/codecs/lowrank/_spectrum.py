"""Matrices as sums of atoms u vᵀ, with which probability to keep each, and their sums from payloads."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from gradwire.codecs.lowrank._matrices import Batch, unit
from gradwire.core.exchange import Payload
from gradwire.kernels import rows
from gradwire.kernels.bitpack import packed_bytes, unpack


def atoms(matrices: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Short sides u, orthonormal, (matrices, k, k); long sides, (matrices, k, l); and the scale c: M = c Σ u longᵀ."""
    wide = matrices if matrices.shape[1] <= matrices.shape[2] else matrices.mT
    scaled = unit(wide).nan_to_num(0.0)
    short = torch.linalg.eigh(scaled @ scaled.mT).eigenvectors.mT
    return short, short @ scaled, wide.abs().amax((1, 2))


def probabilities(strengths: Tensor, budget: float) -> Tensor:
    """p for each row of singular values, in any order: proportional to them, at most 1, with sum `budget`."""
    ordered, order = strengths.double().sort(dim=1, descending=True)
    tails = ordered.flip(1).cumsum(1).flip(1)
    left = budget - torch.arange(ordered.shape[1], device=ordered.device, dtype=ordered.dtype)
    sure = ((left * ordered >= tails) & (ordered > 0)).cumprod(1)
    number = sure.sum(1, keepdim=True)
    tail = torch.cat([tails, torch.zeros_like(tails[:, :1])], 1).gather(1, number)
    shared = (budget - number) * ordered / torch.where(tail > 0, tail, 1.0)
    p = torch.where(sure > 0, 1.0, shared.clamp(max=1.0))
    return torch.zeros_like(p).scatter(1, order, p).to(strengths.dtype)


def count_width(batches: Sequence[Batch]) -> int:
    """Bits of the number of atoms."""
    return max(min(b.height, b.width) for b in batches).bit_length()


def most_bytes(batches: Sequence[Batch]) -> int:
    """Of a row: all atoms of all matrices."""
    head = packed_bytes(sum(len(b.members) for b in batches), count_width(batches))
    return head + sum(4 * len(b.members) * min(b.height, b.width) * (b.height + b.width) for b in batches)


def summed(payload: Payload, batches: Sequence[Batch]) -> list[Tensor]:
    """The matrices of each batch, (members, height, width), summed over the rows of the payload."""
    number, width = sum(len(b.members) for b in batches), count_width(batches)
    head = packed_bytes(number, width)
    found: list[tuple[list[Tensor], list[Tensor]]] = [([], []) for _ in range(number)]  # of each matrix, from all rows
    for row, counts in enumerate(unpack(payload.data[:, :head], width, number).tolist()):
        start, first = head, 0
        for b in batches:
            mine = counts[first : first + len(b.members)]
            for side, length in enumerate(sorted((b.height, b.width))):
                values, start = rows.take(payload.data[row : row + 1], start, sum(mine) * length, torch.float32)
                for m, part in enumerate(torch.split(values.view(-1, length), mine)):
                    found[first + m][side].append(part)
            first += len(b.members)
    products = iter([torch.cat(short).mT @ torch.cat(long) for short, long in found])
    stacks = [torch.stack([next(products) for _ in b.members]) for b in batches]
    return [s if b.height <= b.width else s.mT for s, b in zip(stacks, batches, strict=True)]
