"""FSDP2: compress the gradients of a model that `fully_shard` has parted, in one of two places.

    handle = gradwire.attach(model, "blockint(bits=8)", replicas=mesh["replicate"])   # between replicas of shards
    handle = gradwire.attach(model, "blockint(bits=8)")                              # the reduce-scatter itself

1. **Replicas** (HSDP): torch reduces and scatters inside a node, where links are fast. What each rank then holds, its
   shards, is averaged among the replicas by a codec, and an error memory has the size of the shards.
2. **Reduce-scatter**: each rank sends every other one its shard, encoded, and sums what comes in float32. An error
   memory keeps what was lost of the whole gradient, not of a shard.

Torch calls us with one buffer after the other, in the same order on all ranks; the step ends with the backward pass.
"""

from __future__ import annotations

import weakref
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from functools import partial
from typing import Any, ClassVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh

from gradwire.checkpoint import check_set_up
from gradwire.core.errors import ConfigError, Incompatible, StateMismatch
from gradwire.core.layout import Layout
from gradwire.engine import Engine
from gradwire.integrations import ways
from gradwire.integrations.base_handle import BaseHandle
from gradwire.integrations.dry_run import DryRun, dry_run_of
from gradwire.integrations.fsdp_parts import UNUSED, Part, parts
from gradwire.integrations.monitor import Monitor
from gradwire.integrations.resharding import REDUCE_SCATTER, REPLICAS, own, resharded
from gradwire.integrations.wrapped import unwrapped
from gradwire.saved_state import check_model, sealed
from gradwire.session import warn_if_idle
from gradwire.sharded import check_codec


class ShardedHandle(BaseHandle):
    """What `attach` returns for a model of `fully_shard`: state, statistics, and the way back.

    Args:
        model: that is parted.
        found: its parts.
        engine: codec, memory and strategy of this rank.
        group: the ranks that average.
        optimizer: as for `attach`.
        scaler: as for `attach`.
        check: steps between two checks; 0: there are none.
        checksum: as for `attach`.
    """

    place: ClassVar[str]
    way: ClassVar[ways.Way]

    def __init__(
        self,
        model: nn.Module,
        found: Sequence[Part],
        engine: Engine,
        group: dist.ProcessGroup,
        optimizer: torch.optim.Optimizer | None,
        scaler: torch.amp.GradScaler | None,
        *,
        check: int = 0,
        checksum: bool = False,
    ) -> None:
        self._model, self._parts = weakref.ref(model), list(found)
        gradients = {name: g for part in found for name, g in self.gradients(part).items()}
        given = engine, group, gradients, found[0].device, self.way, self.place, optimizer, scaler
        super().__init__(*given, check=check, checksum=checksum)
        self._attached, self._begun = True, False  # whether a step is under way
        self._units: list[tuple[str, ...]] = []  # of this step or, between two, of the last
        self._monitor: Monitor | None = None
        self._layouts = [self._hook(part) for part in found]

    @staticmethod
    @abstractmethod
    def gradients(part: Part) -> dict[str, Tensor]:
        """What is compressed of a part, by parameter: tensors without memory."""

    @abstractmethod
    def _hook(self, part: Part) -> Layout:
        """Have the gradients of a part handed over; their layout."""

    # ---------------------------------------------------------------- what FSDP2 calls

    def _take(self, part: Part, layout: Layout, gradient: Tensor, hand_in: Callable[..., Future[Tensor]]) -> None:
        """A gradient is there: begin a step with the first, reduce it, and have the end called with backward's."""
        if gradient.numel() != layout.numel:
            raise Incompatible(
                f"gradwire: some parameters of {part.where or 'the model'} got no gradient in this backward pass, and "
                f"memories must know which. Call model.{UNUSED}(True) (torch 2.13 or later) on all ranks: then they "
                "get one of zeros."
            )
        if self._monitor is not None:
            self._monitor.on_gradient(gradient, first=not self._begun)
        if not self._begun:
            if self._checks is not None:
                self._checks.begin()
            self._begin_step()
            torch.autograd.Variable._execution_engine.queue_callback(self._end)
            self._begun, self._units = True, []
        if self._checks is not None:
            self._checks.look_at(gradient, layout)
        self._units.append(part.names)
        self._finish(hand_in, gradient)
        if self._checks is not None:  # now: torch goes on with the result, and may divide it
            self._checks.compare_with_sum()

    def _finish(self, hand_in: Callable[..., Future[Tensor]], out: Tensor) -> None:
        """Hand in a unit and wait for it: this thread for the lane's, on a GPU this stream for the lane's stream."""
        if not out.is_cuda:
            hand_in()
            self._session.join()
            return
        event = torch.cuda.Event()  # type: ignore[no-untyped-call]
        hand_in(then=lambda _: event.record())
        self._session.join()
        torch.cuda.current_stream(out.device).wait_event(event)

    def _end(self) -> None:
        self._begun = False
        self._session.commit()
        self._session.wait()
        if self._checks is not None:
            self._checks.finish(self._units)

    # ---------------------------------------------------------------- what a handle must know

    @property
    def _plan(self) -> Sequence[tuple[str, ...]]:
        return self._units or [part.names for part in self._parts]

    def _replicas(self) -> Mapping[str, Tensor]:
        return {}

    def _watched_model(self) -> nn.Module:
        model = self._model()
        if model is None or not self._attached:
            raise Incompatible("watch: this handle is not attached any more; attach again, and watch with that handle")
        return model

    def _let_watch(self, monitor: Monitor | None) -> None:
        if self._monitor is not None:
            self._monitor.close()
        self._monitor = monitor

    @property
    def _tells(self) -> bool:
        return self.engine.ranks[0] == 0 and self._at["shard"][0] == 0

    @property
    def _at(self) -> dict[str, Any]:
        """Where a codec is at work, which shard this rank holds, of how many, and who averages."""
        ranks = self._parts[0].ranks
        return {
            "place": self.place,
            "shard": [dist.get_rank(ranks), dist.get_world_size(ranks)],
            "rank": self.engine.ranks[0],
            "workers": self.engine.workers,
        }

    @property
    def _model_shapes(self) -> dict[str, list[int]]:
        """Of whole parameters, whatever the mesh is."""
        return {name: list(p.shape) for part in self._parts for name, p in part.parameters.items()}

    # ---------------------------------------------------------------- what users call

    def state_dict(self) -> dict[str, Any]:
        """This rank's state: tensors and plain values, by parameter name. Save one file for each rank."""
        return sealed(self._session.state_dict() | self._at | {"parameters": self._model_shapes})

    def load_state_dict(self, state: Mapping[str, Any] | Sequence[Mapping[str, Any]]) -> None:
        """Continue from a saved state.

        Args:
            state: of this rank; or, after a change of the mesh, the list of all ranks' states.
        """
        states = [state] if isinstance(state, Mapping) else list(state)
        check_set_up(states, self.engine.codec, self.engine.memory, None)
        for one in states:
            check_model(one, self._model_shapes)
        mine = own(states, self._at)
        if mine is None:
            if not all(part.averages for part in self._parts):
                raise StateMismatch(
                    "gradwire: gradients in float16, and those with a divide factor or forced sums, are divided by "
                    "what the mesh asks for, so what is owed cannot be taken to another; resume on the mesh that saved"
                )
            picked = [self.engine.picked(layout) for layout in self._layouts]
            shapes = {name: p for part in self._parts for name, p in part.parameters.items()}
            mine = resharded(states, self._at, picked, shapes)
        self._session.load_state_dict(mine)

    def detach(self) -> None:
        """Compress no longer, and leave all to torch. Between replicas nobody averages then: attach again."""
        self._attached = False
        self._let_watch(None)


class ReplicaHandle(ShardedHandle):
    """Codecs between the replicas of a shard."""

    place, way = REPLICAS, ways.REPLICAS

    @staticmethod
    def gradients(part: Part) -> dict[str, Tensor]:
        return {s.name: torch.empty(s.shape, dtype=part.dtype, device="meta") for s in part.shard_layout.segments}

    def _hook(self, part: Part) -> Layout:
        layout = part.shard_layout
        part.on_shards(partial(self._reduce, part, layout))
        return layout

    def _reduce(self, part: Part, layout: Layout, shards: Tensor) -> None:
        if not self._session.alone:
            self._take(part, layout, shards, partial(self._session.reduce, shards, layout, shards))

    def _replicas(self) -> Mapping[str, Tensor]:
        return {name: shard for part in self._parts for name, shard in part.shards.items()}

    @property
    def _world(self) -> int:
        return self.engine.workers * dist.get_world_size(self._parts[0].ranks)

    def detach(self) -> None:
        """Average no longer. The replicas then go apart: attach again, or train no more."""
        super().detach()
        for part in self._parts:
            part.on_shards(None)


class ReduceScatterHandle(ShardedHandle):
    """Codecs in the reduce-scatter."""

    place, way = REDUCE_SCATTER, ways.REDUCE_SCATTER

    def __init__(self, model: nn.Module, found: Sequence[Part], engine: Engine, *rest: Any, **options: Any) -> None:
        check_codec(engine, engine.codec)
        self._before: list[tuple[Part, Any]] = []  # what reduced each part until now
        super().__init__(model, found, engine, *rest, **options)

    @staticmethod
    def gradients(part: Part) -> dict[str, Tensor]:
        ranks = dist.get_world_size(part.ranks)
        shards = part.shard_layout.segments
        return {s.name: torch.empty(ranks * s.numel, dtype=part.dtype, device="meta") for s in shards}

    def _hook(self, part: Part) -> Layout:
        layout = part.whole_layout
        if not self.engine.lossless:  # torch then does the same
            self._before.append((part, part.on_reduce_scatter(_Comm(self, part, layout))))
        return layout

    def _reduce(self, part: Part, layout: Layout, out: Tensor, whole: Tensor, op: dist.ReduceOp) -> None:
        self._take(part, layout, whole, partial(self._session.reduce_scatter, whole, layout, out))
        scale = part.scale(op)
        if scale != 1:
            out.mul_(scale)

    def detach(self) -> None:
        """Go back to torch's own reduce-scatter."""
        super().detach()
        for part, before in self._before:
            part.on_reduce_scatter(before)
        self._before = []


class _Comm:
    """What torch calls instead of its reduce-scatter; like its `ReduceScatter`, whose place is private."""

    def __init__(self, handle: ReduceScatterHandle, part: Part, layout: Layout) -> None:
        self._handle, self._part, self._layout = handle, part, layout

    def allocate(self, size: Sequence[int], *, dtype: torch.dtype, device: torch.device) -> Tensor:
        return torch.empty(*size, dtype=dtype, device=device)

    def __call__(
        self,
        output_tensor: Tensor,
        input_tensor: Tensor,
        group: dist.ProcessGroup,
        op: dist.ReduceOp,
        async_op: bool = False,
    ) -> None:
        self._handle._reduce(self._part, self._layout, output_tensor, input_tensor, op)


def attach_sharded(
    model: nn.Module,
    make: Callable[..., Engine],
    replicas: DeviceMesh | dist.ProcessGroup | None,
    optimizer: torch.optim.Optimizer | None,
    scaler: torch.amp.GradScaler | None,
    *,
    check: int,
    checksum: bool,
    dry_run: bool,
) -> ShardedHandle | DryRun:
    """What `attach` does with a model of `fully_shard`.

    Args:
        model: compiled or not.
        make: makes the engine.
        replicas: as for `attach`.
        optimizer: as for `attach`.
        scaler: as for `attach`.
        check: steps between two checks; 0: there are none.
        checksum: as for `attach`.
        dry_run: attach nothing, and return what would be sent and kept.
    """
    model = unwrapped(model)
    found = parts(model)
    group = found[0].ranks if replicas is None else _group(replicas)
    kind = ReduceScatterHandle if replicas is None else ReplicaHandle
    here: dict[str, Any] = {"ranks": (dist.get_rank(group),), "workers": dist.get_world_size(group)}
    if replicas is None:
        here["tensors"] = "all"  # a shard has no shape that tells matrices from vectors
    engine = make(**here)
    if dry_run:
        if replicas is None:
            check_codec(engine, engine.codec)
        return dry_run_of(engine, partial(make, **here), [kind.gradients(part) for part in found], kind.place, kind.way)
    handle = kind(model, found, engine, group, optimizer, scaler, check=check, checksum=checksum)
    warn_if_idle(engine, "gradients pass through uncompressed", stacklevel=2)
    return handle


def _group(replicas: DeviceMesh | dist.ProcessGroup) -> dist.ProcessGroup:
    if isinstance(replicas, DeviceMesh):
        if replicas.ndim != 1:
            raise ConfigError(f"attach: `replicas` must be a mesh of one dimension, got {replicas}")
        return replicas.get_group()
    return replicas
