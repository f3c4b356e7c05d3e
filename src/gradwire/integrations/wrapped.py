"""Which DDP model a user means: models come compiled, or inside something else."""

from __future__ import annotations

from typing import Any

from torch import nn
from torch.nn.parallel import DataParallel, DistributedDataParallel

from gradwire.core.errors import Incompatible

COMPILED = "_orig_mod"  # where torch.compile keeps the module it was given


def unwrapped(model: Any) -> Any:
    """What `torch.compile` was given, if this is its result; else the model itself."""
    while isinstance(model, nn.Module) and isinstance(inner := model._modules.get(COMPILED), nn.Module):
        model = inner
    return model


def is_sharded(model: Any) -> bool:
    """Whether `fully_shard` was called on it or in it (FSDP2). By its name: that module takes long to load."""
    found = unwrapped(model)
    if not isinstance(found, nn.Module) or isinstance(found, DistributedDataParallel):
        return False
    return any(_is_a(module, "FSDPModule") for module in found.modules())


def _is_a(model: Any, name: str) -> bool:
    return any(cls.__name__ == name for cls in type(model).__mro__)


def ddp_of(model: Any, who: str = "attach") -> DistributedDataParallel:
    """The DDP model in what `attach` or `doctor` was given; refuses what cannot work, and says what to pass instead.

    Args:
        model: a DDP model, compiled or not.
        who: was given it.
    """
    found = unwrapped(model)
    if isinstance(found, DistributedDataParallel):
        return found
    raise Incompatible(f"{who}: {_wanted(model, found)}")


def _wanted(model: Any, found: Any) -> str:
    kind = type(found).__name__
    if not isinstance(found, nn.Module):
        return (
            f"the model must be wrapped in DistributedDataParallel, got {kind}, which is no module. Pass the DDP model "
            "itself; a training step that was compiled as a whole keeps its hook."
        )
    if isinstance(found, DataParallel):
        return (
            "DataParallel has one process and sends no gradients. Start one process for each GPU (torchrun), and wrap "
            "the model in DistributedDataParallel instead."
        )
    if _is_a(found, "FullyShardedDataParallel"):
        return (
            f"{kind} is FSDP1, whose hooks do not see what it shards. Call torch.distributed.fsdp.fully_shard on the "
            "model instead (FSDP2), or, where it fits on one device, wrap it in DistributedDataParallel."
        )
    inside = [name for name, module in found.named_modules() if isinstance(module, DistributedDataParallel)]
    if inside:
        listed = ", ".join(f"model.{name}" for name in inside)
        each = "Pass it" if len(inside) == 1 else "Attach to each of them"
        return f"{kind} is not DDP itself, but has DistributedDataParallel inside. {each}: {listed}."
    if found is not model:
        return (
            f"the compiled model must be wrapped in DistributedDataParallel, got {kind}. Wrap it first: "
            "model = torch.compile(DistributedDataParallel(model))."
        )
    return (
        f"the model must be wrapped in DistributedDataParallel, got {kind}. "
        "Wrap it first: model = DistributedDataParallel(model)."
    )
