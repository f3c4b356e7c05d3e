"""What is kept of the parameters of a unit, in one tensor: a `Slot`, and how it is seen parameter by parameter.

A slot has two buffers. A step reads one and writes the other, and turns them round when it is committed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from gradwire.core.layout import Layout
from gradwire.core.packed import pack, packed_width, unpack


@dataclass(frozen=True, eq=False)
class Entry:
    """What one worker keeps for one parameter, or, for flat kinds, for the piece of it that begins at `start`."""

    tensor: Tensor
    start: int = 0

    @property
    def stop(self) -> int:
        return self.start + self.tensor.numel()

    def between(self, low: int, high: int) -> Tensor:
        """The kept elements `low` to `high` of the parameter."""
        return self.tensor.reshape(-1)[low - self.start : high - self.start]


@dataclass(frozen=True, eq=False)
class Piece:
    """An entry, and whose it is: which row of this process, and which parameter."""

    row: int
    name: str
    entry: Entry

    def cut(self, low: int, high: int) -> Piece:
        """The part of it from element `low` of the parameter to `high`."""
        return Piece(self.row, self.name, Entry(self.entry.between(low, high), low))


class Slot:
    """One kind of state of one unit: a row for each worker, with a layout of its own, and a spare of the same size."""

    def __init__(self, layouts: Sequence[Layout], width: int) -> None:
        self.layouts = tuple(layouts)
        self.width = width
        self.current: Tensor | None = None
        self._spare: Tensor | None = None

    def spare(self, device: torch.device) -> Tensor:
        """Where the next state may be written: (rows, width), with old numbers in it, zeros behind a row's end."""
        if self._spare is None:
            self._spare = torch.zeros((len(self.layouts), self.width), device=device)
        return self._spare

    def is_spare(self, tensor: Tensor) -> bool:
        """Whether that is where the next state may be written."""
        return self._spare is tensor

    def turn(self, pending: Tensor) -> None:
        """`pending`, the spare or another tensor like it, becomes what is kept."""
        self.current, self._spare = pending, self.current

    @property
    def values(self) -> Tensor | None:
        """What is kept, as numbers: (rows, width); None: nothing yet."""
        return self.current

    def hold(self, values: Tensor) -> None:
        """Keep these numbers from now on."""
        self.turn(values)

    def pieces(self) -> Iterator[Piece]:
        """What is kept, by row and parameter, as views."""
        values = self.values
        if values is None:
            return
        for row, layout in enumerate(self.layouts):
            kept = values[row, : layout.numel]
            for segment, piece in zip(layout.segments, layout.split(kept), strict=True):
                yield Piece(row, segment.name, Entry(piece, segment.start))

    def shares_names(self, names: set[str]) -> bool:
        return any(not names.isdisjoint(layout.names) for layout in self.layouts)


class PackedSlot(Slot):
    """The same in a quarter of the room, 8 bits for an element: see `core.packed`. Pieces are copies."""

    def spare(self, device: torch.device) -> Tensor:
        """Where the next state may be packed to: (rows, packed width) of int8."""
        if self._spare is None:
            self._spare = torch.zeros((len(self.layouts), packed_width(self.width)), dtype=torch.int8, device=device)
        return self._spare

    @property
    def values(self) -> Tensor | None:
        """What is kept, unpacked."""
        return None if self.current is None else unpack(self.current, self.width)

    def hold(self, values: Tensor) -> None:
        """Keep these numbers from now on, each rounded to the nearest that can be kept."""
        self.turn(pack(values, 0.5, self.spare(values.device)))


class Common(Slot):
    """Matrices that all workers have alike, of one kind and unit: one row, in which they lie column by column.

    A matrix moves as a whole: one of another shape does not take its place.
    """

    def __init__(self, layout: Layout) -> None:
        super().__init__((layout,), layout.numel)

    @property
    def matrices(self) -> dict[str, Tensor]:
        """By parameter, as views."""
        if self.current is None:
            return {}
        (layout,) = self.layouts
        pieces = zip(layout.segments, layout.split(self.current[0]), strict=True)
        return {s.name: piece.view(s.shape[::-1]).mT for s, piece in pieces}
