"""From DDP's buckets to units of compression.

In mode ``"overlap"`` a bucket is a unit, reduced where it lies. In mode ``"after_backward"`` all tensors of a dtype are
one unit, in the model's order, whatever DDP's buckets are; a lossless codec keeps the buckets, so that its sums round
like plain DDP's. The units of a restored run hold until DDP rebuilds its buckets in this process, too: DDP starts each
process with other buckets than it ends up with, and a resumed run must not notice.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor
from torch._C._distributed_c10d import GradBucket

from gradwire.core.gradient import check_gradient
from gradwire.core.layout import Layout
from gradwire.session import Session

Plan = tuple[tuple[str, ...], ...]  # the parameters of each unit


@dataclass
class Bucket:
    """A bucket that DDP handed over in this step, and will read the result from."""

    buffer: Tensor
    layout: Layout
    future: torch.futures.Future[Tensor]

    def finish(self, _mean: Tensor | None = None) -> None:
        """The result is in the buffer: tell DDP, once."""
        if not self.future.done():
            self.future.set_result(self.buffer)


class Units:
    """The units of one step, as they become complete; and those of the last step, to be saved.

    Args:
        session: what reduces them.
        by_bucket: reduce each bucket as it comes, else everything at the end.
        named: name and shape of each parameter, by its id.
    """

    def __init__(self, session: Session, by_bucket: bool, named: Mapping[int, tuple[str, tuple[int, ...]]]) -> None:
        self.session, self.by_bucket = session, by_bucket
        self._named, self._shapes = named, dict(named.values())
        self.plan: Plan = ()
        self._restored: Plan | None = None
        self._first_bucket: tuple[str, ...] | None = None  # since a plan was restored
        self._layouts: dict[tuple[int, ...], Layout] = {}
        self._buckets: list[Bucket] = []
        self._where: dict[str, Bucket] = {}
        self._launched: list[tuple[str, ...]] = []

    @property
    def empty(self) -> bool:
        """Whether no bucket has come in this step."""
        return not self._buckets

    def layout(self, bucket: GradBucket) -> Layout:
        """The parameters of a bucket: the same object in every step."""
        key = tuple(map(id, bucket.parameters()))
        if key not in self._layouts:
            self._layouts[key] = Layout.of(self._named[i] for i in key)
        return self._layouts[key]

    def restore(self, plan: Plan) -> None:
        """Continue with the units of a saved run, if they are of this model."""
        self._first_bucket = None
        self._restored = plan if sorted(n for u in plan for n in u) == sorted(self._shapes) else None
        self.plan = self._restored or ()  # until a step is done these are saved again

    def take(self, bucket: GradBucket, last: bool) -> torch.futures.Future[Tensor]:
        """Take a bucket, the `last` one or not, and start the units that are complete by it.

        The future has the bucket's result. The backward pass waits for this function, and at each call of a bucket's
        methods it may have to wait for a lane's thread: they are few, and what lanes can do is left to them.
        """
        buffer, layout = bucket.buffer(), self.layout(bucket)
        check_gradient(layout.names[0], buffer)
        devices: list[int | str | torch.device] | None = [buffer.device] if buffer.device.type == "cuda" else None
        arrived = Bucket(buffer, layout, torch.futures.Future(devices=devices))
        self._buckets.append(arrived)
        self._where |= dict.fromkeys(layout.names, arrived)
        if self._restored is not None and bucket.index() == 0:
            self._outgrow(layout.names)
        ready = self._ready(last)
        for i, unit in enumerate(ready):
            self._launched.append(unit)
            self._reduce(unit, more=i + 1 < len(ready) or not last)
        if last:
            self.session.commit(partial(_finish, self._buckets))
        return arrived.future

    def end_step(self) -> None:
        """Wait for the session, so that state is settled, and make room for the next step.

        Memories could be written later, while training goes on. But while a lane captures a graph nobody may wait for
        the device, and while somebody else does no lane may allocate: lanes work in the backward pass only.
        """
        try:
            self.session.wait()
        finally:
            self.plan = tuple(self._launched)
            self._buckets, self._where, self._launched = [], {}, []

    def _outgrow(self, first: tuple[str, ...]) -> None:
        if self._first_bucket is None:
            self._first_bucket = first
        elif self._first_bucket != first:
            self._restored = None

    def _ready(self, last: bool) -> list[tuple[str, ...]]:
        """The units that are complete: those of a restored run, DDP's buckets, or all at once."""
        if not self.by_bucket:
            return self._by_dtype() if last else []
        if self._restored is not None:
            return [u for u in self._restored if u not in self._launched and all(n in self._where for n in u)]
        return [self._buckets[-1].layout.names]

    def _by_dtype(self) -> list[tuple[str, ...]]:
        groups: dict[torch.dtype, list[str]] = {}
        for name in self._shapes:
            if name in self._where:
                groups.setdefault(self._where[name].buffer.dtype, []).append(name)
        return [tuple(names) for names in groups.values()]

    def _reduce(self, unit: tuple[str, ...], more: bool) -> None:
        """Hand a unit to the session: a bucket where it lies, or tensors of several joined and put back."""
        home = self._where[unit[0]]
        if home.layout.names == unit:
            self.session.reduce(home.buffer, home.layout, home.buffer, home.finish, more)
            return
        layout = Layout.of((n, self._shapes[n]) for n in unit)
        pieces = {n: p for b in self._buckets for n, p in zip(b.layout.names, b.layout.split(b.buffer), strict=True)}
        places = [pieces[n] for n in unit]
        x = torch.cat(places)
        self.session.reduce(x, layout, x, lambda out: torch._foreach_copy_(places, list(layout.split(out))), more)


def _finish(buckets: list[Bucket]) -> None:
    for bucket in buckets:
        bucket.finish()
