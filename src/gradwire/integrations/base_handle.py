"""What all handles have, whoever reduces the gradients: statistics, checks, layers, and somebody who watches.

See `handle` for DDP, and `fsdp` for sharded models.
"""

from __future__ import annotations

import weakref
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from gradwire.core.errors import ConfigError
from gradwire.core.layout import Layout
from gradwire.core.registry import Check, to_spec
from gradwire.core.stays_here import StaysHere
from gradwire.engine import Engine
from gradwire.integrations.checks import Checks
from gradwire.integrations.layers import Layers, layers_of
from gradwire.integrations.monitor import Monitor, Progress
from gradwire.integrations.recorder import described
from gradwire.integrations.watching import Tracking, listeners
from gradwire.integrations.ways import Way
from gradwire.integrations.window import sending
from gradwire.session import Session


class BaseHandle(StaysHere, ABC):
    """One codec at work in a model.

    Args:
        engine: codec, memory and strategy of this rank.
        group: the ranks that train together.
        gradients: what is reduced, by parameter name: tensors of its shape and dtype.
        device: where gradients are.
        way: how they are reduced.
        mode: how, in a word that users know.
        optimizer: as for `attach`.
        scaler: as for `attach`.
        check: steps between two checks; 0: there are none.
        set_up: what else the ranks must have in common, in words.
        checksum: as for `attach`.
    """

    def __init__(
        self,
        engine: Engine,
        group: dist.ProcessGroup,
        gradients: Mapping[str, Tensor],
        device: torch.device,
        way: Way,
        mode: str,
        optimizer: torch.optim.Optimizer | None,
        scaler: torch.amp.GradScaler | None,
        *,
        check: int = 0,
        set_up: str = "",
        checksum: bool = False,
    ) -> None:
        if optimizer is None and (engine.memory.by_learning_rate or engine.steering is not None):
            who = f"memory {to_spec(engine.memory)!r}" if engine.memory.by_learning_rate else "a controller"
            raise ConfigError(f"attach: {who} follows the learning rate; pass optimizer=...")
        self.engine, self.mode = engine, mode
        self._group, self._way = group, way
        self._optimizer, self._scaler = optimizer, scaler
        self._shapes = {name: tuple(g.shape) for name, g in gradients.items()}
        self._dtypes = {name: g.dtype for name, g in gradients.items()}
        self._plain_bytes = way.plain_bytes(gradients.values(), engine.workers)  # in a step
        self._rate = 0.0  # of the last step
        engine.begin(Layout.of(self._shapes.items()))
        told = f", mode {mode}{set_up}"
        self._session = Session(engine, group, device, who="attach", set_up=told, checksum=checksum)
        self._checks = Checks(self._session, self._replicas, check) if check else None

    # ---------------------------------------------------------------- what differs

    @property
    @abstractmethod
    def _plan(self) -> Sequence[tuple[str, ...]]:
        """The tensors of each unit of the last step."""

    @abstractmethod
    def _replicas(self) -> Mapping[str, Tensor]:
        """Parameters that all ranks of the group must have alike, just now."""

    @abstractmethod
    def _watched_model(self) -> nn.Module:
        """The model that this is attached to; refused where it is no longer."""

    @abstractmethod
    def _let_watch(self, monitor: Monitor) -> None:
        """Let somebody see all units, in place of whoever did before."""

    # ---------------------------------------------------------------- what is the same

    def _begin_step(self) -> None:
        scale = self._scaler.get_scale() if self._scaler is not None else 1.0
        self._rate = self._learning_rate()
        self._session.begin_step(scale, self._rate if self.engine.memory.by_learning_rate else 1.0)

    def _learning_rate(self) -> float:
        return 1.0 if self._optimizer is None else float(self._optimizer.param_groups[0]["lr"])

    def __repr__(self) -> str:
        """What it does, in a few lines. Nobody waits for it."""
        about, units = self._about(), len(self._plan)
        sent = self._session.sent_bytes / self._session.steps if self._session.steps else 0.0
        ranks = f"{about['workers']} rank{'s' * (about['workers'] != 1)}"
        where = f", in {units} unit{'s' * (units != 1)}" if units else ""
        told = sending(sent, self._plain_bytes, self._way.framework) if sent else "nothing yet"
        return (
            f"gradwire.Handle: {about['configuration']}, memory {about['memory']}, strategy {about['strategy']}, mode "
            f"{self.mode}\n  {ranks}, {self.engine.step} steps; {len(self._shapes)} tensors of {about['elements']:,} "
            f"elements{where}\n"
            f"  sends {told}{'' if self._checks is None else f'{chr(10)}  checked every {self._checks.every} steps'}"
        )

    def observe(self, kind: str, values: Mapping[str, Tensor]) -> None:
        """Tell the codec something about the coming step that gradients do not show.

        Args:
            kind: what it is. The codec `variance` asks for ``"squares"``: sums of squares of per-example gradients.
            values: by parameter name.
        """
        self.engine.observe(kind, {name: tensor[None] for name, tensor in values.items()})

    def stats(self) -> dict[str, Any]:
        """Tell what has happened since `attach`. Seconds are of the host's clock, and None on an accelerator.

        With `check`, ``"checks"`` is what the checks saw.
        """
        checks = {} if self._checks is None else {"checks": self._checks.seen}
        return self._session.stats() | {"mode": self.mode} | checks

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
        units = self._plan or (tuple(self._shapes),)
        layouts = [Layout.of((n, self._shapes[n]) for n in unit) for unit in units]
        return layers_of(self.engine, layouts, self._dtypes, self._way)

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

        What is told: bytes of a step and their ratio to those without a codec, the time of a step, how much of the
        exchange is hidden behind the backward pass and how much is exposed, and the norm of what the memory owes.
        Nothing is sent for it, and results do not change. A GPU is waited for when numbers are told, and in no other
        step. If the codec surely does not pay in this run (of DDP), a warning says so, once; see
        `gradwire.integrations.payoff`.

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
        model = self._watched_model()
        about = described(self._world, type(model).__name__.removeprefix("FSDP"), about or {})
        if not self._tells:
            return
        what = {**about, **self._about()}
        told, closers = listeners(log, tracker, record, what, str(dist.get_backend(self._group)))
        for session in self._sessions():
            session.watched = True
        seen = self._session.device, self.engine.workers, self._way
        monitor = Monitor(self._progress, self.stats, every, told, closers, *seen, judges=self._judges)
        self._let_watch(monitor)
        weakref.finalize(model, monitor.close)  # also at the end of the process

    @property
    def _world(self) -> int:
        """Ranks in all."""
        return self.engine.workers

    @property
    def _tells(self) -> bool:
        """Whether this is the rank that tells what all have in common."""
        return self.engine.ranks[0] == 0

    @property
    def _judges(self) -> bool:
        """Whether somebody who watches can tell if the codec pays."""
        return False

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
        """All that may take a unit."""
        return [self._session]

    def _progress(self) -> Progress:
        """What was counted until now, for whoever watches."""
        session = self._session
        return Progress(self.engine.step, session.sent_bytes, session.parts_seconds, session.take_exchanged())
