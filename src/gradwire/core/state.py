"""What survives a step, keyed by parameter name.

DDP rebuilds its buckets after the first iteration, so nothing may be remembered by bucket. The store
holds one tensor per (kind, parameter name). On the hot path these are read and written as one flat tensor per
unit: the parameters' tensors are views into it, and it is put together anew only when the layout has changed.

Writes go through a `Transaction` and become visible at `commit`, once the whole step is known to be finite
on all workers: a step that a loss scaler will skip leaves everything as it was.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from gradwire.core.layout import Layout, Segment


@dataclass(frozen=True)
class Entry:
    """A tensor kept for one parameter, or, for flat kinds, the piece of it that begins at `start`."""

    tensor: Tensor
    start: int = 0

    @property
    def stop(self) -> int:
        return self.start + self.tensor.numel()

    def between(self, low: int, high: int) -> Tensor:
        """The kept elements `low` to `high` of the parameter."""
        return self.tensor.reshape(-1)[low - self.start : high - self.start]


class Store:
    """Committed state of one worker."""

    def __init__(self) -> None:
        self.entries: dict[str, dict[str, Entry]] = {}
        self._flats: dict[tuple[str, Layout], Tensor] = {}

    def get(self, kind: str, name: str) -> Entry | None:
        """What is kept for one parameter."""
        return self.entries.get(kind, {}).get(name)

    def put(self, kind: str, name: str, entry: Entry | None) -> None:
        """Keep `entry` for one parameter; None forgets it."""
        self._forget_flats(kind, {name})
        if entry is None:
            self.entries.get(kind, {}).pop(name, None)
        else:
            self.entries.setdefault(kind, {})[name] = entry

    def flat(self, kind: str, layout: Layout) -> Tensor | None:
        """All that is kept for the segments of `layout`, as one flat tensor; None where nothing is."""
        if (kind, layout) in self._flats:
            return self._flats[kind, layout]
        kept = [self.get(kind, name) for name in layout.names]
        like = next((e.tensor for e in kept if e is not None), None)
        if like is None:
            return None
        flat = like.new_zeros(layout.numel)
        for segment, piece, entry in zip(layout.segments, layout.split(flat), kept, strict=True):
            if entry is not None:
                low, high = max(segment.start, entry.start), min(segment.stop, entry.stop)
                if low < high:
                    piece[low - segment.start : high - segment.start].copy_(entry.between(low, high))
        return flat

    def put_flat(self, kind: str, layout: Layout, flat: Tensor) -> None:
        """Keep `flat`; its pieces become the parameters' tensors."""
        self._forget_flats(kind, set(layout.names))
        self._flats[kind, layout] = flat
        entries = self.entries.setdefault(kind, {})
        for segment, piece in zip(layout.segments, layout.split(flat), strict=True):
            entries[segment.name] = Entry(piece, segment.start)

    def outside(self, kind: str, unit: Layout, held: Layout) -> list[tuple[Segment, Tensor]]:
        """What is kept for the elements of `unit` but lies outside the pieces `held`: (where, what)."""
        pieces = {s.name: s for s in held.segments}
        left = []
        for segment in unit.segments:
            entry = self.get(kind, segment.name)
            if entry is None:
                continue
            first, last = max(entry.start, segment.start), min(entry.stop, segment.stop)
            piece = pieces.get(segment.name, Segment(segment.name, (0,), last))
            for low, high in ((first, min(last, piece.start)), (max(first, piece.stop), last)):
                if low < high:
                    left.append((Segment(segment.name, (high - low,), low), entry.between(low, high)))
        return left

    def _forget_flats(self, kind: str, names: set[str]) -> None:
        for key in [k for k in self._flats if k[0] == kind and not names.isdisjoint(k[1].names)]:
            del self._flats[key]


class Transaction:
    """Reads what was committed, collects what a step writes, applies it all or not at all."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self._flats: dict[tuple[str, Layout], Tensor] = {}
        self._entries: dict[tuple[str, str], Entry | None] = {}

    def get(self, kind: str, name: str) -> Tensor | None:
        entry = self.store.get(kind, name)
        return None if entry is None else entry.tensor

    def flat(self, kind: str, layout: Layout) -> Tensor | None:
        return self.store.flat(kind, layout)

    def put(self, kind: str, name: str, tensor: Tensor) -> None:
        self._entries[kind, name] = Entry(tensor)

    def put_flat(self, kind: str, layout: Layout, flat: Tensor) -> None:
        self._flats[kind, layout] = flat

    def written(self, kind: str, layout: Layout) -> Tensor:
        """What this step has written under `kind` so far."""
        return self._flats[kind, layout]

    def wrote(self, kind: str, layout: Layout) -> bool:
        """Whether this step has written under `kind`."""
        return (kind, layout) in self._flats

    def forget(self, kind: str, name: str) -> None:
        self._entries[kind, name] = None

    def commit(self, finite: Tensor) -> None:
        """Make the writes visible where `finite` (a boolean scalar) holds, else drop them.

        On an accelerator the decision is taken there, by a select, so that the host never waits for it.
        """
        on_host = finite.device.type == "cpu"
        if not on_host or bool(finite):
            for (kind, name), entry in self._entries.items():
                self.store.put(kind, name, entry if on_host else self._select(finite, kind, name, entry))
            for (kind, layout), flat in self._flats.items():
                old = None if on_host else self.store.flat(kind, layout)
                if not on_host:
                    flat = torch.where(finite, flat, flat.new_zeros(()) if old is None else old)
                self.store.put_flat(kind, layout, flat)
        self.drop()

    def drop(self) -> None:
        """Forget the writes."""
        self._flats.clear()
        self._entries.clear()

    def _select(self, finite: Tensor, kind: str, name: str, entry: Entry | None) -> Entry | None:
        old = self.store.get(kind, name)
        if entry is None:
            return old and Entry(torch.where(finite, old.tensor.new_zeros(()), old.tensor), old.start)
        if old is None or old.tensor.shape != entry.tensor.shape:
            return Entry(torch.where(finite, entry.tensor, entry.tensor.new_zeros(())), entry.start)
        return Entry(torch.where(finite, entry.tensor, old.tensor), entry.start)
