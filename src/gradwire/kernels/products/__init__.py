"""Products of many matrices with thin factors, all matrices of a unit at once.

`see` shows the matrices of a gradient, where it lies. What it returns has `x`, the gradient with what error feedback
adds, (rows, numel), and

- `times(right)`: M Q of each matrix, from factors Qᵀ that all workers share;
- `transposed(left)`: Pᵀ M of each, from factors P that all workers share. It has the elements of Mᵀ P in the order of
  Qᵀ;
- `write(left, right, target)`: P Qᵀ of each, written where the matrices lie in `target`; returns whether all is finite.
  With `own`, the workers' own Qᵀ, it also takes P `own` off the error that feedback keeps.

Factors lie in flat rows, one behind the other: see `Matrices`. The back ends agree to rounding.
"""

from __future__ import annotations

from typing import Protocol

from torch import Tensor

from gradwire.core.window import Feedback, Flag, Window
from gradwire.kernels import backend
from gradwire.kernels.products import reference
from gradwire.kernels.products.matrices import Matrices, Shapes

__all__ = ["Matrices", "Seen", "Shapes", "see"]


class Seen(Protocol):
    """Matrices of a gradient; see above."""

    @property
    def x(self) -> Tensor: ...

    def times(self, right: Tensor) -> Tensor: ...

    def transposed(self, left: Tensor) -> Tensor: ...

    def write(self, left: Tensor, right: Tensor, target: Window, own: Tensor | None = None) -> Flag: ...


def see(source: Window, feedback: Feedback | None, matrices: Matrices) -> Seen:
    """The matrices of the gradient in `source`. With `feedback`, its `out` gets the compensated gradient."""
    return backend.run(reference.see, source, feedback, matrices)
