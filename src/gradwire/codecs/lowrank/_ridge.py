"""Ridge regression of many small systems at once."""

from __future__ import annotations

import torch
from torch import Tensor

from gradwire.kernels.factors import Shapes
from gradwire.kernels.factors.reference import pieces


def regressed(flat: Tensor, shapes: Shapes, ridge: float, turned: bool = False) -> Tensor:
    """`regress` of each matrix in a flat row; `turned` ones lie there as their transpose."""
    found = [regress(f.mT, ridge).mT if turned else regress(f, ridge) for f in pieces(flat, shapes)]
    return torch.cat([f.flatten(1) for f in found], 1)


def regress(factors: Tensor, ridge: float) -> Tensor:
    """F (FᵀF + λI)⁻¹ for each matrix F, λ = `ridge` times its mean eigenvalue; zero for a zero matrix."""
    exact = factors.double()
    gram = exact.mT @ exact
    diagonal = gram.diagonal(dim1=-2, dim2=-1)
    average = diagonal.mean(-1)[..., None, None]
    penalty = torch.where(average == 0, 1.0, ridge * average) * torch.eye(gram.shape[-1], device=gram.device)
    root = torch.linalg.cholesky_ex(gram + penalty).L
    return torch.cholesky_solve(exact.mT, root).mT.to(factors.dtype)
