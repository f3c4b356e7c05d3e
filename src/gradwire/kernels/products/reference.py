"""Products with thin factors in plain torch: many small matrices of one shape at once, large ones each alone.

A large matrix is read and written where it lies. Small ones are copied side by side: a call costs more than that.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import groupby

import torch
from torch import Tensor

from gradwire.core.window import Feedback, Flag, Window, nonfinite_flag
from gradwire.kernels.products.matrices import Matrices, Shapes

SMALL = 1 << 16  # elements of a matrix that is copied beside others of its shape


@dataclass(frozen=True)
class Stack:
    """Matrices of one shape that are treated at once."""

    places: tuple[int, ...]
    height: int
    width: int

    def views(self, at: Callable[[int, int], Tensor]) -> list[Tensor]:
        """The matrices where they lie, (rows, height, width); `at` gives the elements from one to another."""
        pieces = [at(place, place + self.height * self.width) for place in self.places]
        return [p.as_strided((p.shape[0], self.height, self.width), (p.stride(0), self.width, 1)) for p in pieces]

    def of(self, flat: Tensor) -> Tensor:
        """(rows, matrices, height, width): a copy of small ones, a view of a large one."""
        seen = self.views(lambda first, last: flat[:, first:last])
        return seen[0][:, None] if len(seen) == 1 else torch.stack(seen, 1)


@lru_cache(maxsize=4096)
def stacks_of(matrices: Matrices) -> tuple[Stack, ...]:
    """The stacks, in the order of the matrices."""
    found = []
    for (height, width), members in groupby(
        zip(matrices.places, matrices.shapes, matrices.ranks, strict=True), key=lambda m: m[1]
    ):
        places = tuple(place for place, _, _ in members)
        small = height * width <= SMALL
        found += [Stack(p, height, width) for p in ([places] if small else [(place,) for place in places])]
    return tuple(found)


@dataclass
class Stacked:
    """The matrices of a gradient, (rows, matrices, height, width) a stack."""

    x: Tensor
    feedback: Feedback | None
    matrices: Matrices

    def __post_init__(self) -> None:
        self.stacks = stacks_of(self.matrices)
        self._seen = [stack.of(self.x) for stack in self.stacks]

    def _factors(self, flat: Tensor, shapes: Shapes) -> list[Tensor]:
        """Factors of the stacks, (rows, matrices, …), as views."""
        groups, at = [], 0
        for stack in self.stacks:
            groups.append((len(stack.places), *shapes[at]))
            at += len(stack.places)
        parts = torch.split(flat, [k * h * w for k, h, w in groups], 1)
        return [part.view(flat.shape[0], *group) for part, group in zip(parts, groups, strict=True)]

    def times(self, right: Tensor) -> Tensor:
        factors = self._factors(right, self.matrices.right)
        return self._joined([m @ q.mT for m, q in zip(self._seen, factors, strict=True)])

    def transposed(self, left: Tensor) -> Tensor:
        # Mᵀ P has the same elements and takes four times as long on a CPU
        factors = self._factors(left, self.matrices.left)
        return self._joined([p.mT @ m for m, p in zip(self._seen, factors, strict=True)])

    def _joined(self, found: Sequence[Tensor]) -> Tensor:
        return torch.cat([f.flatten(1) for f in found], 1) if found else self.x[:, :0]

    def write(self, left: Tensor, right: Tensor, target: Window, own: Tensor | None = None) -> Flag:
        if own is not None:
            self._keep(left, own)
        for stack, p, q in zip(self.stacks, *self._both(left, right), strict=True):
            outs = stack.views(target.at)
            if len(outs) == 1 and outs[0].dtype == torch.float32:
                torch.bmm(p[:, 0].expand(len(outs[0]), -1, -1), q[:, 0], out=outs[0])
            else:
                torch._foreach_copy_(outs, list((p @ q).unbind(1)))
        return nonfinite_flag(left) + nonfinite_flag(right)

    def _keep(self, left: Tensor, own: Tensor) -> None:
        assert self.feedback is not None
        error = self.feedback.out
        for stack, p, q in zip(self.stacks, *self._both(left, own), strict=True):
            errors = stack.views(lambda first, last: error[:, first:last])
            if len(errors) == 1:
                errors[0].baddbmm_(p[:, 0].expand(len(error), -1, -1), q[:, 0], alpha=-1)
            else:
                torch._foreach_sub_(errors, list((p @ q).unbind(1)))

    def _both(self, left: Tensor, right: Tensor) -> tuple[list[Tensor], list[Tensor]]:
        return self._factors(left, self.matrices.left), self._factors(right, self.matrices.right)


def see(source: Window, feedback: Feedback | None, matrices: Matrices) -> Stacked:
    x = source.read() if feedback is None else feedback.compensated(source)
    return Stacked(x, feedback, matrices)
