"""What a recording of launches must know, so that they can be repeated in other steps: see `gradwire.graphs`.

While a thread records, kernels find the keys of random streams in one tensor on the device, which is filled anew before
each repetition; and all tensors that launches read and that were there before are kept alive.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from gradwire.core.random import Stream

ROOM = 4096  # keys and offsets of all streams of a unit
_local = threading.local()


class NotRepeatable(Exception):
    """What was launched depends on the step in a way that a repetition cannot follow."""


def recording() -> Recording | None:
    """What this thread records into; None: nothing."""
    found: Recording | None = getattr(_local, "recording", None)
    return found


def once(what: str) -> None:
    """Say that what comes now is right for this step only."""
    if recording() is not None:
        raise NotRepeatable(what)


class Recording(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Inside, this thread's launches are recorded."""

    def __init__(self, device: torch.device) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.numbers = torch.zeros(ROOM, dtype=torch.int64, device=device)
        self.held: dict[int, Tensor] = {}  # by where they lie
        self._made: set[int] = set()
        self._streams: list[Callable[[int], Stream]] = []
        self._used = 0

    def __enter__(self) -> Recording:
        _local.recording = self
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(self, *problem: object) -> None:
        super().__exit__(*problem)  # type: ignore[no-untyped-call]
        _local.recording = None

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func is torch.ops.aten._local_scalar_dense.default:
            raise NotRepeatable("the host waits for a number")
        kwargs = kwargs or {}
        self.hold((args, kwargs.values()))
        found = func(*args, **kwargs)
        self._made |= {t.untyped_storage().data_ptr() for t in tensors_in(found)} - self.held.keys()
        return found

    def hold(self, values: object) -> None:
        """Keep the tensors among these values alive, unless they were made by what is recorded."""
        for tensor in tensors_in(values):
            place = tensor.untyped_storage().data_ptr()
            if tensor.device.type == "cuda" and place not in self._made:
                self.held[place] = tensor

    def keys(self, stream: Stream) -> tuple[Tensor, Tensor]:
        """Where the keys of a stream will lie, and its offsets."""
        if stream.of_step is None:
            raise NotRepeatable("a random stream of unknown origin")
        first, self._used = self._used, self._used + 2 * stream.parts
        if self._used > ROOM:
            raise NotRepeatable(f"more than {ROOM} keys of random streams")
        self._streams.append(stream.of_step)
        return self.numbers[first : first + stream.parts], self.numbers[first + stream.parts : self._used]

    def fill(self, step: int) -> None:
        """Put in the keys of a step, in the order of the device's work; the host does not wait."""
        if self._streams:
            numbers = [number for of_step in self._streams for number in key_numbers(of_step(step))]
            self.numbers[: self._used].copy_(torch.tensor(numbers).pin_memory(), non_blocking=True)


def key_numbers(stream: Stream) -> list[int]:
    """Keys, then offsets, as signed numbers of 64 bits."""
    return [*(key - (key >> 63 << 64) for key in stream.keys), *stream.offsets]


def tensors_in(values: object) -> Iterable[Tensor]:
    """All tensors among these values, and in groups of them."""
    if isinstance(values, Tensor):
        yield values
    elif isinstance(values, Iterable) and not isinstance(values, str):
        for value in values:
            yield from tensors_in(value)
