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

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh

from gradwire.core.codec import Codec, Strategy
from gradwire.core.errors import ConfigError, Incompatible, StateMismatch
from gradwire.core.layout import Layout
from gradwire.core.registry import to_spec
from gradwire.engine import Engine
from gradwire.integrations.fsdp_parts import UNUSED, Part, parts
from gradwire.integrations.wrapped import unwrapped
from gradwire.memory.base import Memory
from gradwire.session import Session, warn_if_idle
from gradwire.sharded import check_codec


class ShardedHandle:
    """What `attach` returns for a model of `fully_shard`: state, statistics, and the way back."""

    def __init__(
        self,
        model: nn.Module,
        found: Sequence[Part],
        engine: Engine,
        group: dist.ProcessGroup,
        optimizer: torch.optim.Optimizer | None,
        scaler: torch.amp.GradScaler | None,
        *,
        place: str,
    ) -> None:
        if optimizer is None and engine.memory.by_learning_rate:
            raise ConfigError(
                f"attach: memory {to_spec(engine.memory)!r} follows the learning rate; pass optimizer=..."
            )
        self.engine, self.place = engine, place
        self._parts = list(found)
        self._optimizer, self._scaler = optimizer, scaler
        self._begun = False  # whether a step is under way
        self._session = Session(engine, group, found[0].device, who="attach", set_up=f", {place}")

    # ---------------------------------------------------------------- what FSDP2 calls

    def _begin(self) -> None:
        """Begin a step with the first buffer, and have its end called with that of the backward pass."""
        if self._begun:
            return
        scale = self._scaler.get_scale() if self._scaler is not None else 1.0
        self._session.begin_step(scale, self._learning_rate() if self.engine.memory.by_learning_rate else 1.0)
        torch.autograd.Variable._execution_engine.queue_callback(self._end)
        self._begun = True

    def _end(self) -> None:
        self._begun = False
        self._session.commit()
        self._session.wait()

    def _check(self, buffer: Tensor, part: Part, wanted: int) -> None:
        if buffer.numel() != wanted:
            raise Incompatible(
                f"gradwire: some parameters of {part.where or 'the model'} got no gradient in this backward pass, and "
                f"memories must know which. Call model.{UNUSED}(True) (torch 2.13 or later) on all ranks: then they "
                "get one of zeros."
            )

    def _learning_rate(self) -> float:
        return 1.0 if self._optimizer is None else float(self._optimizer.param_groups[0]["lr"])

    # ---------------------------------------------------------------- what users call

    def state_dict(self) -> dict[str, Any]:
        """This rank's state: tensors and plain values, by parameter name. Save one file for each rank."""
        return self._session.state_dict() | self._at

    def load_state_dict(self, state: Mapping[str, Any] | Sequence[Mapping[str, Any]]) -> None:
        """Continue from a saved state, on the mesh that saved it.

        Args:
            state: of this rank.
        """
        if not isinstance(state, Mapping):
            raise StateMismatch(
                "gradwire: a sharded model goes on with each rank's own state, on the mesh that saved it; pass one"
            )
        saved = {key: state.get(key) for key in self._at}
        if saved != self._at:
            raise StateMismatch(
                f"gradwire: this state was saved by {_told(saved)}, and this rank is {_told(self._at)}; resume on the "
                "mesh that saved it, or start without it"
            )
        self._session.load_state_dict(state)

    @property
    def _at(self) -> dict[str, Any]:
        """Where a codec is at work, and which shard this rank holds, of how many."""
        ranks = self._parts[0].ranks
        return {"place": self.place, "shard": [dist.get_rank(ranks), dist.get_world_size(ranks)]}

    def stats(self) -> dict[str, Any]:
        """Tell what has happened since `attach`. Seconds are of the host's clock, and None on an accelerator."""
        return self._session.stats() | {"mode": self.place}


def _finish(hand_in: Callable[..., Future[Tensor]], out: Tensor) -> None:
    """Hand in a unit and wait for it: this thread for the lane's, and on a GPU this stream for the lane's stream."""
    if not out.is_cuda:
        hand_in().result()
        return
    event = torch.cuda.Event()  # type: ignore[no-untyped-call]
    hand_in(then=lambda _: event.record()).result()
    torch.cuda.current_stream(out.device).wait_event(event)


def _told(at: Mapping[str, Any]) -> str:
    if at["shard"] is None:
        return "a model that is not sharded"
    return f"one with shard {at['shard'][0]} of {at['shard'][1]} and a codec in its {at['place']}"


class ReplicaHandle(ShardedHandle):
    """Codecs between the replicas of a shard."""

    def __init__(self, model: nn.Module, found: Sequence[Part], *rest: Any) -> None:
        super().__init__(model, found, *rest, place="replicas")
        layouts = [part.shard_layout for part in found]
        self.engine.begin(Layout(tuple(s for layout in layouts for s in layout.segments)))
        for part, layout in zip(found, layouts, strict=True):
            part.on_shards(partial(self._reduce, part, layout))

    def _reduce(self, part: Part, layout: Layout, shards: Tensor) -> None:
        if self._session.alone:
            return
        self._check(shards, part, layout.numel)
        self._begin()
        _finish(partial(self._session.reduce, shards, layout, shards), shards)

    def detach(self) -> None:
        """Average no longer. The replicas then go apart: attach again, or train no more."""
        for part in self._parts:
            part.on_shards(None)


class ReduceScatterHandle(ShardedHandle):
    """Codecs in the reduce-scatter."""

    def __init__(self, model: nn.Module, found: Sequence[Part], *rest: Any) -> None:
        super().__init__(model, found, *rest, place="reduce-scatter")
        check_codec(self.engine, self.engine.codec)
        self.engine.begin(Layout(tuple(s for part in found for s in part.whole_layout.segments)))
        self._before = [] if self.engine.lossless else [part.on_reduce_scatter(_Comm(self, part)) for part in found]

    def _reduce(self, part: Part, layout: Layout, out: Tensor, whole: Tensor, op: dist.ReduceOp) -> None:
        self._check(whole, part, layout.numel)
        self._begin()
        _finish(partial(self._session.reduce_scatter, whole, layout, out), out)
        scale = part.scale(op)
        if scale != 1:
            out.mul_(scale)

    def detach(self) -> None:
        """Go back to torch's own reduce-scatter."""
        for part, before in zip(self._parts, self._before, strict=bool(self._before)):
            part.on_reduce_scatter(before)


class _Comm:
    """What torch calls instead of its reduce-scatter; like its `ReduceScatter`, whose place is private."""

    def __init__(self, handle: ReduceScatterHandle, part: Part) -> None:
        self._handle, self._part, self._layout = handle, part, part.whole_layout

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
    codec: str | Codec,
    *,
    replicas: DeviceMesh | dist.ProcessGroup | None = None,
    memory: str | Memory = "default",
    strategy: str | Strategy = "auto",
    tensors: str = "matrices",
    seed: int = 0,
    optimizer: torch.optim.Optimizer | None = None,
    scaler: torch.amp.GradScaler | None = None,
    graphs: bool = True,
) -> ShardedHandle:
    """What `attach` does with a model of `fully_shard`; its arguments are explained there."""
    model = unwrapped(model)
    found = parts(model)
    group = found[0].ranks if replicas is None else _group(replicas)
    make: Any = ReduceScatterHandle if replicas is None else ReplicaHandle
    engine = Engine(
        codec,
        memory=memory,
        strategy=strategy,
        tensors=tensors if replicas is not None else "all",
        seed=seed,
        ranks=(dist.get_rank(group),),
        workers=dist.get_world_size(group),
        graphs=graphs,
    )
    handle: ShardedHandle = make(model, found, engine, group, optimizer, scaler)
    warn_if_idle(engine, "gradients pass through uncompressed", stacklevel=2)
    return handle


def _group(replicas: DeviceMesh | dist.ProcessGroup) -> dist.ProcessGroup:
    if isinstance(replicas, DeviceMesh):
        if replicas.ndim != 1:
            raise ConfigError(f"attach: `replicas` must be a mesh of one dimension, got {replicas}")
        return replicas.get_group()
    return replicas
