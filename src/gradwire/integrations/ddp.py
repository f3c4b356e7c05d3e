"""`attach`: DistributedDataParallel's gradients are compressed through a communication hook, FSDP2's in `fsdp`.

    handle = gradwire.attach(ddp_model, "eightbit")
    handle = gradwire.attach(ddp_model)                 # the autopilot finds out what pays

See `handle` for what then works behind the hook, and `autopilot` for what chooses by itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Literal, cast, overload

import torch
import torch.distributed as dist
from torch import nn

from gradwire.adaptive import Controller
from gradwire.core.codec import Codec, Strategy
from gradwire.core.errors import ConfigError
from gradwire.engine import Engine
from gradwire.integrations.autopilot import AUTO, Autopilot
from gradwire.integrations.checks import steps_between
from gradwire.integrations.ddp_hook import slot_of
from gradwire.integrations.dry_run import DryRun
from gradwire.integrations.dry_run import dry_run as tried
from gradwire.integrations.handle import Handle
from gradwire.integrations.parameters import check_model
from gradwire.integrations.wrapped import ddp_of, is_sharded
from gradwire.memory.base import Memory
from gradwire.session import warn_if_idle

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.fsdp import FSDPModule

    from gradwire.integrations.fsdp import ShardedHandle

__all__ = ["Handle", "attach"]


@overload
def attach(
    model: nn.Module | FSDPModule,
    codec: str | Codec | None = None,
    *,
    dry_run: Literal[True],
    workers: int | None = None,
    controller: str | Controller | None = None,
    replicas: DeviceMesh | dist.ProcessGroup | None = None,
    memory: str | Memory = "default",
    strategy: str | Strategy = "auto",
    mode: str = "overlap",
    tensors: str = "matrices",
) -> DryRun: ...


@overload
def attach(
    model: FSDPModule,
    codec: str | Codec,
    *,
    replicas: DeviceMesh | dist.ProcessGroup | None = None,
    memory: str | Memory = "default",
    strategy: str | Strategy = "auto",
    tensors: str = "matrices",
    seed: int = 0,
    optimizer: torch.optim.Optimizer | None = None,
    scaler: torch.amp.GradScaler | None = None,
    nmse_every: int = 0,
    graphs: bool = True,
    check: bool | int = False,
    checksum: bool = False,
) -> ShardedHandle: ...


@overload
def attach(
    model: nn.Module,
    codec: str | Codec | None = None,
    *,
    task: str | None = None,
    controller: str | Controller | None = None,
    memory: str | Memory = "default",
    strategy: str | Strategy = "auto",
    mode: str = "overlap",
    tensors: str = "matrices",
    seed: int = 0,
    optimizer: torch.optim.Optimizer | None = None,
    scaler: torch.amp.GradScaler | None = None,
    nmse_every: int = 0,
    graphs: bool = True,
    check: bool | int = False,
    checksum: bool = False,
) -> Handle: ...


def attach(
    model: nn.Module | FSDPModule,
    codec: str | Codec | None = None,
    *,
    task: str | None = None,
    controller: str | Controller | None = None,
    replicas: DeviceMesh | dist.ProcessGroup | None = None,
    memory: str | Memory = "default",
    strategy: str | Strategy = "auto",
    mode: str = "overlap",
    tensors: str = "matrices",
    seed: int = 0,
    optimizer: torch.optim.Optimizer | None = None,
    scaler: torch.amp.GradScaler | None = None,
    nmse_every: int = 0,
    graphs: bool = True,
    check: bool | int = False,
    checksum: bool = False,
    dry_run: bool = False,
    workers: int | None = None,
) -> Handle | ShardedHandle | DryRun:
    """Compress the gradients of a DDP model, or of one that is sharded, from the next backward pass on.

    Args:
        model: wrapped in DistributedDataParallel, compiled or not, or parted by `fully_shard` (FSDP2), which has none
            of `task`, `controller` and `mode`; all ranks must call this alike.
        codec: a codec or its spec, such as ``"powersgd(rank=4)"``. None or ``"auto"``: the autopilot, which tries
            plain DDP and codecs that are safe for the task on the running job, and keeps the fastest.
        task: for the autopilot: ``"images"``, ``"language"``, ``"recommendation"`` or ``"segmentation"``; None: what
            the model's modules look like.
        controller: chooses each tensor's codec instead, such as ``Accordion(low="powersgd(rank=4)",
            high="powersgd(rank=1)")``; needs `optimizer`, and `handle.end_epoch()` after each epoch.
        replicas: of a sharded model: those that hold the same shards, whose average is then compressed; None: the
            reduce-scatter among the shards is.
        memory: ``"default"``, ``"none"``, or a memory such as ``"error_feedback(bits=8)"``, which takes a quarter
            of the room.
        strategy: ``"auto"``, ``"all_reduce"``, ``"all_gather"`` or ``"scatter_reduce_gather"``; for several ranks on
            each host ``"hierarchical"``: full precision inside a node, compression between nodes; or ``"measured"``:
            auto, by the latency and bandwidth found now (two runs may then choose differently).
        mode: ``"overlap"`` with the backward pass, or ``"after_backward"`` over everything at once.
        tensors: ``"matrices"`` sends vectors and tiny tensors as they are, but for casts; ``"all"`` compresses all.
        seed: of all randomness, the same on all ranks.
        optimizer: needed by controllers, and by memories that follow the learning rate.
        scaler: the loss scaler; memories then follow its scale.
        nmse_every: measure the error against the exact mean every so many steps (sends the full gradient then).
        graphs: on a GPU, capture what is launched for a bucket in CUDA graphs, and replay it in later steps.
        check: every 100 steps, or every so many, look whether replicas agree, errors and memories stay within bounds
            and a lossless codec does what DDP does, and warn once if not. Such a step sends the full gradient, too.
            Under the autopilot, steps of codecs are looked at.
        checksum: send a checksum with every row, and hold what arrives to it; on a GPU the host then waits for each
            exchange. Under the autopilot, that of codecs.
        dry_run: attach nothing, and return what would be sent and kept. The model need not be wrapped then, and no
            process group is needed.
        workers: for a dry run: of how many ranks; None: those of the process group.

    Returns:
        The handle; of a dry run a `gradwire.integrations.dry_run.DryRun`.

    Example:
        >>> import torch, torch.distributed as dist, gradwire
        >>> from torch.nn.parallel import DistributedDataParallel
        >>> dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)  # with torchrun: no arguments
        >>> model = DistributedDataParallel(torch.nn.Linear(4, 2))
        >>> handle = gradwire.attach(model, "topk(ratio=0.01)")
        >>> model(torch.ones(1, 4)).sum().backward()  # compressed; but one rank has nothing to send
        >>> handle.stats()["codec"], handle.stats()["workers"]
        ('topk', 1)
        >>> dist.destroy_process_group()
    """
    if mode not in ("overlap", "after_backward"):
        raise ConfigError(f"attach: `mode` must be 'overlap' or 'after_backward', got {mode!r}")
    autopilot = codec == AUTO or (codec is None and controller is None)
    if autopilot and controller is not None:
        raise ConfigError("attach: the autopilot and a controller would both choose codecs; pass one of them")
    if autopilot and memory != "default":
        raise ConfigError(
            f"attach: the autopilot takes each codec with its own memory, as it was tried; leave `memory` out, or name "
            f"a codec; got memory={memory!r}"
        )
    if task is not None and not autopilot:
        raise ConfigError(f"attach: `task` is for the autopilot, which chooses by it; leave it out, got {task!r}")
    if workers is not None and not dry_run:
        raise ConfigError("attach: `workers` is for a dry run; the ranks of a training are those of its process group")
    if autopilot and dry_run:
        raise ConfigError("attach: a dry run is of one codec, and the autopilot tries several; name a codec")
    checked = steps_between(check)
    module = cast(nn.Module, model)  # `FSDPModule` is mixed into one
    measured = 0 if dry_run else nmse_every or checked
    make = partial(Engine, strategy=strategy, tensors=tensors, seed=seed, nmse_every=measured, graphs=graphs)
    one = partial(make, codec, memory=memory, controller=controller)
    if is_sharded(module):
        from gradwire.integrations.fsdp import attach_sharded

        told = {"task": task, "controller": controller, "mode": mode != "overlap", "workers": workers}
        _not_sharded([name for name, value in told.items() if value], autopilot)
        if nmse_every and replicas is None:
            raise ConfigError(
                "attach: `nmse_every` measures the mean of replicas; a reduce-scatter has no such, leave it out"
            )
        return attach_sharded(
            module, one, replicas, optimizer, scaler, check=checked, checksum=checksum, dry_run=dry_run
        )
    if dry_run:
        return tried(module, one, mode, workers)
    if replicas is not None:
        raise ConfigError("attach: `replicas` are those of a sharded model (fully_shard); DDP has its process group")
    ddp = ddp_of(module)
    slot = slot_of(ddp)
    check_model(ddp)
    here = {
        "ranks": (dist.get_rank(ddp.process_group),),
        "workers": dist.get_world_size(ddp.process_group),
        "track_unused": bool(ddp.find_unused_parameters or ddp.static_graph),
    }
    if autopilot:
        handle: Handle = Autopilot(
            ddp, partial(make, **here), partial(Handle, check=checked, checksum=checksum), task, mode, optimizer, scaler
        )
    else:
        handle = Handle(ddp, one(**here), mode, optimizer, scaler, check=checked, checksum=checksum)
    warn_if_idle(handle.engine, "gradients pass through uncompressed", stacklevel=2)
    slot.handle = handle
    return handle


def _not_sharded(told: Sequence[str], autopilot: bool) -> None:
    if autopilot:
        raise ConfigError('attach: the autopilot is for DDP; name a codec for a sharded model, such as "bf16"')
    if told:
        raise ConfigError(f"attach: a sharded model has no {' and no '.join(map(repr, told))}; leave it out")
