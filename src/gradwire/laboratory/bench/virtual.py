"""Train a task on N virtual workers in one process: one model, and for each worker its batches and its memory.

A step is what N ranks under DDP with ``attach(..., mode="after_backward")`` do, computed in turn on one device:

1. every worker's gradient on its own batch, into a row of one buffer; normalisation layers keep worker 0's statistics,
   as DDP does by sending rank 0's to all;
2. one step of `VirtualCluster` over the rows: codec, memory and strategy are those of the distributed run;
3. one optimizer step with the result.

On a GPU the first part is captured once as a graph over all workers and replayed, images are channels-last, and the
forward pass runs in bfloat16 where the plan says so.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from gradwire.cluster import VirtualCluster
from gradwire.core.layout import Layout
from gradwire.laboratory.bench.tasks.base import Batch, Carry, Data
from gradwire.laboratory.bench.training import History, OnEvaluation, Plan, Training, finite, open_data
from gradwire.memory.base import ERROR

TURNS = "one device computes all workers in turn: no time of a cluster"
WARM = 3  # rounds before a graph is captured, on a stream of their own
LANES = 8  # workers that a GPU computes at a time


class Gradients:
    """The gradients of all workers, as rows of one buffer."""

    def __init__(self, model: nn.Module, data: Data, workers: int, batch: int, autocast: bool) -> None:
        self.data, self.workers, self.autocast = data, workers, autocast
        named = {name: p for name, p in model.named_parameters() if p.requires_grad}
        self.layout = Layout.of((name, p.shape) for name, p in named.items())
        self.parameters = list(named.values())
        self.device = self.parameters[0].device
        self.rows = torch.zeros(workers, self.layout.numel, device=self.device)
        self.losses = torch.zeros(workers, device=self.device)
        # worker 0's statistics are the model's; the others leave theirs in twins, one a stream
        lanes = min(workers, LANES) if self.device.type == "cuda" else 1
        twins = [_twin(model) for _ in range(lanes)]
        self._models = [model, *(twins[worker % lanes] for worker in range(1, workers))]
        self._places = [
            [piece.view_as(p) for piece, p in zip(self.layout.split(row), self.parameters, strict=True)]
            for row in self.rows
        ]
        self._carries: list[Carry] = [()] * workers
        self._batch, self._lanes = batch, lanes
        self._graph: torch.cuda.CUDAGraph | None = None
        self._inputs: list[Batch] = []

    def begin_epoch(self) -> None:
        """Forget what workers hand from step to step."""
        fresh = [self.data.carry(self._batch) for _ in range(self.workers)]
        if self._graph is None:
            self._carries = fresh
        else:
            _copy(self._carries, fresh)

    def compute(self, batches: Sequence[Batch]) -> None:
        """Fill `rows` and `losses`."""
        if self.device.type != "cuda":
            for worker, batch in enumerate(batches):
                self._compute(worker, batch)
            return
        if self._graph is None:
            self._graph = self._captured(batches)
        _copy(self._inputs, batches)
        self._graph.replay()

    def _compute(self, worker: int, batch: Batch) -> None:
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.autocast, cache_enabled=False):
            loss, self._carries[worker] = self.data.loss(self._models[worker], batch, self._carries[worker])
        found = torch.autograd.grad(loss, self.parameters)
        torch._foreach_copy_(self._places[worker], list(found))
        self.losses[worker].copy_(loss.detach())

    def _compute_in_lanes(self) -> None:
        """All workers, several at a time: one alone leaves much of a GPU idle."""
        here = torch.cuda.current_stream(self.device)
        lanes = [torch.cuda.Stream(self.device) for _ in range(self._lanes)]  # type: ignore[no-untyped-call]
        for lane in lanes:
            lane.wait_stream(here)
        for worker, batch in enumerate(self._inputs):
            with torch.cuda.stream(lanes[worker % self._lanes]):
                self._compute(worker, batch)
        for lane in lanes:
            here.wait_stream(lane)

    def _captured(self, batches: Sequence[Batch]) -> torch.cuda.CUDAGraph:
        """A graph of all workers. The rounds that warm it up leave no trace: state and random numbers are put back."""
        self._inputs = [tuple(t.clone(memory_format=torch.preserve_format) for t in batch) for batch in batches]
        buffers = list(self._models[0].buffers())
        kept, noise = [b.clone() for b in buffers], torch.cuda.get_rng_state(self.device)
        starts = [tuple(t.clone() for t in carry) for carry in self._carries]
        stream = torch.cuda.Stream(self.device)  # type: ignore[no-untyped-call]
        stream.wait_stream(torch.cuda.current_stream(self.device))
        with torch.cuda.stream(stream):
            for _ in range(WARM):
                self._carries = list(starts)
                self._compute_in_lanes()
        torch.cuda.current_stream(self.device).wait_stream(stream)
        held = [tuple(t.clone() for t in carry) for carry in starts]
        self._carries = list(held)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            self._compute_in_lanes()
            _copy(held, self._carries)
        self._carries = held
        _copy(held, starts)
        _copy([tuple(buffers)], [tuple(kept)])
        torch.cuda.set_rng_state(noise, self.device)
        return graph


def _twin(model: nn.Module) -> nn.Module:
    """The same parameters, and other buffers."""
    shared = {id(p): p for p in model.parameters()}
    return copy.deepcopy(model, shared)


def _copy(into: Sequence[Batch], source: Sequence[Batch]) -> None:
    """Tensor by tensor."""
    for a, b in zip(into, source, strict=True):
        for held, new in zip(a, b, strict=True):
            held.copy_(new)


class Trainer(Training):
    """One run on virtual workers."""

    clock = TURNS

    def __init__(self, plan: Plan, data_dir: Path | None = None, data: Data | None = None) -> None:
        super().__init__(plan, data or open_data(plan, data_dir))
        torch.backends.cudnn.benchmark = self.device.type == "cuda"  # shapes never change
        self.gradients = Gradients(self.model, self.data, plan.workers, self.recipe.batch, plan.autocast)
        self.cluster = VirtualCluster(
            plan.workers,
            plan.codec,
            plan.memory,
            plan.strategy,
            plan.seed,
            controller=plan.controller,
            tensors=plan.compress,
            nmse_every=plan.nmse_every,
        )
        self.engine = self.cluster.engine
        self.engine.begin(self.layout)
        self._bytes = [0, 0]  # payload and sent
        self._seconds = 0.0
        self._squares = torch.zeros(2, device=self.device)  # of the error against the plain mean, and of that mean
        torch.manual_seed(plan.seed)  # dropout

    def run(self, on_evaluation: OnEvaluation = lambda history: None, checkpoint: Path | None = None) -> History:
        """Train to the end, or on from a checkpoint, which is written after every epoch."""
        if checkpoint is not None and checkpoint.exists():
            self._load(checkpoint)
        return self._train(on_evaluation, lambda: None if checkpoint is None else self._save(checkpoint))

    # ---------------------------------------------------------------- one round

    def _begin_epoch(self) -> None:
        self.gradients.begin_epoch()

    def _reduce(self, group: Sequence[Sequence[Batch]], rate_now: float) -> Tensor:
        rows, loss = self._rows(group)
        measured = self._measures
        mean = rows.mean(0) if measured else None
        if self.engine.memory.by_learning_rate and rate_now > 0:  # as under DDP, where the optimizer tells the rate
            self.engine.begin_step(learning_rate=rate_now)
        reduced = self.cluster.reduce_rows(rows, self.layout)
        self._count_bytes(measured)
        if mean is not None:
            self._squares += torch.stack([(reduced - mean).square().sum(), mean.square().sum()])
        for parameter, piece in zip(self.parameters, self.layout.split(reduced), strict=True):
            parameter.grad = piece.view_as(parameter)
        return loss

    def _rows(self, group: Sequence[Sequence[Batch]]) -> tuple[Tensor, Tensor]:
        """The workers' gradients, mean over their micro-batches, and the mean loss."""
        self.gradients.compute(group[0])
        rows, loss = self.gradients.rows, self.gradients.losses.mean()
        if len(group) == 1:
            return rows, loss
        rows = rows.clone()
        for batches in group[1:]:
            self.gradients.compute(batches)
            rows, loss = rows + self.gradients.rows, loss + self.gradients.losses.mean()
        return rows / len(group), loss / len(group)

    def _count_bytes(self, measured: bool) -> None:
        """What the step sent."""
        exact = self._exact_bytes() if measured else (0, 0)
        for i, total in enumerate((self.cluster.payload_bytes, self.cluster.sent_bytes)):
            self._bytes[i] += total - exact[i]

    def _end_epoch(self, rate_now: float, next_rate: float) -> None:
        self.cluster.end_epoch(rate_now, next_rate)

    # ---------------------------------------------------------------- evaluation

    def _seen(self) -> dict[str, Any]:
        loss = float(self._loss / self._rounds)  # waits for the device, so the clock below is right
        self._seconds += time.perf_counter() - self._begun
        error, norm = self._squares.tolist()
        self._squares.zero_()
        return {
            "train_loss": finite(loss),
            "nmse_gradient": finite(error / norm if norm else None),
            "payload_bytes": self._bytes[0],
            "sent_bytes": self._bytes[1],
            "residual_norm": self._residual_norm(),
            "seconds": self._seconds,
        }

    def _residual_norm(self) -> float | None:
        """Of what a worker owes, mean over the workers."""
        kept: dict[int, list[Tensor]] = {}
        for group, mine in enumerate(self.engine.groups):
            for piece in mine.store.pieces(ERROR):
                kept.setdefault(len(mine.ranks) * group + piece.row, []).append(piece.entry.tensor)
        if not kept:
            return None
        norms = [torch.stack(torch._foreach_norm(errors)).norm() for errors in kept.values()]
        return finite(float(torch.stack(norms).mean()))

    # ---------------------------------------------------------------- checkpoints

    def _save(self, path: Path) -> None:
        state = {
            "epoch": self._epoch,
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "workers": self.cluster.state_dicts(),
            "history": vars(self.history),
            "bytes": self._bytes,
            "seconds": self._seconds,
            "noise": torch.get_rng_state(),
        }
        if self.device.type == "cuda":
            state["device_noise"] = torch.cuda.get_rng_state(self.device)
        path.parent.mkdir(parents=True, exist_ok=True)
        part = path.with_suffix(".part")
        torch.save(state, part)
        part.replace(path)

    def _load(self, path: Path) -> None:
        state = torch.load(path, map_location=self.device, weights_only=True)
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.cluster.load_state_dicts(state["workers"])
        self.history = History(**state["history"])
        self._epoch, self._bytes, self._seconds = state["epoch"], list(state["bytes"]), state["seconds"]
        torch.set_rng_state(state["noise"].cpu())
        if self.device.type == "cuda":
            torch.cuda.set_rng_state(state["device_noise"].cpu(), self.device)
