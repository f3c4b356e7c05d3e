"""What `attach` returns for DDP: one codec at work in its hook.

DDP hands over one bucket at a time. See `ddp_hook` for the hook, `ddp_units` for how buckets become units of
compression, and `session` for what reduces them. Results are written where DDP reads them.
"""

from __future__ import annotations

import weakref
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch._C._distributed_c10d import GradBucket
from torch.nn.parallel import DistributedDataParallel

from gradwire.adaptive import Settings
from gradwire.checkpoint import check_names
from gradwire.core.errors import Incompatible
from gradwire.engine import Engine
from gradwire.integrations.base_handle import BaseHandle
from gradwire.integrations.ddp_hook import attached, release, watch
from gradwire.integrations.ddp_units import Plan, Units
from gradwire.integrations.monitor import Monitor
from gradwire.integrations.parameters import reduced_parameters
from gradwire.integrations.ways import DDP
from gradwire.integrations.wrapped import unwrapped
from gradwire.saved_state import check_model, check_whole, sealed


class Handle(BaseHandle):
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
        check: int = 0,
        set_up: str = "",
        checksum: bool = False,
    ) -> None:
        self._model = weakref.ref(model)
        parameters = reduced_parameters(model)
        device = next(iter(parameters.values())).device
        given = engine, model.process_group, parameters, device, DDP, mode, optimizer, scaler
        super().__init__(*given, check=check, set_up=set_up, checksum=checksum)
        named = {id(p): (name, tuple(p.shape)) for name, p in parameters.items()}
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
            if self._checks is not None:
                self._checks.begin()
            self._begin_step()
        if self._checks is not None:
            self._checks.look_at(bucket.buffer(), self._units.layout(bucket))
        last = bucket.is_last()
        future = self._units.take(bucket, last)
        if last:
            try:  # at the end of backward, before DDP waits for its futures: failures surface as our exceptions
                torch.autograd.Variable._execution_engine.queue_callback(self._end_step)
            except RuntimeError:  # no backward: a rank that ran out of data shadows the others (DDP's join)
                self._end_step()
        return future

    def _end_step(self) -> None:
        self._units.end_step()
        if self._checks is not None:
            self._checks.finish(self._plan)

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

    @property
    def _plan(self) -> Plan:
        return self._units.plan

    def _replicas(self) -> Mapping[str, Tensor]:
        model = self._model()
        if model is None or model._join_config.enable:  # ranks without data get their parameters at the end of a join
            return {}
        return reduced_parameters(model)

    def _watched_model(self) -> nn.Module:
        model = self._model()
        if model is None or not attached(model, self):
            raise Incompatible("watch: this handle is not attached any more; attach again, and watch with that handle")
        found: nn.Module = unwrapped(model.module)
        return found

    def _let_watch(self, monitor: Monitor) -> None:
        model = self._model()
        assert model is not None, "it was there just now"
        watch(model, monitor)

    @property
    def _judges(self) -> bool:
        return not self.engine.lossless

    # ---------------------------------------------------------------- what users call

    def state_dict(self) -> dict[str, Any]:
        """This rank's state: tensors and plain values, by parameter name. Save one file for each rank."""
        plan = [list(unit) for unit in self._units.plan]
        model = {name: list(shape) for name, shape in self._shapes.items()}
        return sealed(self._session.state_dict() | {"plan": plan, "rate": self._rate, "parameters": model})

    def load_state_dict(self, state: Mapping[str, Any] | Sequence[Mapping[str, Any]]) -> None:
        """Continue from a saved state.

        Args:
            state: of this rank; or, after a change of the number of ranks, the list of all ranks' states.
        """
        states = [state] if isinstance(state, Mapping) else state
        check_whole(states)
        for one in states:
            check_names(one, self._shapes)
            check_model(one, self._shapes)
        self._session.load_state_dict(state)
        self._rate = states[0].get("rate", 0.0)
        self._units.restore(tuple(tuple(unit) for unit in states[0].get("plan", ())))

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

    def detach(self) -> None:
        """Go back to plain DDP. (DDP keeps the hook; it then does what DDP does without one.)"""
        model = self._model()
        if model is not None:
            release(model, self)
