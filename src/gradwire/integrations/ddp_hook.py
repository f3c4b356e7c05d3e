"""The hook that DDP calls with each bucket, and who is behind it.

(No `from __future__ import annotations` here: DDP wants to see the real annotation of `bucket`.)
"""

import weakref
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Protocol, SupportsIndex

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import GradBucket
from torch.nn.parallel import DistributedDataParallel

from gradwire.core.errors import Incompatible


class Attached(Protocol):
    """What takes the buckets: the handle that `attach` returns."""

    def stats(self) -> dict[str, Any]: ...

    def on_bucket(self, bucket: GradBucket) -> torch.futures.Future[torch.Tensor]: ...


class Watching(Protocol):
    """What looks at the gradients, before they are taken."""

    def on_gradient(self, gradient: torch.Tensor, first: bool) -> None: ...

    def close(self) -> None: ...


@dataclass
class Slot:
    """DDP takes one hook for life; this is its state, and the handle in it may change."""

    model: "weakref.ref[DistributedDataParallel]"
    handle: Attached | None = None
    watching: Watching | None = None


def compress_hook(state: object, bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
    """The hook that `attach` registers."""
    assert isinstance(state, Slot)
    if not isinstance(bucket, GradBucket):
        raise Incompatible(
            "gradwire: torch.compile's python_reducer ignores what a hook returns. Set "
            "torch._dynamo.config.optimize_ddp = True, or compile without it."
        )
    model = state.model()
    assert model is not None, "its hook is called, so the model is alive"
    if not getattr(model, "_divide_by_initial_world_size", True):
        raise Incompatible(
            "gradwire: join(divide_by_initial_world_size=False) averages over the ranks that still have data, and a "
            "hook cannot know them. Use join(divide_by_initial_world_size=True)."
        )
    if state.handle is not None:
        if state.watching is not None:
            state.watching.on_gradient(bucket.buffer(), bucket.index() == 0)
        return state.handle.on_bucket(bucket)
    return plain_mean(bucket, model.process_group)


def plain_mean(bucket: GradBucket, group: dist.ProcessGroup) -> torch.futures.Future[torch.Tensor]:
    """What DDP does by itself."""
    mean = bucket.buffer().mul_(1.0 / dist.get_world_size(group))
    work = dist.all_reduce(mean, group=group, async_op=True)
    return work.get_future().then(lambda _: mean)  # type: ignore[no-any-return]


class Hooks(list[Any]):
    """DDP's list of its hooks. Copies and pickles leave ours out, so a copy of an attached model is plain DDP."""

    def __reduce_ex__(self, protocol: SupportsIndex) -> tuple[type[list[Any]], tuple[list[Any]]]:
        return list, (others(self),)


def others(hooks: Iterable[tuple[Any, Any]]) -> list[tuple[Any, Any]]:
    """Those that are not ours, with their states."""
    return [(hook, state) for hook, state in hooks if hook is not compress_hook]


_slots: "weakref.WeakKeyDictionary[DistributedDataParallel, Slot]" = weakref.WeakKeyDictionary()


def slot_of(model: DistributedDataParallel) -> Slot:
    """The model's hook, registered if it has none yet."""
    slot = _slots.get(model)
    if slot is None:
        if others(model._comm_hooks) or any(hasattr(p, "_in_backward_optimizers") for p in model.parameters()):
            raise Incompatible(
                "attach: this DDP model has a communication hook already (register_comm_hook, mixed_precision= or an "
                "optimizer in the backward pass put it there), and DDP takes one. Wrap the model in a new "
                "DistributedDataParallel without it."
            )
        slot = _slots[model] = Slot(weakref.ref(model))
        model._comm_hooks = Hooks()
        model.register_comm_hook(slot, compress_hook)
    if slot.handle is not None:
        raise Incompatible(
            f"attach: this model is compressed by {slot.handle.stats()['codec']} already; call handle.detach() first"
        )
    return slot


def release(model: DistributedDataParallel, handle: Attached) -> None:
    """Take `handle` from the model's hook, if it is there."""
    if attached(model, handle):
        _slots[model].handle = None
        watch(model, None)


def attached(model: DistributedDataParallel, handle: Attached) -> bool:
    """Whether `handle` takes the model's buckets."""
    return _slots[model].handle is handle


def watch(model: DistributedDataParallel, watching: Watching | None) -> None:
    """Let something look at the model's buckets, in place of what did before; None: nothing."""
    slot = _slots[model]
    if slot.watching is not None:
        slot.watching.close()
    slot.watching = watching
