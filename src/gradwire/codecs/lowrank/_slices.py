"""Tensors cut into slices, and put together again."""

from __future__ import annotations

import torch
from torch import Tensor

from gradwire.core.layout import Layout


def cut(x: Tensor, layout: Layout, length: int) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Slices, (rows, number, K), of the tensors that have any; what is left of each tensor, (rows, left)."""
    pieces = dict(zip(layout.names, layout.split(x), strict=True))
    whole = {name: piece.shape[1] // length * length for name, piece in pieces.items()}
    heads = {n: piece[:, : whole[n]].reshape(len(x), -1, length) for n, piece in pieces.items() if whole[n]}
    return heads, {name: piece[:, whole[name] :] for name, piece in pieces.items()}


def paste(heads: dict[str, Tensor], tails: dict[str, Tensor]) -> Tensor:
    """The flat units again, a row each."""
    parts = []
    for name, tail in tails.items():
        parts += [heads[name].flatten(1), tail] if name in heads else [tail]
    return torch.cat(parts, 1)
