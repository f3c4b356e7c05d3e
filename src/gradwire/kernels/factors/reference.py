"""Small matrices in plain torch, batched by shape."""

from __future__ import annotations

from functools import lru_cache

import torch
from torch import Tensor

SHIFT = 1e-12  # of the trace of a Gram matrix


def pieces(flat: Tensor, shapes: tuple[tuple[int, int], ...]) -> list[Tensor]:
    """The matrices as views: (rows, height, width)."""
    rows, parts = flat.shape[0], torch.split(flat, [h * w for h, w in shapes], 1)
    return [p.view(rows, *shape) for p, shape in zip(parts, shapes, strict=True)]


@lru_cache(maxsize=256)
def _owners(shapes: tuple[tuple[int, int], ...], device: torch.device) -> Tensor:
    """The number of the matrix that each element belongs to. Kept: sending it makes the host wait."""
    sizes = torch.tensor([h * w for h, w in shapes])
    return torch.arange(len(shapes)).repeat_interleave(sizes).to(device)


def spread(values: Tensor, shapes: tuple[tuple[int, int], ...]) -> Tensor:
    """One value for each matrix, (rows, matrices), given to all of its elements."""
    return values[:, _owners(shapes, values.device)]


def unit(flat: Tensor, shapes: tuple[tuple[int, int], ...], instead: Tensor | None = None) -> tuple[Tensor, Tensor]:
    largest = torch.stack([m.abs().amax((1, 2)) for m in pieces(flat, shapes)], 1)
    by = torch.where(largest > 0, largest, largest + (largest == 0).to(largest.dtype))
    found = flat / spread(by, shapes)
    return found if instead is None else torch.where(spread(largest == 0, shapes), instead, found), largest


def orthonormal(flat: Tensor, shapes: tuple[tuple[int, int], ...]) -> Tensor:
    exact = [m.double() for m in pieces(flat, shapes)]
    for _ in range(2):
        grams = [m.mT @ m for m in exact]
        turns = list(grams)
        for rank in {g.shape[-1] for g in grams}:
            alike = [i for i, g in enumerate(grams) if g.shape[-1] == rank]
            gram = torch.stack([grams[i] for i in alike])
            trace = gram.diagonal(dim1=-2, dim2=-1).sum(-1)[..., None, None]
            one = torch.eye(rank, dtype=gram.dtype, device=gram.device)
            root = torch.linalg.cholesky_ex(gram + torch.where(trace == 0, 1.0, SHIFT * trace) * one).L
            inverse = torch.linalg.solve_triangular(root, one.expand_as(root), upper=False).mT
            for i, turn in zip(alike, inverse, strict=True):
                turns[i] = turn
        exact = [m @ turn for m, turn in zip(exact, turns, strict=True)]
    return torch.cat([m.flatten(1) for m in exact], 1).to(flat.dtype)


def regressed(flat: Tensor, shapes: tuple[tuple[int, int], ...], ridge: float, turned: bool) -> Tensor:
    found = [regress(f.mT, ridge).mT if turned else regress(f, ridge) for f in pieces(flat, shapes)]
    return torch.cat([f.flatten(1) for f in found], 1)


def regress(factors: Tensor, ridge: float) -> Tensor:
    """`regressed`, of (…, height, width)."""
    exact = factors.double()
    gram = exact.mT @ exact
    diagonal = gram.diagonal(dim1=-2, dim2=-1)
    average = diagonal.mean(-1)[..., None, None]
    penalty = torch.where(average == 0, 1.0, ridge * average) * torch.eye(gram.shape[-1], device=gram.device)
    root = torch.linalg.cholesky_ex(gram + penalty).L
    return torch.cholesky_solve(exact.mT, root).mT.to(factors.dtype)
