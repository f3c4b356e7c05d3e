"""Which matrices lie in a flat row, and where."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

Shapes = tuple[tuple[int, int], ...]  # (height, width) of each


@dataclass(frozen=True)
class Matrices:
    """Matrices M of a flat row, row by row, each to be factored as P Qᵀ.

    Small ones come first, and those of one shape follow each other.

    Args:
        places: the first element of each.
        shapes: (height, width) of each.
        ranks: columns of their factors.
        between: (first, last) element of what lies there beside them, which is not factored.
    """

    places: tuple[int, ...]
    shapes: Shapes
    ranks: tuple[int, ...]
    between: tuple[tuple[int, int], ...] = ()

    @cached_property
    def left(self) -> Shapes:
        """(height, rank) of each P."""
        return tuple((h, r) for (h, _), r in zip(self.shapes, self.ranks, strict=True))

    @cached_property
    def right(self) -> Shapes:
        """(rank, width) of each Qᵀ."""
        return tuple((r, w) for (_, w), r in zip(self.shapes, self.ranks, strict=True))

    def parted(self, most: int) -> tuple[Matrices, Matrices]:
        """Those of up to `most` elements, which come first, and the others; each with all else between them."""
        sizes = [height * width for height, width in self.shapes]
        cut = next((i for i, size in enumerate(sizes) if size > most), len(sizes))
        if any(size <= most for size in sizes[cut:]):
            raise ValueError(f"matrices of up to {most} elements come first, got {sizes}")
        ends = [(place, place + size) for place, size in zip(self.places, sizes, strict=True)]
        parts = ((slice(0, cut), ends[cut:]), (slice(cut, None), ends[:cut]))
        small, large = (
            Matrices(self.places[p], self.shapes[p], self.ranks[p], (*self.between, *others)) for p, others in parts
        )
        return small, large
