"""What `attach` returns: one codec at work in DDP's hook, its state and statistics.

DDP hands over one bucket at a time. See `ddp_hook` for the hook, `ddp_units` for how buckets become units of
compression, and `session` for what reduces them. Results are written where DDP reads them.
"""

from __future__ import annotations

import weakref
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import torch
import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import GradBucket
from torch.nn.parallel import DistributedDataParallel

from gradwire.adaptive import Settings
from gradwire.checkpoint import check_names
from gradwire.core.errors import ConfigError, Incompatible
from gradwire.core.layout import Layout
from gradwire.core.registry import Check, to_spec
from gradwire.engine import Engine
from gradwire.integrations.ddp_hook import attached, release, watch
from gradwire.integrations.ddp_units import Units
from gradwire.integrations.layers import Layers, layers_of
from gradwire.integrations.monitor import Monitor, Progress
from gradwire.integrations.parameters import plain_bytes, reduced_parameters
from gradwire.integrations.recorder import described
from gradwire.integrations.watching import Tracking, listeners
from gradwire.integrations.window import sending
from gradwire.integrations.wrapped import unwrapped
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

    _tries_plain_ddp: ClassVar[bool] = False  # and so knows whether a codec pays

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
        self._dtypes = {name: p.dtype for name, p in parameters.items()}
        self._plain_bytes = plain_bytes(parameters.values(), engine.workers)  # in a step
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

    def __repr__(self) -> str:
        """What it does, in a few lines. Nobody waits for it."""
        about, units = self._about(), len(self._units.plan)
        sent = self._session.sent_bytes / self._session.steps if self._session.steps else 0.0
        ranks = f"{about['workers']} rank{'s' * (about['workers'] != 1)}"
        where = f", in {units} unit{'s' * (units != 1)}" if units else ""
        return (
            f"gradwire.Handle: {about['configuration']}, memory {about['memory']}, strategy {about['strategy']}, mode "
            f"{self.mode}\n  {ranks}, {self.engine.step} steps; {len(self._shapes)} tensors of {about['elements']:,} "
            f"elements{where}\n"
            f"  sends {sending(sent, self._plain_bytes) if sent else 'nothing yet'}"
        )

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

    def layers(self) -> Layers:
        """Bytes and error of each parameter's gradient, in a step of this rank; printed, a table.

        Computed when asked for: the set-up is traced, which takes a second or so for a large model and sends nothing.
        Errors are of the last step in which they were measured, see `nmse_every` and `check` of `attach`; without
        these they are not known, nor under ``"hierarchical"``. Tensors of a unit are compressed together, and share
        its bytes in proportion to what each would take alone.

        Example:
            >>> import torch, torch.distributed as dist, gradwire
            >>> from torch.nn.parallel import DistributedDataParallel
            >>> dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
            >>> handle = gradwire.attach(DistributedDataParallel(torch.nn.Linear(64, 32)), "eightbit")
            >>> [(layer.name, layer.elements, layer.codec) for layer in handle.layers()]
            [('weight', 2048, 'eightbit'), ('bias', 32, '-')]
            >>> dist.destroy_process_group()
        """
        units = self._units.plan or (tuple(self._shapes),)
        layouts = [Layout.of((n, self._shapes[n]) for n in unit) for unit in units]
        return layers_of(self.engine, layouts, self._dtypes)

    def watch(
        self,
        every: int = 100,
        *,
        log: bool = True,
        tracker: Tracking | None = None,
        record: str | Path | None = None,
        about: Mapping[str, Any] | None = None,
    ) -> None:
        """Tell every so many steps what is sent and what it costs; rank 0 does, on other ranks this does nothing.

        What is told: bytes of a step and their ratio to plain DDP's, the time of a step, how much of the exchange is
        hidden behind the backward pass and how much is exposed, and the norm of what the memory owes. Nothing is sent
        for it, and results do not change. A GPU is waited for when numbers are told, and in no other step. If the
        codec surely does not pay in this run, a warning says so, once; see `gradwire.integrations.payoff`.

        Args:
            every: steps. Watching again replaces what was asked for before.
            log: write a line to the logger ``"gradwire"``, with level INFO.
            tracker: ``"tensorboard:FOLDER"``, ``"wandb:PROJECT"``, ``"mlflow:EXPERIMENT"``, a tracker, or, for a run
                that you have open, a function: ``lambda step, values: run.log(values, step=step)``.
            record: a .jsonl file to append to, for ``gradwire report`` and ``gradwire validate``.
            about: what cannot be seen, for record and tracker: ``model`` (a name that gradwire knows, or
                ``"module:factory"``), ``batch`` on each rank, ``network`` (such as ``"10gbit"``), ``hosts``, and
                whatever else you want to find there.

        Example:
            >>> import torch, torch.distributed as dist, gradwire
            >>> from torch.nn.parallel import DistributedDataParallel
            >>> dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
            >>> model = DistributedDataParallel(torch.nn.Linear(64, 32))
            >>> handle = gradwire.attach(model, "eightbit")
            >>> seen = {}
            >>> handle.watch(every=10, log=False, tracker=lambda step, values: seen.update({step: values}))
            >>> for _ in range(11):
            ...     model(torch.ones(1, 64)).sum().backward()
            >>> sorted(seen), seen[10]["gradwire/step_seconds"] > 0
            ([10], True)
            >>> dist.destroy_process_group()
        """
        Check("watch").integer("every", every, 1)
        model = self._model()
        if model is None or not attached(model, self):
            raise Incompatible("watch: this handle is not attached any more; attach again, and watch with that handle")
        about = described(self.engine.workers, type(unwrapped(model.module)).__name__, about or {})
        if self.engine.ranks[0] != 0:
            return
        what = {**about, **self._about()}
        told, closers = listeners(log, tracker, record, what, str(dist.get_backend(self._group)))
        for session in self._sessions():
            session.watched = True
        judges = not self._tries_plain_ddp and not self.engine.lossless
        monitor = Monitor(
            self._progress, self.stats, every, told, closers, self._session.device, self.engine.workers, judges=judges
        )
        watch(model, monitor)
        weakref.finalize(model, monitor.close)  # also at the end of the process

    def _about(self) -> dict[str, Any]:
        """What was chosen, by the names that records have for it."""
        engine = self.engine
        return {
            "configuration": engine.codec.spec if engine.steering is None else engine.steering.controller.spec,
            "memory": to_spec(engine.memory),
            "strategy": engine.strategy_spec,
            "mode": self.mode,
            "tensors": engine.tensors,
            "workers": engine.workers,
            "elements": Layout.of(self._shapes.items()).numel,
        }

    def _sessions(self) -> list[Session]:
        """All that may take a bucket."""
        return [self._session]

    def _progress(self) -> Progress:
        """What was counted until now, for whoever watches."""
        session = self._session
        return Progress(self.engine.step, session.sent_bytes, session.parts_seconds, session.take_exchanged())

    def detach(self) -> None:
        """Go back to plain DDP. (DDP keeps the hook; it then does what DDP does without one.)"""
        model = self._model()
        if model is not None:
            release(model, self)
