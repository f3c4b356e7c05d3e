"""What gradwire needs of FSDP2, much of which is private: in this one place, for torch 2.11 to 2.15.

A model is parted by `fully_shard`: each module it was called on has one buffer of gradients, reduced by itself. In that
buffer lie the shards of its parameters, padded to one length on all ranks.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy

from gradwire.core.errors import Incompatible
from gradwire.core.gradient import check_gradient, sparse_gradient
from gradwire.core.layout import Layout, Segment

UNUSED = "set_reduce_scatter_unused_params"  # torch 2.13
# torch 2.15: without a `reduce_dtype`, gradients are reduced in their parameter's dtype, not in that of the computation
FOLLOWS_GRADIENTS = tuple(map(int, torch.__version__.split(".")[:2])) >= (2, 15)


class Dtypes(NamedTuple):
    """In which gradients are computed, and in which they are reduced."""

    computed: torch.dtype
    reduced: torch.dtype


def dtypes(policy: MixedPrecisionPolicy, kept: torch.dtype, follows_gradients: bool = FOLLOWS_GRADIENTS) -> Dtypes:
    """What a policy means for parameters that are kept in a dtype.

    Args:
        policy: of `fully_shard`.
        kept: dtype of the shards.
        follows_gradients: whether this torch reduces in the parameters' dtype unless told otherwise.
    """
    computed = policy.param_dtype or kept
    return Dtypes(computed, policy.reduce_dtype or (kept if follows_gradients else computed))


def reduced_elements(model: nn.Module) -> Counter[Dtypes]:
    """How many elements of gradients are computed and reduced in which dtypes.

    Args:
        model: with modules of `fully_shard`, on any mesh.
    """
    found: Counter[Dtypes] = Counter()
    for module in model.modules():
        for group in _groups(module) if isinstance(module, FSDPModule) else ():
            for p in group.fsdp_params:
                if p.sharded_param.requires_grad:
                    found[dtypes(group.mp_policy, p.sharded_param.dtype)] += p.sharded_param.numel()
    return found


@dataclass(frozen=True)
class Parameter:
    """One that is sharded: its whole shape, and the dimension along which it is cut."""

    shape: tuple[int, ...]
    dim: int


@dataclass(frozen=True, eq=False)
class Part:
    """One module of `fully_shard`, and the parameters that it reduces together."""

    module: FSDPModule
    where: str  # its name in the model
    group: Any  # torch's FSDPParamGroup
    fsdp_params: Mapping[str, Any]  # torch's FSDPParam by parameter name: those that get gradients

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self.fsdp_params)

    @property
    def ranks(self) -> dist.ProcessGroup:
        """Those that hold a shard each."""
        found: dist.ProcessGroup = self.group.mesh_info.shard_process_group
        return found

    @property
    def parameters(self) -> dict[str, Parameter]:
        """By name."""
        found = self.fsdp_params.items()
        return {name: Parameter(tuple(p.sharded_param.shape), p.fsdp_placement.dim) for name, p in found}

    @property
    def shards(self) -> dict[str, nn.Parameter]:
        """This rank's, by name."""
        return {name: p.sharded_param.to_local() for name, p in self.fsdp_params.items()}

    @property
    def shard_layout(self) -> Layout:
        """Of the buffer that a rank holds after the reduce-scatter: its shards, padded."""
        return self._layout(dist.get_rank(self.ranks))

    @property
    def whole_layout(self) -> Layout:
        """Of the buffer before it: the shards of all ranks, one rank's after the other's."""
        ranks = range(dist.get_world_size(self.ranks))
        return Layout(tuple(s for rank in ranks for s in self._layout(rank).segments))

    def _layout(self, rank: int) -> Layout:
        shapes = {name: tuple(p.padded_sharded_param_size) for name, p in self.fsdp_params.items()}
        return Layout(tuple(Segment(name, shape, rank * math.prod(shape)) for name, shape in shapes.items()))

    @property
    def dtype(self) -> torch.dtype:
        """In which gradients are reduced."""
        return dtypes(self.group.mp_policy, next(iter(self.fsdp_params.values())).sharded_param.dtype).reduced

    @property
    def averages(self) -> bool:
        """Whether what is compressed is in units of the mean over the ranks, however many there are."""
        divides = self.group.gradient_divide_factor is not None or self.group.force_sum_reduction_for_comms
        return not divides and self.dtype in (torch.float32, torch.bfloat16)

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
    found = list(_parts(model, names))
    if not found:
        raise Incompatible("attach: no parameter of this sharded model gets a gradient, so there is nothing to reduce")
    for part in found:
        if dist.get_process_group_ranks(part.ranks) != dist.get_process_group_ranks(found[0].ranks):
            raise Incompatible(
                f"attach: {part.where!r} is sharded over other ranks than {found[0].where or 'the model'!r}, and a "
                "handle has one group of ranks. Call fully_shard with one mesh."
            )
    outermost = next(where for where, module in model.named_modules() if isinstance(module, FSDPModule))
    within = f"{outermost}." if outermost else ""
    left = [name for name, p in model.named_parameters() if p.requires_grad and not name.startswith(within)]
    if left:  # torch ends the backward passes of two such modules one after the other: that would be two steps
        raise Incompatible(
            f"attach: {left[0]!r} is outside of {outermost!r}, on which fully_shard was called, so it is not reduced "
            "with the others. Call fully_shard on the whole model, too."
        )
    return found


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
            if not hasattr(group.mesh_info, "shard_process_group"):
                raise Incompatible(
                    f"attach: {told} is replicated by torch (`replicate`), which all-reduces before any hook is "
                    "called. Wrap the model in DistributedDataParallel instead."
                )
            if getattr(group, "_is_hsdp", False):
                raise Incompatible(TWO_DIMENSIONS.format(told=told))
            if group._all_reduce_hook is not None:
                raise Incompatible(f"attach: {told} has an all-reduce hook already; a model takes one. Take it away.")
            trained = {names[id(p.sharded_param)]: p for p in group.fsdp_params if p.sharded_param.requires_grad}
            for name, parameter in trained.items():
                check_gradient(name, parameter.sharded_param)
            if trained:
                yield Part(module, where, group, trained)
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
