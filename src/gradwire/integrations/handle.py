"""What `attach` returns: one codec at work in DDP's hook, its state and statistics.

DDP hands over one bucket at a time. See `ddp_hook` for the hook, `ddp_units` for how buckets become units of
compression, and `session` for what reduces them. Results are written where DDP reads them.
"""

from __future__ import annotations

import weakref
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch._C._distributed_c10d import GradBucket
from torch.nn.parallel import DistributedDataParallel

from gradwire.adaptive import Settings
from gradwire.checkpoint import check_names
from gradwire.core.errors import ConfigError, Incompatible
from gradwire.core.layout import Layout
from gradwire.core.registry import to_spec
from gradwire.engine import Engine
from gradwire.integrations.ddp_hook import release
from gradwire.integrations.ddp_units import Units
from gradwire.integrations.parameters import reduced_parameters
from gradwire.session import Session


class Handle:
    """What `attach` returns: state, statistics, and the way back. Do not make one yourself.

    Example:
        >>> import torch, torch.distributed as dist, gradwire
        >>> from torch.nn.parallel import DistributedDataParallel
        >>> dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
        >>> model = DistributedDataParallel(torch.nn.Linear(64, 32))
        >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        >>> warmup = gradwire.Warmup(codec="topk(ratio=0.01)")
        >>> handle = gradwire.attach(model, controller=warmup, optimizer=optimizer)
        >>> model(torch.ones(1, 64)).sum().backward()
        >>> handle.end_epoch().levels  # only of the matrix: the bias travels as it is
        {'weight': 'topk(ratio=0.0625)'}
        >>> handle.settings.batch_factor
        1
        >>> handle.load_state_dict(handle.state_dict())
        >>> sorted(handle.stats())[:3]
        ['codec', 'communicate_seconds', 'controller']
        >>> handle.detach()
        >>> dist.destroy_process_group()
    """

    def __init__(
        self,
        model: DistributedDataParallel,
        engine: Engine,
        mode: str,
        optimizer: torch.optim.Optimizer | None,
        scaler: torch.amp.GradScaler | None,
        *,
        set_up: str = "",
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
        device = next(iter(parameters.values())).device
        self._session = Session(engine, self._group, device, who="attach", set_up=f", mode {mode}{set_up}")
        self._units = Units(self._session, mode == "overlap" or engine.lossless, named)

    # ---------------------------------------------------------------- what DDP calls

    def on_bucket(self, bucket: GradBucket) -> torch.futures.Future[Tensor]:
        """Take a bucket from DDP's hook.

        Args:
            bucket: whose gradients are ready.
        """
        if self._session.alone:
            return self._keep(bucket)
        self._check_group()
        if self._units.empty:
            self._begin_step()
        last = bucket.is_last()
        future = self._units.take(bucket, last)
        if last:
            try:  # at the end of backward, before DDP waits for its futures: failures surface as our exceptions
                torch.autograd.Variable._execution_engine.queue_callback(self._units.end_step)
            except RuntimeError:  # no backward: a rank that ran out of data shadows the others (DDP's join)
                self._units.end_step()
        return future

    def _check_group(self) -> None:
        self._session.raise_error()
        if (model := self._model()) is not None and model.process_group is not self._group:
            raise Incompatible("gradwire: DDP's process group has changed since attach; detach and attach again")

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
        """This rank's state: tensors and plain values, by parameter name. Save one file for each rank."""
        return self._session.state_dict() | {"plan": [list(unit) for unit in self._units.plan], "rate": self._rate}

    def load_state_dict(self, state: Mapping[str, Any] | Sequence[Mapping[str, Any]]) -> None:
        """Continue from a saved state.

        Args:
            state: of this rank; or, after a change of the number of ranks, the list of all ranks' states.
        """
        states = [state] if isinstance(state, Mapping) else state
        for one in states:
            check_names(one, self._shapes)
        self._session.load_state_dict(state)
        self._rate = states[0].get("rate", 0.0)
        self._units.restore(tuple(tuple(unit) for unit in states[0].get("plan", ())))

    def observe(self, kind: str, values: Mapping[str, Tensor]) -> None:
        """Tell the codec something about the coming step that gradients do not show.

        Args:
            kind: what it is. The codec `variance` asks for ``"squares"``: sums of squares of per-example gradients.
            values: by parameter name.
        """
        self.engine.observe(kind, {name: tensor[None] for name, tensor in values.items()})

    def end_epoch(self, learning_rate: float | None = None, next_learning_rate: float | None = None) -> Settings:
        """Let the controller decide on the next epoch. All ranks must call this, after the next rate is set.

        Args:
            learning_rate: of the last step; None: what the optimizer had then.
            next_learning_rate: of the next step; None: what the optimizer has now. Pass the schedule's own rates where
                a controller's `rate_factor` is in the optimizer's.
        """
        return self._session.end_epoch(
            self._rate if learning_rate is None else learning_rate,
            self._learning_rate() if next_learning_rate is None else next_learning_rate,
        )

    @property
    def settings(self) -> Settings:
        """How this epoch is trained: what the controller has set, or without one the plain schedule."""
        return self.engine.settings

    def stats(self) -> dict[str, Any]:
        """Tell what has happened since `attach`. Seconds are of the host's clock, and None on an accelerator."""
        return self._session.stats() | {"mode": self.mode}

    def detach(self) -> None:
        """Go back to plain DDP. (DDP keeps the hook; it then does what DDP does without one.)"""
        model = self._model()
        if model is not None:
            release(model, self)
