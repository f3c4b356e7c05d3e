"""N virtual workers in one process: one engine, whose rows they are.

For trying codecs out, for conformance tests without processes, and for accuracy studies of an N-worker run on
one device.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from gradwire import checkpoint
from gradwire.adaptive import Controller, Settings, Switch
from gradwire.collectives import local
from gradwire.collectives.meter import Meter
from gradwire.core.codec import Codec, Strategy
from gradwire.core.errors import ConfigError
from gradwire.core.gradient import check_gradient
from gradwire.core.layout import Layout
from gradwire.core.stays_here import StaysHere
from gradwire.engine import Engine
from gradwire.memory.base import Memory


class VirtualCluster(StaysHere):
    """Workers that live in one process and reduce their gradients with one codec.

    Attributes:
        sent_bytes: what worker 0 sent over the network in the last step. The others differ by rounding, or by their
            share of a node.
        node_bytes: what worker 0 sent to others of its node in the last step.
        payload_bytes: what of worker 0's own gradient went into the exchanges of the last step.

    Args:
        workers: how many.
        codec: a codec or its spec, such as ``"topk(ratio=0.01)"``.
        memory: ``"default"`` (what the codec asks for), ``"none"``, or a memory or its spec.
        strategy: ``"auto"``, or a strategy or its spec.
        seed: of all randomness.
        controller: chooses each tensor's codec, epoch by epoch; `codec` may then be None.
        tensors: ``"all"`` gives the codec everything, ``"matrices"`` leaves vectors and tiny tensors as they are.
        nmse_every: measure the error against the exact mean every so many steps (0: never).

    Example:
        >>> import torch, gradwire
        >>> cluster = gradwire.VirtualCluster(workers=2, codec="topk(ratio=0.5)", nmse_every=1)
        >>> cluster.reduce({"w": [torch.tensor([4.0, 1.0]), torch.tensor([2.0, 3.0])]})["w"]
        tensor([2.0000, 1.5000])
        >>> cluster.memory("w")  # what the workers left out: the next step adds it
        [tensor([0., 1.]), tensor([2., 0.])]
        >>> round(cluster.nmse(), 3)
        0.096
        >>> adaptive = gradwire.VirtualCluster(workers=2, controller=gradwire.Warmup(codec="topk(ratio=0.01)"))
        >>> _ = adaptive.reduce({"w": [torch.ones(64, 64)] * 2})
        >>> adaptive.settings.levels, adaptive.switches
        ({'w': 'topk(ratio=0.25)'}, ())
    """

    def __init__(
        self,
        workers: int,
        codec: str | Codec | None = None,
        memory: str | Memory = "default",
        strategy: str | Strategy = "auto",
        seed: int = 0,
        *,
        controller: str | Controller | None = None,
        tensors: str = "all",
        nmse_every: int = 0,
    ) -> None:
        if isinstance(workers, bool) or not isinstance(workers, int) or workers < 1:
            raise ConfigError(f"VirtualCluster: `workers` must be a whole number of at least 1, got {workers!r}")
        self.workers = workers
        self.engine = Engine(
            codec,
            memory=memory,
            strategy=strategy,
            controller=controller,
            tensors=tensors,
            seed=seed,
            ranks=range(workers),
            workers=workers,
            nmse_every=nmse_every,
        )
        self.codec = self.engine.codec
        self.sent_bytes = self.node_bytes = self.payload_bytes = 0
        self._shapes: dict[str, torch.Size] = {}

    def reduce(
        self, gradients: Mapping[str, Sequence[Tensor]], *, units: Sequence[Sequence[str]] | None = None
    ) -> dict[str, Tensor]:
        """Take one step: reduce the workers' gradients. Returns the reduced tensor of each name.

        Args:
            gradients: for each parameter's name, one tensor of each worker.
            units: groups of names, each compressed by itself, as DDP's buckets are; None: all in one, in this order.

        Example:
            >>> import torch, gradwire
            >>> cluster = gradwire.VirtualCluster(workers=2, codec="none")
            >>> gradients = {"w": [torch.ones(2), torch.zeros(2)], "b": [torch.ones(1)] * 2}
            >>> cluster.reduce(gradients, units=[["b"], ["w"]])
            {'b': tensor([1.]), 'w': tensor([0.5000, 0.5000])}
            >>> cluster.sent_bytes  # three elements of float32, in a ring of two
            12
        """
        self._check(gradients)
        groups = [list(gradients)] if units is None else [list(u) for u in units]
        if sorted(n for g in groups for n in g) != sorted(gradients):
            raise ConfigError("VirtualCluster: `units` must hold every name of the gradients exactly once")
        layouts = [Layout.of((name, gradients[name][0].shape) for name in names) for names in groups]
        rows = [
            torch.cat([torch.stack([t.detach().reshape(-1) for t in gradients[name]]) for name in names], 1)
            for names in groups
        ]
        results = self._step(layouts, rows)
        return {
            segment.name: piece.view(segment.shape)
            for layout, flat in zip(layouts, results, strict=True)
            for segment, piece in zip(layout.segments, layout.split(flat), strict=True)
        }

    def reduce_rows(self, rows: Tensor, layout: Layout) -> Tensor:
        """Take one step over one unit of compression. Returns the reduced flat gradient.

        Args:
            rows: a row for each worker, its flat gradient.
            layout: which parameter lies where in a row.

        Example:
            >>> import torch, gradwire
            >>> from gradwire.core.layout import Layout
            >>> cluster = gradwire.VirtualCluster(workers=2, codec="none")
            >>> cluster.reduce_rows(torch.tensor([[1.0, 2.0], [3.0, 4.0]]), Layout.of([("w", (2,))]))
            tensor([2., 3.])
        """
        if rows.shape != (self.workers, layout.numel):
            raise ConfigError(
                f"VirtualCluster: rows of shape {(self.workers, layout.numel)} were wanted, got {tuple(rows.shape)}"
            )
        return self._step([layout], [rows])[0]

    def _step(self, layouts: Sequence[Layout], rows: Sequence[Tensor]) -> list[Tensor]:
        """All units of a step."""
        whole = Layout(tuple(segment for layout in layouts for segment in layout.segments))
        self._shapes |= {s.name: torch.Size(s.shape) for s in whole.segments}
        meter = Meter()
        self.engine.begin(whole)
        with torch.no_grad():
            programs = [self.engine.reduce(x, layout) for x, layout in zip(rows, layouts, strict=True)]
            results = [local.run(program, self.workers, meter) for program in programs]
            self.engine.finish_step(results)
        self.sent_bytes, self.payload_bytes, self.node_bytes = meter.sent_bytes, meter.payload_bytes, meter.node_bytes
        return [result.out[0] for result in results]

    def observe(self, kind: str, values: Mapping[str, Sequence[Tensor]]) -> None:
        """Tell the codec something about the coming step that gradients do not show.

        Args:
            kind: what it is. The codec `variance` asks for ``"squares"``: sums of squares of per-example gradients.
            values: for each parameter's name, one tensor of each worker.

        Example:
            >>> import torch, gradwire
            >>> cluster = gradwire.VirtualCluster(workers=1, codec="variance")
            >>> cluster.observe("squares", {"w": [torch.tensor([1.0, 1.0])]})
        """
        flat = {name: torch.stack([t.reshape(-1) for t in tensors]) for name, tensors in values.items()}
        self.engine.observe(kind, flat)

    def end_epoch(self, learning_rate: float, next_learning_rate: float) -> Settings:
        """Let the controller decide on the next epoch.

        Args:
            learning_rate: of the last step, by the schedule.
            next_learning_rate: of the next step, by the schedule.

        Example:
            >>> import torch, gradwire
            >>> warmup = gradwire.Warmup(codec="topk(ratio=0.01)")
            >>> cluster = gradwire.VirtualCluster(workers=2, controller=warmup)
            >>> _ = cluster.reduce({"w": [torch.ones(2000)] * 2})
            >>> cluster.end_epoch(0.1, 0.1).levels
            {'w': 'topk(ratio=0.0625)'}
            >>> cluster.controller == warmup
            True
        """
        return local.run(self.engine.end_epoch(learning_rate, next_learning_rate), self.workers)

    @property
    def controller(self) -> Controller | None:
        """What chooses the codecs, if anything does."""
        return None if self.engine.steering is None else self.engine.steering.controller

    @property
    def settings(self) -> Settings:
        """How this epoch is trained, as the controller has set it."""
        return self.engine.settings

    @property
    def switches(self) -> tuple[Switch, ...]:
        """All that the controller has changed so far."""
        return () if self.engine.steering is None else self.engine.steering.switches

    def nmse(self, *, forget: bool = False) -> float | None:
        """The normalised squared error of all measured results against the exact mean; None: nothing was measured.

        Args:
            forget: start anew.
        """
        return self.engine.nmse(forget=forget)

    def memory(self, name: str) -> list[Tensor | None]:
        """What each worker has left out so far for a parameter; None for a codec that runs without memory.

        The mean over the workers is what separates the sum of the results from the sum of the mean gradients. Where
        the owner of a shard keeps an error of its own, that is included, at n-fold weight.

        Args:
            name: the parameter's name, as given to `reduce`.
        """
        shape = self._shapes[self._known(name)]
        return [checkpoint.owed(self.engine, name, shape, rank) for rank in range(self.workers)]

    def state_dicts(self) -> list[dict[str, Any]]:
        """The state of each worker: what the ranks of a distributed run save.

        Example:
            >>> import torch, gradwire
            >>> first, second = (gradwire.VirtualCluster(workers=2, codec="topk(ratio=0.5)") for _ in range(2))
            >>> _ = first.reduce({"w": [torch.tensor([4.0, 1.0]), torch.tensor([2.0, 3.0])]})
            >>> second.load_state_dicts(first.state_dicts())
            >>> zeros = {"w": [torch.zeros(2)] * 2}
            >>> bool((first.reduce(zeros)["w"] == second.reduce(zeros)["w"]).all())
            True
        """
        return [checkpoint.save(self.engine, rank) for rank in range(self.workers)]

    def load_state_dicts(self, states: Sequence[Mapping[str, Any]]) -> None:
        """Continue from saved states.

        Args:
            states: of all workers, of this number or another.
        """
        checkpoint.load(self.engine, states)

    def _known(self, name: str) -> str:
        if name not in self._shapes:
            raise ConfigError(
                f"VirtualCluster: no gradient named {name!r} has been reduced; known: {list(self._shapes)}"
            )
        return name

    def _check(self, gradients: Mapping[str, Sequence[Tensor]]) -> None:
        if not gradients:
            raise ConfigError("VirtualCluster: `reduce` was given no gradients; pass {name: [one tensor per worker]}")
        for name, tensors in gradients.items():
            if len(tensors) != self.workers:
                raise ConfigError(
                    f"VirtualCluster: {name!r} needs one tensor for each of {self.workers} workers, got {len(tensors)}"
                )
            if len({(t.shape, t.dtype, t.device) for t in tensors}) != 1:
                raise ConfigError(f"VirtualCluster: the workers' tensors for {name!r} differ in shape, dtype or device")
            check_gradient(name, tensors[0])
        if len({(t[0].dtype, t[0].device) for t in gradients.values()}) != 1:
            raise ConfigError("VirtualCluster: all gradients of one call must share one dtype and device")
