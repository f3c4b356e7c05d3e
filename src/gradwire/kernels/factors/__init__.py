"""Many small matrices in one flat row: scaled to a largest magnitude of 1, with orthonormal columns, or regressed.

`shapes` has (height, width) of each matrix. They lie one behind the other, row by row, in each row of a tensor
(rows, n).
"""

from __future__ import annotations

from torch import Tensor

from gradwire.kernels import backend
from gradwire.kernels.factors import reference

Shapes = tuple[tuple[int, int], ...]


def unit(flat: Tensor, shapes: Shapes, instead: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Each matrix divided by its largest magnitude, and those magnitudes, (rows, matrices).

    Zero matrices stay zero, or become those of `instead`, (1, n).
    """
    return backend.run(reference.unit, flat, shapes, instead)


def orthonormal(flat: Tensor, shapes: Shapes) -> Tensor:
    """Matrices with the same span and orthonormal columns; zero where there is nothing to span.

    By Cholesky factors of their Gram matrices, twice, in float64: a QR decomposition would take one matrix after the
    other. The shift keeps the factor in reach for columns that depend on each other; the second time mends what it has
    bent. Back ends agree to rounding of float32.
    """
    return backend.run(reference.orthonormal, flat, shapes)


def regressed(flat: Tensor, shapes: Shapes, ridge: float, turned: bool = False) -> Tensor:
    """F (FᵀF + λI)⁻¹ for each matrix F, λ = `ridge` times the mean eigenvalue of FᵀF; zero for a zero matrix.

    `turned` ones lie there as their transpose, of which `shapes` tells. In float64; back ends agree to rounding.
    """
    return backend.run(reference.regressed, flat, shapes, ridge, turned)
