"""What survives a step, keyed by parameter name.

DDP rebuilds its buckets after the first iteration, so nothing may be remembered by bucket. On the hot path state is
one tensor a unit all the same, a `Slot`: (rows, numel), a row for each worker of this process. When the layout of the
units changes, new slots are filled from what the old ones held, parameter by parameter. What all workers have alike is
kept by parameter, or, on the hot path, as a `Common`: a slot of one row.

A slot has two buffers. A step reads one and writes the other; `Transaction.commit` turns them round, once the whole
step is known to be finite on all workers. A step that a loss scaler will skip leaves everything as it was.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import TypeAlias

import torch
from torch import Tensor

from gradwire.core.contract import told
from gradwire.core.errors import CodecError
from gradwire.core.layout import Layout, Segment
from gradwire.core.slots import Common, Entry, Piece, Slot

First: TypeAlias = Callable[[Segment], Tensor]  # the matrix that a parameter has before any step


class Store:
    """Committed state of the workers of one process."""

    def __init__(self) -> None:
        self._alone: dict[str, dict[str, Entry]] = {}  # what all workers have alike: kind, parameter
        self._commons: dict[str, dict[Layout, Common]] = {}  # the same, many parameters in one
        self._slots: dict[str, dict[tuple[tuple[Layout, ...], int, type[Slot]], Slot]] = {}
        self._loose: dict[str, list[Piece]] = {}  # in no slot: just loaded, or left behind by another layout
        self._lock = threading.RLock()  # units are reduced side by side, in threads
        self.changes = 0  # of what is kept where; what slots hold does not count

    def replace(self, other: Store) -> None:
        """Keep what `other` keeps, and nothing else."""
        self._alone, self._commons, self._slots, self._loose = other._alone, other._commons, other._slots, other._loose
        self.changes += 1

    def forget_own(self) -> None:
        """Drop what the workers keep each for itself; what all have alike stays."""
        with self._lock:
            self._slots, self._loose = {}, {}
            self.changes += 1

    @property
    def named(self) -> dict[str, dict[str, Entry]]:
        """What all workers have alike: kind, parameter."""
        with self._lock:
            found = {kind: dict(kept) for kind, kept in self._alone.items() if kept}
            for kind, commons in self._commons.items():
                for common in commons.values():
                    found.setdefault(kind, {}).update({n: Entry(m) for n, m in common.matrices.items()})
            return found

    def alike(self, kind: str, name: str) -> Entry | None:
        """What all workers have alike for one parameter."""
        with self._lock:
            for common in self._commons.get(kind, {}).values():
                if common.shares_names({name}):
                    return Entry(common.matrices[name])
            return self._alone.get(kind, {}).get(name)

    def put(self, kind: str, name: str, entry: Entry | None) -> None:
        """Keep what all workers have alike for one parameter; None: keep nothing."""
        with self._lock:
            kept = self._parted(kind, {name})
            if entry is None:
                kept.pop(name, None)
            else:
                kept[name] = entry

    def common(self, kind: str, layout: Layout, device: torch.device, first: First) -> Common:
        """The matrices of all parameters of `layout`, whose shapes are theirs, in one.

        When it is first asked for, it is filled with what is kept for them, and with `first` where that is nothing or
        of another shape.
        """
        with self._lock:
            commons = self._commons.setdefault(kind, {})
            if layout not in commons:
                kept, common = self._parted(kind, set(layout.names)), Common(layout)
                common.turn(common.spare(device))
                for segment, matrix in zip(layout.segments, common.matrices.values(), strict=True):
                    entry = kept.pop(segment.name, None)
                    fits = entry is not None and entry.tensor.shape == segment.shape
                    matrix.copy_(entry.tensor if entry is not None and fits else first(segment))
                commons[layout] = common
                self.changes += 1
            return commons[layout]

    def _parted(self, kind: str, names: set[str]) -> dict[str, Entry]:
        """What is kept parameter by parameter, now that this holds for the parameters `names`."""
        kept, commons = self._alone.setdefault(kind, {}), self._commons.get(kind, {})
        for layout in [found for found, common in commons.items() if common.shares_names(names)]:
            kept.update({name: Entry(matrix) for name, matrix in commons.pop(layout).matrices.items()})
            self.changes += 1
        return kept

    def put_piece(self, kind: str, piece: Piece) -> None:
        """Keep a piece for the slot that will hold it."""
        self._loose.setdefault(kind, []).append(piece)
        self.changes += 1

    def drop(self, kind: str, piece: Piece) -> None:
        """Forget a piece that is in no slot."""
        self._loose[kind] = [p for p in self._loose.get(kind, []) if p is not piece]

    def pieces(self, kind: str) -> list[Piece]:
        """All that the workers keep of this kind, as views."""
        with self._lock:
            slots = self._slots.get(kind, {}).values()
            return [p for slot in slots for p in slot.pieces()] + self._loose.get(kind, [])

    def loose(self, kind: str) -> list[Piece]:
        """What is kept outside of all slots."""
        with self._lock:
            return list(self._loose.get(kind, []))

    @property
    def kinds(self) -> set[str]:
        """Of all that the workers keep each for itself."""
        return {kind for kind in [*self._slots, *self._loose] if self.holds(kind)}

    def holds(self, kind: str) -> bool:
        """Whether the workers keep anything of this kind."""
        with self._lock:
            slots = self._slots.get(kind, {}).values()
            return bool(self._loose.get(kind)) or any(s.current is not None and s.current.numel() > 0 for s in slots)

    def get(self, kind: str, name: str, row: int = 0) -> Entry | None:
        """What is kept for one parameter, by all workers alike or by the one of this row: the first piece of it."""
        own = (p.entry for p in self.pieces(kind) if (p.row, p.name) == (row, name))
        return self.alike(kind, name) or next(own, None)

    def slot(self, kind: str, layouts: Sequence[Layout], width: int, form: type[Slot] = Slot) -> Slot:
        """The slot of a unit, filled with what is kept for its elements when it is first asked for."""
        key = (tuple(layouts), width, form)
        with self._lock:
            slots = self._slots.setdefault(kind, {})
            if key not in slots:
                slots[key] = self._filled(kind, form(layouts, width))
                self.changes += 1
            return slots[key]

    def dissolve(self, kind: str, unit: Layout, keep: Slot | None = None) -> None:
        """Take what is kept for the tensors of `unit` out of all slots but `keep`."""
        with self._lock:
            slots = self._slots.get(kind, {})
            for key in [k for k, s in slots.items() if s is not keep and s.shares_names(set(unit.names))]:
                self._loose.setdefault(kind, []).extend(slots.pop(key).pieces())
                self.changes += 1

    def restrict(self, unit: Layout, mine: Layout) -> None:
        """Of the elements of `unit`, keep those in the pieces `mine` only: others are kept elsewhere."""
        own = {segment.name: segment for segment in mine.segments}
        self.changes += 1
        with self._lock:
            for kind in self.kinds:
                slots, kept = self._slots.get(kind, {}), []
                touched = [key for key, slot in slots.items() if slot.shares_names(set(unit.names))]
                for piece in [p for key in touched for p in slots.pop(key).pieces()] + self._loose.get(kind, []):
                    if piece.name not in unit.names:
                        kept.append(piece)
                    elif segment := own.get(piece.name):
                        low, high = max(piece.entry.start, segment.start), min(piece.entry.stop, segment.stop)
                        kept += [piece.cut(low, high)] if low < high else []
                self._loose[kind] = kept
            for kind in {*self._alone, *self._commons}:
                alike = self._parted(kind, set(unit.names))
                for name in set(unit.names) & alike.keys() - own.keys():
                    del alike[name]

    def _filled(self, kind: str, slot: Slot) -> Slot:
        """Move what other slots hold for the same elements; what is left of them becomes loose."""
        names = {name for layout in slot.layouts for name in layout.names}
        slots, loose = self._slots[kind], self._loose.get(kind, [])
        for key in [k for k, other in slots.items() if other.shares_names(names)]:
            loose = loose + list(slots.pop(key).pieces())
        wanted: dict[tuple[int, str], list[tuple[Segment, int]]] = {}  # pieces of a parameter, and where they lie
        for row, layout in enumerate(slot.layouts):
            for segment, offset in zip(layout.segments, layout.offsets, strict=True):
                wanted.setdefault((row, segment.name), []).append((segment, offset))
        left, filled = [], None
        for piece in loose:
            taken = piece.entry.start  # what comes before is in the slot, or left
            for segment, offset in sorted(wanted.get((piece.row, piece.name), []), key=lambda found: found[0].start):
                low, high = max(segment.start, taken), min(segment.stop, piece.entry.stop)
                if low >= high:
                    continue
                kept, first = piece.entry.between(low, high), offset + low - segment.start
                if filled is None:
                    filled = torch.zeros((len(slot.layouts), slot.width), device=kept.device)
                filled[piece.row, first : first + high - low] = kept
                left += [piece.cut(taken, low)] if taken < low else []
                taken = high
            if taken == piece.entry.start:  # none of it is wanted: it stays as it is
                left += [piece] if piece.entry.tensor.numel() else []
            elif taken < piece.entry.stop:
                left.append(piece.cut(taken, piece.entry.stop))
        if filled is not None:
            slot.hold(filled)
        self._loose[kind] = left
        return slot


class Transaction:
    """What outlives a step. Reads what was committed, collects what one unit writes in one step, applies it all or not.

    Args:
        store: what is committed.
        rows: workers of this process.

    Example:
        A codec that sends what has changed since the last step finds itself in ``ctx.state``:

        >>> import torch, gradwire
        >>> class Changes(gradwire.Codec):
        ...     name, family, paper = "changes", "baseline", "none"
        ...     traits = gradwire.Traits(combine=gradwire.Combine.ROUNDS)
        ...
        ...     def reduce(self, x, ctx):
        ...         last = ctx.state.flat("last", ctx.layout)  # each worker's own
        ...         ctx.state.put_flat("last", ctx.layout, x.clone())
        ...         change = x if last is None else x - last
        ...         mean = yield gradwire.Sum(change / ctx.workers)
        ...         return mean, None
        >>> cluster = gradwire.VirtualCluster(workers=2, codec=Changes())
        >>> _ = cluster.reduce({"w": [torch.tensor([1.0, 2.0]), torch.tensor([3.0, 2.0])]})
        >>> cluster.reduce({"w": [torch.tensor([1.0, 3.0]), torch.tensor([3.0, 3.0])]})["w"]
        tensor([0., 1.])
    """

    def __init__(self, store: Store, rows: int = 1) -> None:
        self.store, self.rows = store, rows
        self._pending: dict[Slot, Tensor] = {}
        self._named: dict[tuple[str, str], Entry | None] = {}
        self._repaid: list[tuple[str, Piece]] = []
        self._jobs: list[Callable[[], None]] = []
        self.slots_only = True  # nothing else was read or written

    # what all workers have alike, by parameter

    def get(self, kind: str, name: str) -> Tensor | None:
        """What is kept for a parameter, of any shape, by all workers alike; None where nothing is.

        Args:
            kind: a name of the codec's own for what it is.
            name: the parameter's.
        """
        self.slots_only = False
        entry = self.store.alike(kind, name)
        return None if entry is None else entry.tensor

    def put(self, kind: str, name: str, tensor: Tensor) -> None:
        """Keep it: the workers must compute the same tensor, from what was exchanged.

        Args:
            kind: a name of the codec's own for what it is.
            name: the parameter's.
            tensor: of any shape.
        """
        if not isinstance(tensor, Tensor):
            raise CodecError(
                f"gradwire: `ctx.state.put` keeps a tensor, so that it can be saved, got {told(tensor)} for {kind!r} "
                f"of {name!r}; write torch.tensor(...) of it"
            )
        self.slots_only = False
        self._named[kind, name] = Entry(tensor)

    def forget(self, kind: str, name: str) -> None:
        """Keep nothing any more."""
        self.slots_only = False
        self._named[kind, name] = None

    def common(self, kind: str, layout: Layout, device: torch.device, first: First) -> Common:
        """The same for all parameters of `layout`, in one: see `Store.common`. To be written to as a slot is."""
        return self.store.common(kind, layout, device, first)

    # what each worker has for itself, for a whole unit

    def slot(self, kind: str, layout: Layout, form: type[Slot] = Slot) -> Slot:
        """The workers' state of this kind for the elements of `layout`; `form` says how it is kept."""
        return self.store.slot(kind, (layout,) * self.rows, layout.numel, form)

    def flat(self, kind: str, layout: Layout) -> Tensor | None:
        """What the workers keep for the elements of `layout`, (rows, numel); None where nothing is kept.

        Args:
            kind: a name of the codec's own for what it is.
            layout: that of the unit, ``ctx.layout``.
        """
        return self.slot(kind, layout).current

    def put_flat(self, kind: str, layout: Layout, flat: Tensor) -> None:
        """Keep `flat`, (rows, numel).

        Args:
            kind: a name of the codec's own for what it is.
            layout: that of the unit, ``ctx.layout``.
            flat: a row for each worker of this process.
        """
        if not isinstance(flat, Tensor) or flat.shape != (self.rows, layout.numel):
            raise CodecError(
                f"gradwire: `ctx.state.put_flat` keeps a tensor of shape {(self.rows, layout.numel)}, a row for each "
                f"worker, got {told(flat)} for {kind!r}; for what all workers have alike use ctx.state.put"
            )
        self.write(self.slot(kind, layout), flat)

    def write(self, slot: Slot, pending: Tensor) -> Tensor:
        """Keep `pending`, (rows, width), in a slot; returns it."""
        self._pending[slot] = pending
        return pending

    def written(self, slot: Slot) -> Tensor | None:
        """What this step has written to a slot so far."""
        return self._pending.get(slot)

    def repaid(self, kind: str, piece: Piece) -> None:
        """A piece outside of all slots has gone into the gradient."""
        self.slots_only = False
        self._repaid.append((kind, piece))

    def then(self, job: Callable[[], None]) -> None:
        """Have something called if the step is good: for state that lies elsewhere, such as foreign objects'."""
        self.slots_only = False
        self._jobs.append(job)

    def turns(self) -> tuple[tuple[Slot, Tensor | None, Tensor], ...]:
        """The slots that were written, what they hold now, and what they will hold."""
        return tuple((slot, slot.current, pending) for slot, pending in self._pending.items())

    @property
    def kept_bytes(self) -> int:
        """What is kept of these parameters from step to step: two buffers of each slot, and matrices."""
        slots = sum(2 * pending.nbytes for pending in self._pending.values())
        return slots + sum(entry.tensor.nbytes for entry in self._named.values() if entry is not None)

    def again(self) -> Transaction:
        """Another one that writes the same slots: what was launched to fill them is launched again."""
        other = Transaction(self.store, self.rows)
        other._pending = dict(self._pending)
        return other

    def commit(self, finite: Tensor) -> None:
        """Make the writes visible if `finite` (a boolean scalar) holds, else drop them.

        On an accelerator slots are turned in any case: they hold by now what they shall hold, see `kernels.commit`.
        """
        if finite.device.type == "cpu" and not bool(finite):
            self.discard()
            return
        on_host = finite.device.type == "cpu"
        for (kind, name), entry in self._named.items():
            new = entry if on_host else _select(finite, self.store.alike(kind, name), entry)
            self.store.put(kind, name, new)
        for slot, pending in self._pending.items():
            slot.turn(pending)
        if self._repaid and bool(finite):  # in the rare step after units have changed, the host may wait
            for kind, piece in self._repaid:
                self.store.drop(kind, piece)
        if self._jobs and bool(finite):
            for job in self._jobs:
                job()
        self.discard()

    def discard(self) -> None:
        """Forget the writes."""
        self._pending.clear()
        self._named.clear()
        self._repaid.clear()
        self._jobs.clear()


def _select(finite: Tensor, old: Entry | None, new: Entry | None) -> Entry | None:
    """`new` where `finite` holds, else `old`, decided on the device."""
    if new is None:
        return old and Entry(torch.where(finite, old.tensor.new_zeros(()), old.tensor), old.start)
    if old is None or old.tensor.shape != new.tensor.shape:
        return Entry(torch.where(finite, new.tensor, new.tensor.new_zeros(())), new.start)
    return Entry(torch.where(finite, new.tensor, old.tensor), new.start)
