"""What gradwire needs of FSDP2, much of which is private: in this one place, for torch 2.11 to 2.15.

A model is parted by `fully_shard`: each module it was called on has one buffer of gradients, reduced by itself. In that
buffer lie the shards of its parameters, padded to one length on all ranks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule

from gradwire.core.errors import Incompatible
from gradwire.core.gradient import check_gradient, sparse_gradient
from gradwire.core.layout import Layout, Segment

UNUSED = "set_reduce_scatter_unused_params"  # torch 2.13


@dataclass(frozen=True, eq=False)
class Part:
    """One module of `fully_shard`, and the parameters that it reduces together."""

    module: FSDPModule
    where: str  # its name in the model
    group: Any  # torch's FSDPParamGroup
    names: tuple[str, ...]

    @property
    def ranks(self) -> dist.ProcessGroup:
        """Those that hold a shard each."""
        found: dist.ProcessGroup = self.group.mesh_info.shard_process_group
        return found

    @property
    def shard_layout(self) -> Layout:
        """Of the buffer that a rank holds after the reduce-scatter: its shards, padded."""
        return Layout.of(zip(self.names, self._shapes, strict=True))

    @property
    def whole_layout(self) -> Layout:
        """Of the buffer before it: the shards of all ranks, one rank's after the other's."""
        ranks = range(dist.get_world_size(self.ranks))
        return Layout(
            tuple(Segment(s.name, (s.numel,), r * s.numel) for r in ranks for s in self.shard_layout.segments)
        )

    @property
    def _shapes(self) -> list[tuple[int, ...]]:
        return [tuple(p.padded_sharded_param_size) for p in self.group.fsdp_params]

    @property
    def device(self) -> torch.device:
        found: torch.device = self.group.device
        return found

    def scale(self, op: Any) -> float:
        """What the mean over the ranks is to be multiplied by, to be what `op` asks for."""
        workers = dist.get_world_size(self.ranks)
        if op == dist.ReduceOp.AVG:
            return 1.0
        if op == dist.ReduceOp.SUM:
            return float(workers)
        return workers / float(self.group.gradient_divide_factor)  # torch's PREMUL_SUM

    def on_shards(self, hook: Callable[[Tensor], None] | None) -> None:
        """Have `hook` called with the rank's shards after each reduce-scatter; None: no longer."""
        self.module.set_all_reduce_hook(hook)  # type: ignore[arg-type]

    def on_reduce_scatter(self, comm: Any) -> Any:
        """Let `comm` do the reduce-scatter; what did it before."""
        before = self.group._reduce_scatter_comm
        self.module.set_custom_reduce_scatter(comm)
        return before


def parts(model: nn.Module) -> list[Part]:
    """All of a model's, in its own order; refused where they cannot be compressed."""
    names = {id(p): name for name, p in model.named_parameters()}
    return list(_parts(model, names))


def _parts(model: nn.Module, names: dict[int, str]) -> Iterator[Part]:
    for where, module in model.named_modules():
        if not isinstance(module, FSDPModule):
            continue
        told = f"{where or type(module).__name__}"
        groups = _groups(module)
        if len(groups) > 1:
            raise Incompatible(
                f"attach: {told} has parameters on several meshes, and torch has no hook for each. Call fully_shard on "
                "the modules of each mesh by themselves."
            )
        for group in groups:
            if getattr(group, "_is_hsdp", False):
                raise Incompatible(TWO_DIMENSIONS.format(told=told))
            if group._all_reduce_hook is not None:
                raise Incompatible(f"attach: {told} has an all-reduce hook already; a model takes one. Take it away.")
            part = Part(module, where, group, tuple(names[id(p.sharded_param)] for p in group.fsdp_params))
            for name, parameter in zip(part.names, group.fsdp_params, strict=True):
                check_gradient(name, parameter.sharded_param)
            yield part
    for prefix, module in model.named_modules():
        if isinstance(module, nn.Embedding | nn.EmbeddingBag) and module.sparse:
            raise sparse_gradient(f"{prefix}.weight" if prefix else "weight")


def _groups(module: FSDPModule) -> list[Any]:
    state = module._get_fsdp_state()
    several = getattr(state, "_fsdp_param_groups", None)  # torch 2.13
    if several is not None:
        return list(several)
    return [] if state._fsdp_param_group is None else [state._fsdp_param_group]


TWO_DIMENSIONS = """\
attach: {told} is on a mesh of two dimensions, where torch all-reduces among replicas before any hook is called. \
Shard over one dimension, and let gradwire do the other:
    mesh = init_device_mesh(device, (replicas, shards), mesh_dim_names=("replicate", "shard"))
    fully_shard(model, mesh=mesh["shard"])
    gradwire.attach(model, codec, replicas=mesh["replicate"])"""
