"""N virtual workers in one process: the same engine, driven in lock step.

For trying codecs out, for conformance tests without processes, and for accuracy studies of an N-worker run on
one device.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from gradwire.adaptive.controller import Controller, Settings
from gradwire.collectives import local
from gradwire.collectives.meter import Meter
from gradwire.core.codec import Codec, Strategy
from gradwire.core.errors import ConfigError
from gradwire.core.gradient import check_gradient
from gradwire.core.layout import Layout
from gradwire.engine import Engine
from gradwire.memory.base import Memory


class VirtualCluster:
    """`workers` workers that reduce gradients with one codec.

    >>> cluster = VirtualCluster(workers=2, codec="topk(ratio=0.5)")
    >>> cluster.reduce({"w": [torch.tensor([4.0, 1.0]), torch.tensor([2.0, 3.0])]})["w"]
    tensor([2.0000, 1.5000])
    >>> cluster.memory("w")
    [tensor([0., 1.]), tensor([2., 0.])]

    With `share`, what all workers compute alike is computed once. That saves time, and hides that they do not agree.
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
        compress: str = "all",
        nmse_every: int = 0,
        share: bool = False,
    ) -> None:
        if isinstance(workers, bool) or not isinstance(workers, int) or workers < 1:
            raise ConfigError(f"VirtualCluster: `workers` must be a whole number of at least 1, got {workers!r}")
        self.workers = workers
        self.share = share
        self.engines = [
            Engine(
                codec,
                memory=memory,
                strategy=strategy,
                controller=controller.spec if isinstance(controller, Controller) else controller,  # one for each worker
                compress=compress,
                seed=seed,
                rank=rank,
                workers=workers,
                nmse_every=nmse_every,
            )
            for rank in range(workers)
        ]
        self.codec = self.engines[0].codec
        self.sent_bytes = 0  # by worker 0 in the last step; the others differ by rounding, or by their share of a node
        self.node_bytes = 0  # by worker 0 to others of its node
        self.payload_bytes = 0
        self._shapes: dict[str, torch.Size] = {}
        self._reduced: list[tuple[Layout, list[Tensor]]] = []  # by the last step: units, and what each worker holds

    def reduce(
        self, gradients: Mapping[str, Sequence[Tensor]], *, units: Sequence[Sequence[str]] | None = None
    ) -> dict[str, Tensor]:
        """One step. `gradients` maps each name to one tensor per worker; returns each name's reduced tensor.

        All names form one unit of compression, in the order given, unless `units` groups them.
        """
        self._check(gradients)
        groups = [list(gradients)] if units is None else [list(u) for u in units]
        if sorted(n for g in groups for n in g) != sorted(gradients):
            raise ConfigError("VirtualCluster: `units` must hold every name of the gradients exactly once")
        layouts = [Layout.of((name, gradients[name][0].shape) for name in names) for names in groups]
        rows = [
            [torch.cat([gradients[name][rank].detach().reshape(-1) for name in names]) for rank in range(self.workers)]
            for names in groups
        ]
        results = self._step(layouts, rows)
        return {
            segment.name: piece.view(segment.shape)
            for layout, flat in zip(layouts, results, strict=True)
            for segment, piece in zip(layout.segments, layout.split(flat), strict=True)
        }

    def reduce_rows(self, rows: Tensor, layout: Layout) -> Tensor:
        """One step over one unit: a row of `rows` is a worker's flat gradient; returns the reduced one."""
        if rows.shape != (self.workers, layout.numel):
            raise ConfigError(
                f"VirtualCluster: rows of shape {(self.workers, layout.numel)} were wanted, got {tuple(rows.shape)}"
            )
        return self._step([layout], [list(rows.unbind())])[0]

    def _step(self, layouts: Sequence[Layout], rows: Sequence[Sequence[Tensor]]) -> list[Tensor]:
        """All units of a step; returns what worker 0 holds of each."""
        whole = Layout(tuple(segment for layout in layouts for segment in layout.segments))
        self._shapes |= {s.name: torch.Size(s.shape) for s in whole.segments}
        meters = [Meter() for _ in range(self.workers)]
        self._reduced = []
        for engine in self.engines:
            engine.begin(whole)
        with torch.no_grad():
            for layout, flats in zip(layouts, rows, strict=True):
                programs = [engine.reduce(x, layout) for engine, x in zip(self.engines, flats, strict=True)]
                self._reduced.append((layout, local.run(programs, meters, share=self.share)))
        for engine in self.engines:
            engine.finish_step()
        self.sent_bytes, self.payload_bytes = meters[0].sent_bytes, meters[0].payload_bytes
        self.node_bytes = meters[0].node_bytes
        return [flats[0] for _, flats in self._reduced]

    def observe(self, kind: str, values: Mapping[str, Sequence[Tensor]]) -> None:
        """Tell the codecs something about the coming step: one tensor per worker for each name."""
        for rank, engine in enumerate(self.engines):
            engine.observe(kind, {name: tensors[rank] for name, tensors in values.items()})

    def end_epoch(self, learning_rate: float, next_learning_rate: float) -> Settings:
        """Let the controller decide on the next epoch; the rates are those of the schedule."""
        meters = [Meter() for _ in range(self.workers)]
        programs = [engine.end_epoch(learning_rate, next_learning_rate) for engine in self.engines]
        return local.run(programs, meters)[0]

    @property
    def controller(self) -> Controller | None:
        """Of worker 0; all workers' decide alike."""
        steering = self.engines[0].steering
        return None if steering is None else steering.controller

    def nmse(self, *, forget: bool = False) -> float | None:
        """See `Engine.nmse`."""
        return self.engines[0].nmse(forget=forget)

    def outputs(self, name: str) -> list[Tensor]:
        """What each worker holds after the last step."""
        shape = self._shapes[self._known(name)]
        layout, flats = next((layout, flats) for layout, flats in self._reduced if name in layout.names)
        place = layout.names.index(name)
        return [layout.split(flat)[place].view(shape) for flat in flats]

    def memory(self, name: str) -> list[Tensor | None]:
        """What each worker still owes for a parameter; None for a codec that runs without memory.

        The mean over the workers is what separates the sum of the results from the sum of the mean gradients. Where
        the owner of a shard keeps an error of its own, that is included, at n-fold weight.
        """
        return [e.owed(name, self._shapes[self._known(name)]) for e in self.engines]

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
