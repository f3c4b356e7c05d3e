"""Which parameter lies where in a flat buffer.

A unit of compression is one flat tensor (a DDP bucket, or everything at once). Its `Layout` lists the
parameters in it, in order, so that a codec can treat layers apart while the work stays fused.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from typing import NamedTuple

import torch
from torch import Tensor


@dataclass(frozen=True)
class Segment:
    """One parameter's place: its name and shape; or, with `start` > 0, a flat piece cut out of it."""

    name: str
    shape: tuple[int, ...]
    start: int = 0  # first element of the parameter that this piece holds

    @cached_property
    def numel(self) -> int:
        return math.prod(self.shape)

    @property
    def stop(self) -> int:
        return self.start + self.numel


@dataclass(frozen=True)
class Layout:
    """The segments of one flat buffer, in order, without gaps. A codec finds that of its unit in ``ctx.layout``.

    Args:
        segments: the parameters, each with its name and shape.

    Example:
        >>> layout = Layout.of([("weight", (3, 2)), ("bias", (3,))])
        >>> layout.names, layout.sizes, layout.offsets, layout.numel
        (('weight', 'bias'), (6, 3), (0, 6), 9)
        >>> weight, bias = layout.split(torch.arange(18.0).view(2, 9))  # two workers; pieces are views
        >>> weight.view(2, *layout.segments[0].shape)[1]
        tensor([[ 9., 10.],
                [11., 12.],
                [13., 14.]])
    """

    segments: tuple[Segment, ...]

    @classmethod
    def of(cls, named_shapes: Iterable[tuple[str, Iterable[int]]]) -> Layout:
        """Of parameters in this order.

        Args:
            named_shapes: name and shape of each.
        """
        return cls(tuple(Segment(name, tuple(shape)) for name, shape in named_shapes))

    @cached_property
    def sizes(self) -> tuple[int, ...]:
        return tuple(s.numel for s in self.segments)

    def __hash__(self) -> int:
        return self._hash  # layouts are keys on the hot path, and have many segments

    @cached_property
    def _hash(self) -> int:
        return int(self.id, 16)  # the same in every process, so that a layout may be sent to another

    @cached_property
    def numel(self) -> int:
        return sum(self.sizes)

    @cached_property
    def offsets(self) -> tuple[int, ...]:
        return tuple(accumulate(self.sizes, initial=0))[:-1]

    @cached_property
    def names(self) -> tuple[str, ...]:
        return tuple(s.name for s in self.segments)

    @cached_property
    def id(self) -> str:
        """Short and stable; names the unit in random keys. Shapes are implied by the names, pieces by their starts."""
        names = "\n".join(f"{s.name}\t{s.start}" if s.start else s.name for s in self.segments)
        return hashlib.blake2b(names.encode(), digest_size=8).hexdigest()

    def split(self, flat: Tensor) -> tuple[Tensor, ...]:
        """The flat pieces of `flat` (its last dimension), one a segment, as views.

        Args:
            flat: of any leading shape.
        """
        return torch.split(flat, list(self.sizes), dim=-1)

    def find(self, piece: Segment) -> slice:
        """Where `piece`, which was cut out of one of the segments, lies in the flat buffer."""
        at = self.names.index(piece.name)
        first = self.offsets[at] + piece.start - self.segments[at].start
        return slice(first, first + piece.numel)

    def partition(self, wanted: Callable[[Segment], bool]) -> tuple[Layout, Layout]:
        """The segments that are `wanted`, and the others."""
        chosen = tuple(s for s in self.segments if wanted(s))
        return Layout(chosen), Layout(tuple(s for s in self.segments if s not in chosen))

    def cut(self, low: int, high: int) -> Layout:
        """The pieces of segments that lie in the flat range [low, high)."""
        pieces = []
        for segment, offset in zip(self.segments, self.offsets, strict=True):
            first, last = max(low, offset), min(high, offset + segment.numel)
            if first < last:
                pieces.append(Segment(segment.name, (last - first,), segment.start + first - offset))
        return Layout(tuple(pieces))


class Split(NamedTuple):
    """A unit, what of it the codec gets, and what travels as it is."""

    whole: Layout
    picked: Layout
    rest: Layout
