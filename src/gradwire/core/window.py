"""Where a unit's gradient lies, and what error feedback adds to it: what codecs read from and write to in place.

A `Window` shows some tensors of a buffer, a DDP bucket say, as one matrix of a row for each worker, without a copy. A
`Feedback` is what error feedback knows of them. The simple form of both is a few torch operations; the fast kernels
read and write the same memory in one pass.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TypeAlias

import torch
from torch import Tensor

from gradwire.core.layout import Layout

Spans = tuple[tuple[int, int], ...]  # first and last element of each run of neighbours
Flag: TypeAlias = Tensor  # a scalar: 0 where all that was written is finite, NaN otherwise


@dataclass(frozen=True, eq=False)
class Window:
    """Elements of a buffer, seen as (rows, numel).

    Args:
        buffer: (rows, total), a row for each worker of this process.
        spans: which columns, in order.
        scratch: the buffer may be overwritten.
        checked: whoever writes a mean here has to say whether it is finite.

    >>> seen = Window(torch.arange(6.0)[None], ((0, 2), (4, 6)))
    >>> seen.read()
    tensor([[0., 1., 4., 5.]])
    """

    buffer: Tensor
    spans: Spans
    scratch: bool = False
    checked: bool = True

    @classmethod
    def whole(cls, buffer: Tensor, *, scratch: bool = False) -> Window:
        """All of a buffer."""
        return cls(buffer, ((0, buffer.shape[1]),), scratch)

    @cached_property
    def numel(self) -> int:
        """Elements of a row."""
        return sum(last - first for first, last in self.spans)

    @property
    def rows(self) -> int:
        """Workers."""
        return self.buffer.shape[0]

    @property
    def parts(self) -> list[Tensor]:
        """The runs, as views of shape (rows, length)."""
        return [self.buffer[:, first:last] for first, last in self.spans]

    def at(self, first: int, last: int) -> Tensor:
        """The elements from `first` on, which lie in one run, as a view: (rows, last - first)."""
        asked = first
        for low, high in self.spans:
            if first < high - low:
                return self.buffer[:, low + first : low + last]
            first, last = first - (high - low), last - (high - low)
        raise IndexError(f"a window of {self.numel} elements ends before element {asked}")

    def read(self, dtype: torch.dtype = torch.float32) -> Tensor:
        """The elements as one tensor: a view where they lie together, else a copy. Not to be written to."""
        parts = self.parts
        x = parts[0] if len(parts) == 1 else torch.cat(parts, 1) if parts else self.buffer[:, :0]
        return x.to(dtype)

    def write_(self, values: Tensor) -> None:
        """Put `values`, (rows, numel) or (1, numel), where the elements lie."""
        at = 0
        for part in self.parts:
            source = values[:, at : at + part.shape[1]]
            if source.data_ptr() != part.data_ptr() or source.device.type == "meta":
                part.copy_(source)
            at += part.shape[1]


@dataclass(frozen=True, eq=False)
class Feedback:
    """What error feedback adds to a gradient, and where it keeps what is lost.

    Args:
        out: (rows, numel), where the new error goes.
        error: (rows, numel), what is kept; None: nothing yet.
        decay: what `error` is multiplied by.
        gain: what the gradient is multiplied by.
        momentum: (rows, numel), set to zero where a sparse codec sends something; None: nothing is.
    """

    out: Tensor
    error: Tensor | None = None
    decay: float | Tensor = 1.0
    gain: float = 1.0
    momentum: Tensor | None = None

    def compensated(self, source: Window) -> Tensor:
        """gain·x + decay·error, written to `out`."""
        at = 0
        for x in source.parts:
            place = slice(at, at + x.shape[1])
            out, error = self.out[:, place], None if self.error is None else self.error[:, place]
            x = x if self.gain == 1 else x.float() * self.gain
            if error is None:
                out.copy_(x)
            elif isinstance(self.decay, float) and self.decay == 1:
                torch.add(x, error, out=out)
            else:
                torch.mul(error, self.decay, out=out).add_(x)
            at = place.stop
        return self.out

    def keep(self, own: Tensor) -> None:
        """Take what was sent, (rows, numel), off the compensated gradient in `out`."""
        if self.momentum is not None:
            self.momentum.masked_fill_(own != 0, 0.0)
        self.out.sub_(own)

    def done(self) -> Feedback:
        """The same, for a gradient that is compensated already."""
        return replace(self, error=None, gain=1.0)


@dataclass(frozen=True, eq=False)
class Running(Feedback):
    """What is kept is the compensated gradient itself, a momentum say: nothing of what is sent is taken off."""

    def keep(self, own: Tensor) -> None:
        """Nothing is left to do."""


def spans(whole: Layout, part: Layout) -> Spans:
    """Where the segments of `part` lie in a buffer that has the layout `whole`; neighbours are one run."""
    found: list[tuple[int, int]] = []
    for segment in part.segments:
        place = whole.find(segment)
        if found and found[-1][1] == place.start:
            found[-1] = (found[-1][0], place.stop)
        else:
            found.append((place.start, place.stop))
    return tuple(found)


def padded(x: Tensor, numel: int) -> Tensor:
    """(rows, …) with zeros behind the end; no copy where there is nothing to add."""
    return torch.nn.functional.pad(x, (0, numel - x.shape[1])) if numel > x.shape[1] else x


def nonfinite_flag(x: Tensor) -> Flag:
    """0 where `x` is finite throughout, NaN otherwise: one read of it."""
    if not x.numel():
        return x.new_zeros(())
    low, high = torch.aminmax(x)  # NaN is both
    return low * 0 + high * 0


def total(flags: Sequence[Tensor], like: Tensor) -> Tensor:
    """0 where all flags are, else NaN."""
    return torch.stack([f.to(like.device, torch.float32) for f in flags]).sum() if flags else like.new_zeros(())
