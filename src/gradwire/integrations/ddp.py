"""DistributedDataParallel: compress its gradients through a communication hook.

    handle = gradwire.attach(ddp_model, "topk(ratio=0.01)")

DDP hands over one bucket at a time. See `ddp_units` for how buckets become units of compression, and `session` for what
reduces them. Results are written where DDP reads them. (No `from __future__ import annotations` here: DDP wants to see
the real annotation of `bucket`.)
"""

import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import GradBucket
from torch.nn.parallel import DistributedDataParallel

from gradwire.adaptive.controller import Controller, Settings
from gradwire.checkpoint import check_names
from gradwire.core.codec import Codec, Strategy
from gradwire.core.errors import ConfigError, Incompatible
from gradwire.core.layout import Layout
from gradwire.core.registry import to_spec
from gradwire.engine import Engine
from gradwire.integrations.ddp_units import Units
from gradwire.integrations.parameters import check_model, reduced_parameters
from gradwire.memory.base import Memory
from gradwire.session import Session, warn_if_idle


def attach(
    model: DistributedDataParallel,
    codec: str | Codec | None = None,
    *,
    controller: str | Controller | None = None,
    memory: str | Memory = "default",
    strategy: str | Strategy = "auto",
    mode: str = "overlap",
    compress: str = "matrices",
    seed: int = 0,
    optimizer: torch.optim.Optimizer | None = None,
    scaler: torch.amp.GradScaler | None = None,
    nmse_every: int = 0,
) -> "Handle":
    """Compress the gradients of a DDP model from the next backward pass on.

    Args:
        model: wrapped in DistributedDataParallel; all its ranks must call this alike.
        codec: a codec or its spec, such as ``"powersgd(rank=4)"``.
        controller: chooses each tensor's codec instead, such as ``Accordion(low="powersgd(rank=4)",
            high="powersgd(rank=1)")``; needs `optimizer`, and `handle.end_epoch()` after each epoch.
        memory: ``"default"``, ``"none"``, or a memory such as ``"error_feedback(beta=0.9)"``.
        strategy: ``"auto"``, ``"all_reduce"``, ``"all_gather"`` or ``"scatter_reduce_gather"``; for several ranks on
            each host ``"hierarchical"``: full precision inside a node, compression between nodes; or ``"measured"``:
            auto, by the latency and bandwidth found now (two runs may then choose differently).
        mode: ``"overlap"`` with the backward pass, or ``"after_backward"`` over everything at once.
        compress: ``"matrices"`` sends vectors and tiny tensors as they are; ``"all"`` compresses them too.
        seed: of all randomness, the same on all ranks.
        optimizer: needed by controllers, and by memories that follow the learning rate.
        scaler: the loss scaler; memories then follow its scale.
        nmse_every: measure the error against the exact mean every so many steps (sends the full gradient then).
    """
    if not isinstance(model, DistributedDataParallel):
        raise Incompatible(
            f"attach: the model must be wrapped in DistributedDataParallel, got {type(model).__name__}. "
            "Wrap it first: model = DistributedDataParallel(model)."
        )
    if mode not in ("overlap", "after_backward"):
        raise ConfigError(f"attach: `mode` must be 'overlap' or 'after_backward', got {mode!r}")
    slot = _slot(model)
    check_model(model)
    handle = Handle(
        model,
        Engine(
            codec,
            memory=memory,
            strategy=strategy,
            controller=controller,
            compress=compress,
            seed=seed,
            ranks=(dist.get_rank(model.process_group),),
            workers=dist.get_world_size(model.process_group),
            track_unused=bool(model.find_unused_parameters or model.static_graph),
            nmse_every=nmse_every,
        ),
        mode,
        optimizer,
        scaler,
    )
    slot.handle = handle
    return handle


@dataclass
class _Slot:
    """DDP takes one hook for life; this is its state, and the handle in it may change."""

    model: "weakref.ref[DistributedDataParallel]"
    handle: "Handle | None" = None


def compress_hook(state: object, bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
    """The hook that `attach` registers."""
    assert isinstance(state, _Slot)
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
        return state.handle._on_bucket(bucket)
    mean = bucket.buffer().mul_(1.0 / dist.get_world_size(model.process_group))  # what DDP does by itself
    work = dist.all_reduce(mean, group=model.process_group, async_op=True)
    return work.get_future().then(lambda _: mean)  # type: ignore[no-any-return]


class Handle:
    """What `attach` returns: state, statistics, and the way back."""

    def __init__(
        self,
        model: DistributedDataParallel,
        engine: Engine,
        mode: str,
        optimizer: torch.optim.Optimizer | None,
        scaler: torch.amp.GradScaler | None,
    ) -> None:
        if optimizer is None and (engine.memory.by_learning_rate or engine.steering is not None):
            who = f"memory {to_spec(engine.memory)!r}" if engine.memory.by_learning_rate else "a controller"
            raise ConfigError(f"attach: {who} follows the learning rate; pass optimizer=...")
        self.engine, self.mode = engine, mode
        self._model = weakref.ref(model)
        self._group = model.process_group
        self._optimizer, self._scaler = optimizer, scaler
        parameters = reduced_parameters(model)
        named = {id(p): (name, tuple(p.shape)) for name, p in parameters.items()}
        self._shapes = dict(named.values())
        engine.begin(Layout.of(self._shapes.items()))
        self._rate = 0.0  # of the last step
        warn_if_idle(engine, "gradients pass through uncompressed", stacklevel=3)
        device = next(iter(parameters.values())).device
        self._session = Session(engine, self._group, device, who="attach", set_up=f", mode {mode}")
        self._units = Units(self._session, mode == "overlap" or engine.lossless, named)

    # ---------------------------------------------------------------- what DDP calls

    def _on_bucket(self, bucket: GradBucket) -> torch.futures.Future[Tensor]:
        if self._session.alone:
            return self._keep(bucket)
        self._session.raise_error()
        if (model := self._model()) is not None and model.process_group is not self._group:
            raise Incompatible("gradwire: DDP's process group has changed since attach; detach and attach again")
        if self._units.empty:
            self._begin_step()
        future = self._units.take(bucket)
        if bucket.is_last():
            try:  # at the end of backward, before DDP waits for its futures: failures surface as our exceptions
                torch.autograd.Variable._execution_engine.queue_callback(self._units.end_step)
            except RuntimeError:  # no backward: a rank that ran out of data shadows the others (DDP's join)
                self._units.end_step()
        return future

    def _keep(self, bucket: GradBucket) -> torch.futures.Future[Tensor]:
        """The only rank sends nothing, but its controller watches."""
        if bucket.index() == 0:
            self._begin_step()
        self.engine.watch(bucket.buffer()[None], self._units.layout(bucket))
        done: torch.futures.Future[Tensor] = torch.futures.Future()
        done.set_result(bucket.buffer())
        return done

    def _begin_step(self) -> None:
        scale = self._scaler.get_scale() if self._scaler is not None else 1.0
        self._rate = self._learning_rate()
        self._session.begin_step(scale, self._rate if self.engine.memory.by_learning_rate else 1.0)

    def _learning_rate(self) -> float:
        return 1.0 if self._optimizer is None else float(self._optimizer.param_groups[0]["lr"])

    # ---------------------------------------------------------------- what users call

    def state_dict(self) -> dict[str, Any]:
        """This rank's compression state: tensors and plain values, keyed by parameter name. Save one file a rank."""
        return self._session.state_dict() | {"plan": [list(unit) for unit in self._units.plan], "rate": self._rate}

    def load_state_dict(self, state: Mapping[str, Any] | Sequence[Mapping[str, Any]]) -> None:
        """Continue from this rank's saved state, or, after a change of world size, from the list of all ranks'."""
        states = [state] if isinstance(state, Mapping) else state
        for one in states:
            check_names(one, self._shapes)
        self._session.load_state_dict(state)
        self._rate = states[0].get("rate", 0.0)
        self._units.restore(tuple(tuple(unit) for unit in states[0].get("plan", ())))

    def observe(self, kind: str, values: Mapping[str, Tensor]) -> None:
        """Tell the codec something about the coming step, by parameter name; see `Engine.observe`."""
        self.engine.observe(kind, {name: tensor[None] for name, tensor in values.items()})

    def end_epoch(self, learning_rate: float | None = None, next_learning_rate: float | None = None) -> Settings:
        """Let the controller decide on the next epoch. All ranks must call this, once the next rate is set.

        The rates are those of the last step and of the optimizer now; pass the schedule's own where a controller's
        `rate_factor` is in the optimizer's.
        """
        return self._session.end_epoch(
            self._rate if learning_rate is None else learning_rate,
            self._learning_rate() if next_learning_rate is None else next_learning_rate,
        )

    def stats(self) -> dict[str, Any]:
        """What has happened since attach. Seconds are of the host clock, and None on an accelerator."""
        return self._session.stats() | {"mode": self.mode}

    def detach(self) -> None:
        """Back to plain DDP. (DDP keeps the hook; it then does what DDP does without one.)"""
        model = self._model()
        if model is not None and _slots[model].handle is self:
            _slots[model].handle = None


_slots: "weakref.WeakKeyDictionary[DistributedDataParallel, _Slot]" = weakref.WeakKeyDictionary()


def _slot(model: DistributedDataParallel) -> _Slot:
    """The model's hook, registered if it has none yet."""
    slot = _slots.get(model)
    if slot is None:
        if model._comm_hooks or any(hasattr(p, "_in_backward_optimizers") for p in model.parameters()):
            raise Incompatible(
                "attach: this DDP model has a communication hook already (register_comm_hook, mixed_precision= or an "
                "optimizer in the backward pass put it there), and DDP takes one. Wrap the model in a new "
                "DistributedDataParallel without it."
            )
        slot = _slots[model] = _Slot(weakref.ref(model))
        model.register_comm_hook(slot, compress_hook)
    if slot.handle is not None:
        raise Incompatible(
            f"attach: this model is compressed by {slot.handle.engine.codec.spec} already; call handle.detach() first"
        )
    return slot
